"""Tables of what compare.py measured, as text or Markdown."""

TITLES = {
    "prefill": "Prefill, bf16: TFLOP/s",
    "prefill_f32": "Prefill, f32: TFLOP/s",
    "decode": "Decode, bf16, 32/8 heads, D128, one query a sequence: TB/s of keys and values",
    "modifiers": "Score modifiers beside compiled FlexAttention, bf16, batch 2, 16 heads, S4096, D128: ms",
    "unfused": "Fused and unfused, S4096, D128: ms",
    "rows": "Other kernels: GB/s",
    "model": "Whole models, random weights: tokens/s",
}
BEGIN_MARK = "<!-- bench/compare/compare.py: begin -->\n"
END_MARK = "<!-- bench/compare/compare.py: end -->\n"
PEERS = ("flash", "efficient", "cudnn", "math")


def ms_of(result):
    return result.get("ms") if result else None


def number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def ratio(theirs, ours):
    return None if theirs is None or ours is None else theirs / ours


def flops(s):
    """2 (D + D) for each visible pair; a causal mask leaves S (S + 1) / 2 of them."""
    pairs = s["seq_len_q"] * (s["seq_len_q"] + 1) / 2 if s["causal"] else s["seq_len_q"] * s["seq_len_kv"]
    return 4 * s["batch"] * s["num_heads"] * s["head_dim"] * pairs


def kv_bytes(s):
    return 2 * s["batch"] * s["seq_len_kv"] * s["num_kv_heads"] * s["head_dim"] * (4 if s["dtype"] == "f32" else 2)


def prefill_name(s):
    return s.get("modifier") or f"D{s['head_dim']} S{s['seq_len_q']}{' causal' if s['causal'] else ''}"


def best_ms(torch):
    times = [torch[p]["ms"] for p in PEERS if "ms" in torch.get(p, {})]
    return min(times) if times else None


def rate_rows(rows, family, name_of, work_of, unit, digits):
    """Rates of one backend of tessera and PyTorch's, with ratios of times."""
    lines = [["shape", "tessera", "us", "share", *PEERS, "x flash", "x best", "error", "theirs"]]
    for row in rows:
        ours, torch = row["tessera"].get(family, {}), row["torch"]
        work = work_of(row["shape"])

        def rate(ms):
            return number(None if ms is None else work / ms / 1e-3 / unit, digits)

        share = ours.get("share_of_ceiling")
        errors = [torch[p]["error"] for p in PEERS if "error" in torch.get(p, {})]
        lines.append(
            [
                name_of(row["shape"]),
                rate(ms_of(ours)),
                number(None if ms_of(ours) is None else ms_of(ours) * 1e3, 1),
                "-" if share is None else f"{100 * share:.0f} %",
                *(rate(ms_of(torch.get(p))) for p in PEERS),
                number(ratio(ms_of(torch.get("flash")), ms_of(ours)), 2),
                number(ratio(best_ms(torch), ms_of(ours)), 2),
                "-" if "error" not in ours else f"{ours['error']:.1e}",
                "-" if not errors else f"{min(errors):.1e}",
            ]
        )
    return lines


def modifier_rows(rows, family):
    lines = [["modifier", "tessera", "flex", "x flex", "error", "theirs"]]
    for row in rows:
        ours, flex = row["tessera"].get(family, {}), row["torch"].get("flex", {})
        errors = ["-" if "error" not in result else f"{result['error']:.1e}" for result in (ours, flex)]
        times = [ms_of(ours), ms_of(flex)]
        lines.append([prefill_name(row["shape"]), *(number(t, 4) for t in times), number(ratio(*reversed(times)), 2), *errors])
    return lines


def unfused_rows(rows, family):
    unfused_name = f"{family}_unfused"
    lines = [["shape", family, unfused_name, "torch math", f"{unfused_name} / {family}", f"math / {unfused_name}"]]
    for row in rows:
        fused, unfused = (ms_of(row["tessera"].get(b)) for b in (family, unfused_name))
        math = ms_of(row["torch"].get("math"))
        lines.append(
            [
                f"{row['shape']['dtype']} {prefill_name(row['shape'])}",
                number(fused, 3),
                number(unfused, 3),
                number(math, 3),
                number(ratio(unfused, fused), 2),
                number(ratio(math, unfused), 2),
            ]
        )
    return lines


