"""What the tessera executable measures, as the JSON it prints."""

import json
import subprocess

import modifiers


class TesseraFailed(Exception):
    """The executable could not do what was asked; str() is what it said."""


def run_json(tessera, arguments, stdin=None):
    try:
        result = subprocess.run(
            [tessera, *arguments, "--json"], input=stdin, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise TesseraFailed(f"{tessera} can't be started: {error}") from error
    try:
        return json.loads(result.stdout)
    except json.JSONDecodeError as error:
        raise TesseraFailed(result.stderr.strip() or f"exit code {result.returncode}, no JSON") from error


def first_gpu(tessera):
    """Family and name of the GPU that tessera would take."""
    info = run_json(tessera, ["info"])
    for family in ("cuda", "hip"):
        if gpus := info.get(family, {}).get("gpus", []):
            return family, gpus[0]["model"]
    reasons = "; ".join(info[family]["unavailable_reason"] for family in ("cuda", "hip") if family in info)
    raise TesseraFailed(f"tessera finds no GPU: {reasons}")


def environment(tessera, family):
    info = run_json(tessera, ["info"])
    gpu = info.get(family, {})
    return {
        "tessera": info["version"],
        "commit": info["commit"],
        "family": family,
        "driver": gpu.get("driver_version", ""),
        f"{family}_of_driver": gpu.get(f"{family}_version", ""),
        "cpu": info["devices"][0]["model"],
    }


def options_of(shape):
    """A shape as options of `tessera bench attention`."""
    words = [
        f"--{name.replace('_', '-')} {shape[name]}"
        for name in ("dtype", "batch", "seq_len_q", "seq_len_kv", "num_heads", "num_kv_heads", "head_dim")
    ]
    words += [modifiers.OPTIONS[shape["modifier"]]] if "modifier" in shape else []
    return " ".join(words + (["--causal"] if shape["causal"] else []))


def attention(tessera, backends, shapes, seconds, warm):
    """For each shape what each backend came to: {backend: result or {"failure": why}}. One process for all."""
    arguments = ["bench", "attention", "--list", "--backend", ",".join(backends), "--seconds", str(seconds)]
    if warm:
        arguments.append("--warm")
    document = run_json(tessera, arguments, "\n".join(options_of(s) for s in shapes) + "\n")
    results = [{} for _ in shapes]
    for result in document["results"]:
        results[result["problem_index"]][result["backend"]] = result
    for failure in document["failures"]:
        backend, _, message = failure["message"].partition(": ")
        results[failure["problem_index"]][backend] = {"failure": message}
    return results


def kernels(tessera, family, seconds):
    """Results of `tessera bench kernels` on the GPU."""
    return run_json(tessera, ["bench", "kernels", "--backend", family, "--seconds", str(seconds)])["results"]


def models(tessera, family, quick):
    """Whole models of random weights: {"name", "weight_dtype", "batch", ...} each, or {"failure"}."""
    runs = [("llama-8b", dtype, batch, tokens) for dtype in ("bf16", "q8_0") for batch, tokens in ((1, 2048), (16, 128))]
    if quick:
        runs = [("llama-1b", "bf16", 1, 512)]
    results = []
    for name, dtype, batch, prompt_tokens in runs:
        arguments = ["bench", "model", "--backend", family, "--shape", name, "--dtype", dtype]
        arguments += ["--activation-dtype", "bf16"]
        arguments += ["--batch", str(batch), "--prompt-tokens", str(prompt_tokens), "--gen-tokens", "64"]
        try:
            results.append(run_json(tessera, arguments)["results"][0])
        except TesseraFailed as failure:
            results.append({"name": name, "weight_dtype": dtype, "batch": batch, "failure": str(failure)})
    return results
