"""Makes the tables of bench/compare from stored results: ratios, rates and what could not be measured.

Usage: compare_tables_test.py COMPARE_FOLDER RESULTS WORK_FOLDER
"""

import copy
import json
import os
import subprocess
import sys


def expect(condition, what):
    if not condition:
        sys.exit(f"failed: {what}")


def row_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start)).split("|")


PRETENDED_TESSERA = """#!{python}
import json, sys
arguments = sys.argv[1:]
if arguments[0] == "info":
    hip = {{"gpus": [{{"name": "hip:0", "model": "MI300X"}}], "driver_version": "6.3", "hip_version": "6.3"}}
    cuda = {{"gpus": [], "unavailable_reason": "no driver"}}
    print(json.dumps({{"version": "1", "commit": "c0ffee", "devices": [{{"model": "a CPU"}}], "cuda": cuda, "hip": hip}}))
else:
    backends = arguments[arguments.index("--backend") + 1].split(",")
    results = [{{"problem_index": i, "backend": b, "ms": 0.5, "share_of_ceiling": 0.5, "error": 0.001}}
               for i, _ in enumerate(sys.stdin) for b in backends]
    print(json.dumps({{"results": results, "failures": []}}))
"""


def pretended_tessera(folder):
    """A program that prints what tessera would on an AMD GPU."""
    path = os.path.join(folder, "tessera.py")
    with open(path, "w", encoding="utf-8") as f:
        f.write(PRETENDED_TESSERA.format(python=sys.executable))
    os.chmod(path, 0o755)
    return path


def main():
    folder, results, work = sys.argv[1:]
    sys.dont_write_bytecode = True
    sys.path.insert(0, folder)
    import tables

    with open(results, encoding="utf-8") as f:
        document = json.load(f)
    text = tables.markdown(document)
    prefill = document["groups"]["prefill"][0]
    name = tables.prefill_name(prefill["shape"])
    cells = [cell.strip() for cell in row_of(text, f"| {name} |")]
    ours, flash = prefill["tessera"]["cuda"]["ms"], prefill["torch"]["flash"]["ms"]
    s = prefill["shape"]
    visible = sum(min(i + 1, s["seq_len_kv"]) if s["causal"] else s["seq_len_kv"] for i in range(s["seq_len_q"]))
    tflops = 4 * s["batch"] * s["num_heads"] * s["head_dim"] * visible / ours / 1e9
    expect(cells[2] == f"{tflops:.0f}", f"{tflops} TFLOP/s in {cells}")
    expect(f"{flash / ours:.2f}" in cells, f"the ratio {flash / ours} in {cells}")
    expect(not tables.failures(document), "nothing that was not measured")

    # An AMD GPU's results say so, and stand under its backends' names.
    amd = json.loads(json.dumps(document).replace('"cuda', '"hip'))
    amd["environment"].update(family="hip", hip_of_torch="6.3.42134")
    expect(row_of(tables.markdown(amd), f"| {name} |") == row_of(text, f"| {name} |"), "the same rates on AMD")
    expect("HIP 6.3.42134" in tables.heading(amd) and "CUDA" not in tables.heading(amd), tables.heading(amd))
    if "unfused" in document["groups"]:
        expect("hip_unfused / hip" in tables.text(amd), "the unfused backend by its name")

    broken = copy.deepcopy(document)
    broken["groups"]["prefill"][0]["tessera"]["cuda"] = {"failure": "out of memory"}
    broken["groups"]["rows"] = {"failure": "no such command"}
    expect("out of memory" in tables.text(broken) and "no such command" in tables.text(broken), "reasons in the text")
    expect(len(tables.failures(broken)) == 2, "two failures")

    shape = {**s, "causal": False, "modifier": "softcap"}
    row = {"shape": shape, "tessera": {"cuda": {"ms": 0.5, "error": 0.001}}, "torch": {"flex": {"ms": 1.25, "error": 0.002}}}
    modified = {**document, "groups": {"modifiers": [row, {**row, "torch": {}}]}}
    expect("| softcap | 0.5000 | 1.2500 | 2.50 | 1.0e-03 | 2.0e-03 |" in tables.markdown(modified), "a modifier's ratio")
    expect("| softcap | 0.5000 | - | - | 1.0e-03 | - |" in tables.markdown(modified), "a modifier without PyTorch")

    os.makedirs(work, exist_ok=True)
    page = os.path.join(work, "page.md")
    for _ in range(2):  # a second time replaces what the first wrote
        if not os.path.exists(page):
            with open(page, "w", encoding="utf-8") as f:
                f.write(f"before\n{tables.BEGIN_MARK}old\n{tables.END_MARK}after\n")
        command = [sys.executable, "-B", os.path.join(folder, "compare.py"), "--from", results, "--update", page]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        expect(result.returncode == 0, result.stderr)
        expect(result.stdout.strip() == tables.text(document).strip(), "the text on standard output")
        with open(page, encoding="utf-8") as f:
            content = f.read()
        expect(content == f"before\n{tables.BEGIN_MARK}{text}{tables.END_MARK}after\n", f"the tables in {content}")
    os.remove(page)

    # Without PyTorch there is one sentence, no traceback.
    with open(os.path.join(work, "torch.py"), "w", encoding="utf-8") as f:
        f.write("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    command = [sys.executable, "-B", os.path.join(folder, "compare.py"), "--groups", "decode"]
    environment = {**os.environ, "PYTHONPATH": work}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    expect(result.returncode == 1 and result.stderr.startswith("error: there is no Python package 'torch'"), result.stderr)
    expect(result.stderr.count("\n") == 1, result.stderr)

    # --alone does without it, on the GPU that tessera finds.
    command = [sys.executable, "-B", os.path.join(folder, "compare.py"), "--alone", "--quick", "--groups", "decode,modifiers,unfused"]
    command += ["--tessera", pretended_tessera(work)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    expect(result.returncode == 0, result.stderr)
    expect(result.stdout.startswith("MI300X, driver 6.3, tessera 1 (c0ffee), without PyTorch. Replays of HIP"), result.stdout)
    expect("B16 S8192" in result.stdout and "softcap" in result.stdout and "hip_unfused / hip" in result.stdout, result.stdout)
    print("passed")


if __name__ == "__main__":
    main()
