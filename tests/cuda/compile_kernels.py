"""Compiles every CUDA kernel module for further architectures and looks for register spills in the tuned ones.

Usage: compile_kernels.py NVCC KERNELS_FOLDERS MODULES_FILE LOGS_FILE WORK_FOLDER ARCHITECTURE...

KERNELS_FOLDERS are joined by colons. MODULES_FILE has a line "source|defines|tuned" for each module, tuned being 0 or
1. LOGS_FILE has a line "source|defines|architecture|log" for each that the build has compiled: of these the log is read
instead. Of the others a part is compiled: each tuned module for one of the architectures that it has no log for,
another than its neighbour, one of modules that differ in the 16-bit type alone, of which bf16's logs are f16's, too;
one that is not tuned only if the build has not compiled it for any; each format of blocks for every other source. With
an empty LOGS_FILE, for who changes kernels, tuned ones are compiled for all and others for the last. Exits with 1,
after all messages, if a module does not compile, if a tuned one spills, or if wgmma products are serialised: ptxas only
says so (C7508 to C7517) and goes on. Tiles were chosen for the registers of sm_80 and sm_90a; for others the compiler
may be a register or two short.
"""

import concurrent.futures
import os
import re
import subprocess
import sys


def find_source(folders, source):
    return next(path for folder in folders if os.path.exists(path := os.path.join(folder, source)))


def compile_module(nvcc, folders, source, defines, architecture, output):
    command = [nvcc, "-cubin", f"-arch={architecture}", "-std=c++17", "-DTESSERA_WARP_SIZE=32", "-Xptxas", "-v"]
    command += [f"-I{folder}" for folder in folders]
    command += [f"-D{define}" for define in defines.split()]
    command += ["-o", output, find_source(folders, source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode == 0, result.stdout + result.stderr


def read_log(path):
    with open(path, encoding="utf-8") as f:
        return True, f.read()


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return [line.rstrip("\n").split("|") for line in f if line.strip()]


def spilled_bytes(log):
    """The most of a kernel."""
    return max((int(n) for n in re.findall(r"(\d+) bytes spill stores", log)), default=0)


def allowed_bytes(architecture):
    return 0 if architecture in ("sm_80", "sm_90a") else 8


def architectures_of(modules, logs, architectures):
    """Those that each module is compiled for, in the modules' order."""
    chosen = []
    seen = set()
    formats, sources = {}, {}  # of blocks, each with its number
    for source, defines, tuned in modules:
        twin = defines.replace("DTYPE=f16", "DTYPE=bf16")
        missing = [a for a in architectures if (source, defines, a) not in logs and (source, twin, a) not in logs]
        if source.startswith("sm90/"):
            missing = [a for a in missing if a == "sm_90a"]  # its instructions are Hopper's alone
        if tuned != "1":  # nobody looks at its registers: once is enough to see that its text compiles
            is_compiled = any((source, defines, a) in logs for a in architectures)
            missing = [] if is_compiled else missing[-1:]
        elif logs and len(missing) > 1:  # those without a choice take no turn
            kind = (source, defines.replace("DTYPE=bf16", "DTYPE=f16"))
            turn = len(seen) % len(missing)
            missing = [] if kind in seen else [missing[turn]]
            seen.add(kind)
        if logs and (found := re.match(r"TESSERA_BLOCKS=(\w+)", defines)):
            number = formats.setdefault(found[1], len(formats)) + sources.setdefault(source, len(sources))
            missing = [] if number % 2 else missing
        chosen.append(missing)
    return chosen


def main():
    nvcc, folders, modules_file, logs_file, work, *architectures = sys.argv[1:]
    folders = folders.split(":")
    modules = read_lines(modules_file)
    logs = {tuple(module): log for *module, log in read_lines(logs_file)}
    os.makedirs(work, exist_ok=True)
    failures = 0
    compiled = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {}
        chosen = architectures_of(modules, logs, architectures)
        for index, (source, defines, tuned) in enumerate(modules):
            for architecture in architectures:
                if log := logs.get((source, defines, architecture)):
                    job = pool.submit(read_log, log)
                elif architecture in chosen[index]:
                    compiled += 1
                    output = os.path.join(work, f"{index}_{architecture}.cubin")
                    job = pool.submit(compile_module, nvcc, folders, source, defines, architecture, output)
                else:
                    continue
                jobs[job] = (source, defines, tuned == "1", architecture)
        for job in concurrent.futures.as_completed(jobs):
            source, defines, tuned, architecture = jobs[job]
            compiles, log = job.result()
            name = f"{source} [{defines}] for {architecture}"
            if not compiles:
                failures += 1
                print(f"{name} does not compile:\n{log}")
            elif tuned and "spill stores" not in log:
                failures += 1
                print(f"{name}: the compiler's log says nothing of registers:\n{log}")
            elif "(C75" in log:
                failures += 1
                print(f"{name}: the tensor cores' products wait for each other:\n{log}")
            elif tuned and spilled_bytes(log) > allowed_bytes(architecture):
                failures += 1
                print(f"{name} spills {spilled_bytes(log)} bytes of registers:\n{log}")
    print(f"{len(modules)} modules for {', '.join(architectures)}, {compiled} compiled, {len(jobs) - compiled} logs: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
