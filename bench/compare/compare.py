#!/usr/bin/env python3
"""Runs `tessera bench` and the same shapes through PyTorch on one GPU, in one session, and prints both with their ratio.

Needs the tessera executable and PyTorch with CUDA or ROCm (not with --alone), nothing else. See README.md beside this file.
"""

import argparse
import json
import sys

import modifiers
import tables
import tessera_runs

GROUPS = ("prefill", "prefill_f32", "decode", "modifiers", "unfused", "rows", "model")


def shape(batch, seq_len_q, seq_len_kv, num_heads, num_kv_heads, head_dim, causal, dtype):
    return {
        "batch": batch,
        "seq_len_q": seq_len_q,
        "seq_len_kv": seq_len_kv,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "causal": causal,
        "dtype": dtype,
    }


def prefill_shapes(dtype, head_dims, lengths, tokens=16384, width=2048):
    """batch x seq_len = tokens, num_heads x head_dim = width."""
    return [
        shape(tokens // s, s, s, width // d, width // d, d, causal, dtype)
        for d in head_dims
        for s in lengths
        for causal in (False, True)
    ]


def decode_shapes(batches, lengths):
    return [shape(b, 1, s, 32, 8, 128, False, "bf16") for b in batches for s in lengths]


def modifier_shapes(quick):
    names = ["causal", "softcap"] if quick else modifiers.OPTIONS
    plain = shape(2, modifiers.SEQ_LEN, modifiers.SEQ_LEN, 16, 16, 128, False, "bf16")
    return [{**plain, "modifier": name} for name in names]


def attention_groups(quick):
    lengths = [512, 4096] if quick else [512, 1024, 2048, 4096, 8192, 16384]
    return {
        "prefill": prefill_shapes("bf16", [64, 128, 256], lengths),
        "prefill_f32": prefill_shapes("f32", [64, 128], [1024, 4096]),
        "decode": decode_shapes([1, 16] if quick else [1, 16, 64], [1024, 8192] if quick else [1024, 8192, 32768]),
        "modifiers": modifier_shapes(quick),
        "unfused": prefill_shapes("bf16", [128], [4096]) + prefill_shapes("f32", [128], [4096]),
    }


class NoTorch:
    """What stands for torch_runs with --alone: a GPU that tessera finds, and no results."""

    def __init__(self, tessera):
        self._family, self._gpu = tessera_runs.first_gpu(tessera)

    def family(self):
        return self._family

    def environment(self):
        return {"gpu": self._gpu, "torch": None}

    def attention(self, *_):
        return {}

    def flex_attention(self, *_):
        return {}

    def row_kernel(self, *_):
        return None


def peer(arguments):
    """The module torch_runs, or what stands for it."""
    if arguments.alone:
        return NoTorch(arguments.tessera)
    try:
        import torch_runs  # not where only tables are made from a file
    except ModuleNotFoundError as missing:
        raise tessera_runs.TesseraFailed(
            f"there is no Python package '{missing.name}' for {sys.executable}; the shapes run through PyTorch with CUDA or ROCm too: "
            "python3 -m pip install torch, or give --alone for tessera's side, --from FILE to make tables of stored results"
        ) from missing
    return torch_runs


def measure(wanted, arguments):
    """The document that --json writes."""
    torch_runs = peer(arguments)
    document = {
        "environment": {**tessera_runs.environment(arguments.tessera, torch_runs.family()), **torch_runs.environment()},
        "warm": not arguments.cold,
        "groups": {},
    }
    shapes_of = attention_groups(arguments.quick)
    for group in wanted:
        print(group, file=sys.stderr)
        try:
            if group in shapes_of:
                document["groups"][group] = run_attention(group, shapes_of[group], arguments, torch_runs)
            elif group == "rows":
                ours = tessera_runs.kernels(arguments.tessera, torch_runs.family(), arguments.seconds)
                document["groups"][group] = [
                    {"kernel": r, "torch": torch_runs.row_kernel(r, arguments.seconds)} for r in ours
                ]
            else:
                document["groups"][group] = tessera_runs.models(arguments.tessera, torch_runs.family(), arguments.quick)
        except tessera_runs.TesseraFailed as failure:
            document["groups"][group] = {"failure": str(failure)}
    return document


def run_attention(group, shapes, arguments, torch_runs):
    """One row a shape: tessera's result of each backend, PyTorch's of each of its own."""
    family = torch_runs.family()
    backends = [family, f"{family}_unfused"] if group == "unfused" else [family]
    ours = tessera_runs.attention(arguments.tessera, backends, shapes, arguments.seconds, not arguments.cold)
    rows = []
    run_theirs = torch_runs.flex_attention if group == "modifiers" else torch_runs.attention
    for index, s in enumerate(shapes):
        theirs = run_theirs(s, arguments.seconds, not arguments.cold)
        rows.append({"shape": s, "tessera": ours[index], "torch": theirs})
        print(f"  {group} {index + 1}/{len(shapes)}", file=sys.stderr)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tessera", default="tessera", help="the executable (default: found in PATH)")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"what to run (default: {','.join(GROUPS)})")
    parser.add_argument("--seconds", type=float, default=0.15, help="to sample each measurement for")
    parser.add_argument("--quick", action="store_true", help="a few shapes of each group")
    parser.add_argument("--alone", action="store_true", help="tessera's side only, where there is no PyTorch")
    parser.add_argument("--cold", action="store_true", help="calls take copies of the inputs in turn, beyond the cache")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--markdown", metavar="FILE", help="write the tables there as Markdown")
    parser.add_argument("--update", metavar="FILE", help="replace the part of this Markdown file between the markers")
    parser.add_argument("--from", dest="results", metavar="FILE", help="measure nothing: take the results that --json wrote")
    arguments = parser.parse_args()
    wanted = arguments.groups.split(",")
    if unknown := [g for g in wanted if g not in GROUPS]:
        parser.error(f"there is no group {unknown[0]}; known: {', '.join(GROUPS)}")

    if arguments.results:
        with open(arguments.results, encoding="utf-8") as f:
            document = json.load(f)
    else:
        try:
            document = measure(wanted, arguments)
        except tessera_runs.TesseraFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            return 1

    print(tables.text(document))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as f:
            json.dump(document, f, indent=1)
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="utf-8") as f:
            f.write(tables.markdown(document))
    if arguments.update:
        tables.update_file(arguments.update, document)
    return 1 if tables.failures(document) else 0


if __name__ == "__main__":
    sys.exit(main())
