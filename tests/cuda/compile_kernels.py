"""Compiles every CUDA kernel module for further architectures and looks for register spills in the tuned ones.

Usage: compile_kernels.py NVCC KERNELS_FOLDER MODULES_FILE WORK_FOLDER ARCHITECTURE...

MODULES_FILE has a line "source|defines|tuned" for each module, tuned being 0 or 1. Exits with 1, after all messages, if
a module does not compile or a tuned one spills.
"""

import concurrent.futures
import os
import re
import subprocess
import sys


def compile_module(nvcc, folder, source, defines, architecture, output):
    command = [nvcc, "-cubin", f"-arch={architecture}", "-std=c++17", "-Xptxas", "-v", f"-I{folder}"]
    command += [f"-D{define}" for define in defines.split()]
    command += ["-o", output, os.path.join(folder, source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def spilled_bytes(log):
    return sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", log))


def main():
    nvcc, folder, modules_file, work, *architectures = sys.argv[1:]
    with open(modules_file, encoding="utf-8") as f:
        modules = [line.rstrip("\n").split("|") for line in f if line.strip()]
    os.makedirs(work, exist_ok=True)
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {}
        for index, (source, defines, tuned) in enumerate(modules):
            for architecture in architectures:
                output = os.path.join(work, f"{index}_{architecture}.cubin")
                job = pool.submit(compile_module, nvcc, folder, source, defines, architecture, output)
                jobs[job] = (source, defines, tuned == "1", architecture)
        for job in concurrent.futures.as_completed(jobs):
            source, defines, tuned, architecture = jobs[job]
            result = job.result()
            log = result.stdout + result.stderr
            name = f"{source} [{defines}] for {architecture}"
            if result.returncode != 0:
                failures += 1
                print(f"{name} does not compile:\n{log}")
            elif tuned and spilled_bytes(log) > 0:
                failures += 1
                print(f"{name} spills {spilled_bytes(log)} bytes of registers:\n{log}")
    print(f"{len(modules)} modules for {', '.join(architectures)}: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