def kernel_rows(rows):
    lines = [["kernel", "us", "tessera", "share", "ceiling", "torch eager", "x torch"]]
    for row in rows:
        ours, torch = row["kernel"], row["torch"]
        torch_ms = ms_of(torch)
        lines.append(
            [
                f"{ours['kernel']} {ours['dtype']} {ours['shape']}",
                number(ours["ms"] * 1e3, 1),
                number(ours["gbps"], 0),
                f"{100 * ours['share_of_ceiling']:.0f} %",
                ours["ceiling_kind"],
                number(None if torch_ms is None else ours["bytes"] / torch_ms * 1e-6, 0),
                number(ratio(torch_ms, ours["ms"]), 2),
            ]
        )
    return lines


def model_rows(rows):
    lines = [["model", "prefill", "decode", "GB/s of weights", "share of read rate"]]
    for r in rows:
        name = f"{r['name']} {r['weight_dtype']}, batch {r['batch']}"
        if "failure" in r:
            lines.append([name, "-", "-", "-", r["failure"].splitlines()[0]])
            continue
        lines.append(
            [
                f"{name}, prompt {r['prompt_tokens']}",
                number(r["prefill_tokens_per_second"], 0),
                number(r["decode_tokens_per_second"], 1),
                number(r["decode_gbps"], 0),
                f"{100 * r['share_of_ceiling']:.0f} %",
            ]
        )
    return lines


def table_of(group, rows, family):
    if group in ("prefill", "prefill_f32"):
        return rate_rows(rows, family, prefill_name, flops, 1e12, 0 if group == "prefill" else 1)
    if group == "decode":
        return rate_rows(rows, family, lambda s: f"B{s['batch']} S{s['seq_len_kv']}", kv_bytes, 1e12, 2)
    if group in ("modifiers", "unfused"):
        return (modifier_rows if group == "modifiers" else unfused_rows)(rows, family)
    return {"rows": kernel_rows, "model": model_rows}[group](rows)


def heading(document):
    e = document["environment"]
    cache = "inputs may stay in the cache" if document["warm"] else "calls take copies of the inputs in turn, beyond the cache"
    if family_of(document) == "hip":
        api, libraries = "HIP", f"HIP {e.get('hip_of_torch')}"
    else:
        api, libraries = "CUDA", f"CUDA {e.get('cuda_of_torch')}, cuDNN {e.get('cudnn')}"
    torch = f"PyTorch {e['torch']} ({libraries})" if e["torch"] else "without PyTorch"
    return (
        f"{e['gpu']}, driver {e['driver']}, tessera {e['tessera']} ({e['commit']}), {torch}. "
        f"Replays of {api} graphs of several calls, medians; {cache}."
    )


def failures(document):
    """Every case that tessera could not measure, in words."""
    found = []
    for group, rows in document["groups"].items():
        if isinstance(rows, dict):
            found.append(f"{group}: {rows['failure']}")
            continue
        for row in rows:
            for backend, result in row.get("tessera", {}).items():
                if "failure" in result:
                    found.append(f"{group} {prefill_name(row['shape'])} {backend}: {result['failure']}")
            if "failure" in row:
                found.append(f"{group} {row['name']}: {row['failure']}")
    return found


def family_of(document):
    """Of the GPU: "cuda", or "hip" on AMD's."""
    return document["environment"].get("family", "cuda")


def groups(document):
    family = family_of(document)
    return [(TITLES[g], table_of(g, rows, family)) for g, rows in document["groups"].items() if isinstance(rows, list)]


def text(document):
    parts = [heading(document)]
    for title, lines in groups(document):
        widths = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
        parts.append(title)
        for line in lines:
            cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
            parts[-1] += "\n" + "  ".join(cells).rstrip()
    parts += [f"not measured: {failure}" for failure in failures(document)]
    return "\n\n".join(parts)


def markdown(document):
    parts = [heading(document)]
    for title, lines in groups(document):
        header, *rows = ["| " + " | ".join(line) + " |" for line in lines]
        rule = "|---|" + "---:|" * (len(lines[0]) - 1)
        parts.append("\n".join([f"**{title}**", "", header, rule, *rows]))
    parts += [f"Not measured: {failure}" for failure in failures(document)]
    return "\n\n".join(parts) + "\n"


def update_file(path, document):
    """Puts the tables between the two marks of a Markdown file."""
    with open(path, encoding="utf-8") as f:
        old = f.read()
    if BEGIN_MARK not in old or END_MARK not in old:
        raise SystemExit(f"error: {path} has no lines {BEGIN_MARK.strip()} and {END_MARK.strip()}")
    before, rest = old.split(BEGIN_MARK, 1)
    after = rest.split(END_MARK, 1)[1]
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{before}{BEGIN_MARK}{markdown(document)}{END_MARK}{after}")
