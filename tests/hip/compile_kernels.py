"""Checks every HIP kernel module for every GPU that it is built for, by what the compiler wrote into the code objects.

Usage: compile_kernels.py [--list] COMPILER READELF FOLDERS SIMT_TESTS MODULES_FILE WORK_FOLDER FLAG...

FOLDERS, joined by colons, are where kernels include from. MODULES_FILE has a line "source|target|defines|entries|code
object" for each module: code objects that the build has made are read, others are compiled now. A module of
kernels/common must have the entries that SIMT_TESTS/kernels_<source>.cpp lists, one of kernels/matrix those of its
line. Exits with 1, after all messages, if a module does not compile, lacks a kernel, spills vector registers or takes
more local memory (LDS) than a workgroup may, and if a kernel uses scratch memory, the baseline's apart. Attention's
kernels are also compiled with all score terms, decode's of fp32 with rows that no wide load fits, and prefill's for
batch-invariant problems, which keep joined rows in scratch memory: the build leaves these to run time. --list prints
each kernel's resources.
"""

import concurrent.futures
import os
import re
import subprocess
import sys

LDS_BYTES = 64 * 1024  # of a workgroup, on every target
MAY_USE_SCRATCH = {"common/attention_unfused.cu"}  # the baseline, for arrays
INVARIANT = "TESSERA_INVARIANT=1"
ALL_TERMS, MASK_F16, MASK_BF16 = 31, 1, 2  # kAllTerms, kMaskF16, kMaskBF16 of common/attention_params.h
FIELDS = {
    "vgpr_count", "agpr_count", "sgpr_count", "vgpr_spill_count", "sgpr_spill_count",
    "private_segment_fixed_size", "group_segment_fixed_size",
}  # fmt: skip


def wave_size(target):
    return 64 if target.startswith("gfx9") else 32


def waves_per_simd(target, registers):
    """How many waves' vector registers a SIMD holds. gfx9: `registers` counts both kinds, which share one file."""
    if target.startswith("gfx9"):
        total, granule, most = 512, 8, 8
    elif target in ("gfx1102", "gfx1103", "gfx1150", "gfx1152", "gfx1153"):
        total, granule, most = 1024, 16, 16
    else:
        total, granule, most = 1536, 24, 16
    return min(most, total // (-(-max(registers, 1) // granule) * granule))


def find_source(folders, source):
    return next(path for folder in folders if os.path.exists(path := os.path.join(folder, source)))


def options_of(target, defines, folders):
    return [f"--offload-arch={target}", f"-DTESSERA_WARP_SIZE={wave_size(target)}",
            *(f"-D{define}" for define in defines.split()), *(f"-I{folder}" for folder in folders)]  # fmt: skip


def kernels_of(readelf, image):
    """Name -> resources, from the code object's notes."""
    notes = subprocess.run([readelf, "--notes", image], capture_output=True, text=True, check=True).stdout
    kernels = {}
    current = {}
    for line in notes.splitlines():
        if line.startswith("  - "):
            current = {}
        field = re.match(r"^  (?:  |- )\.(\w+):\s+(\S+)$", line)  # of a kernel, not of one of its arguments
        if not field:
            continue
        name, value = field.groups()
        if name == "name":
            kernels[value.strip("'")] = current
        elif name in FIELDS:
            current[name] = int(value)
    return kernels


def entries_of_common(compiler, flags, folders, simt_tests, source):
    """The kernels that the host executor's table names for a source of kernels/common."""
    table = os.path.join(simt_tests, f"kernels_{os.path.splitext(os.path.basename(source))[0]}.cpp")
    if not os.path.exists(table):
        return set()
    with open(os.path.join(simt_tests, "kernel_table.h"), encoding="utf-8") as f:
        macros = re.findall(r"^#define TESSERA_ENTRIES(?:.*\\\n)*.*\n", f.read(), re.MULTILINE)
    with open(table, encoding="utf-8") as f:
        text = f.read().replace('#include "simt/kernel_table.h"', "#define TESSERA_ENTRY(x) entry of x !")
    text = "".join(macros) + text
    command = [compiler, *flags, *options_of("gfx1100", "", folders), "-E", "-P", "-"]
    expanded = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"entry of (\w+) !", expanded))


def with_terms(modules):
    """
    Of each attention kernel on matrix units, for each target, one module with all terms and an additive mask, of both
    16-bit types by turns.
    """
    found = {}
    for source, target, defines, entries, _ in modules:
        if source.startswith("matrix/attention_") and "DTYPE=bf16 TESSERA_HEAD_DIM_QK=128" in defines:
            is_f16 = len([1 for other, _ in found if other == source]) % 2 == 1
            mask_dtype = MASK_F16 if is_f16 else MASK_BF16
            changed = defines.replace("TERMS=0 TESSERA_MASK_DTYPE=0", f"TERMS={ALL_TERMS} TESSERA_MASK_DTYPE={mask_dtype}")
            if is_f16:
                changed = changed.replace("DTYPE=bf16 TESSERA_HEAD", "DTYPE=f16 TESSERA_HEAD")
            found.setdefault((source, target), [source, target, changed, entries, ""])
    return list(found.values())


def with_unaligned_rows(modules):
    """Of the decode kernel of fp32, for each target, one module of the largest heads whose rows are read by element."""
    found = {}
    for source, target, defines, entries, _ in modules:
        if source == "matrix/attention_decode.hip" and "DTYPE=f32 TESSERA_HEAD_DIM_QK=128" in defines:
            changed = re.sub(r"(HEAD_DIM_\w+)=128", r"\1=256", defines).replace("VECTOR=1", "VECTOR=0")
            found.setdefault(target, [source, target, changed, entries, ""])
    return list(found.values())


def with_invariant_rows(modules):
    """Of the prefill kernel, for each target, one module for batch-invariant problems."""
    found = {}
    for source, target, defines, entries, _ in modules:
        if source == "matrix/attention_prefill.hip" and "DTYPE=bf16 TESSERA_HEAD_DIM_QK=128" in defines:
            found.setdefault(target, [source, target, f"{defines} {INVARIANT}", entries, ""])
    return list(found.values())


def check_module(compiler, readelf, flags, folders, module, expected, output):
    """The module's kernels and what is wrong with it."""
    source, target, defines, _, image = module
    if not os.path.exists(image):
        image = output
        command = [compiler, *flags, *options_of(target, defines, folders), find_source(folders, source), "-o", image]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            return {}, [f"does not compile:\n{result.stdout}{result.stderr}"]
    kernels = kernels_of(readelf, image)
    faults = []
    if missing := expected - set(kernels):
        faults.append(f"lacks {', '.join(sorted(missing))}; it has {', '.join(sorted(kernels))}")
    if not expected:
        faults.append("has no list of the kernels that must be in it")
    for name, found in kernels.items():
        if FIELDS - {"agpr_count"} - set(found):
            faults.append(f"{name}: its notes lack {', '.join(sorted(FIELDS - set(found)))}")
            continue
        if found["vgpr_spill_count"] > 0:
            faults.append(f"{name} spills {found['vgpr_spill_count']} vector registers")
        may_use_scratch = source in MAY_USE_SCRATCH or INVARIANT in defines
        if not may_use_scratch and found["private_segment_fixed_size"] > 0:
            faults.append(f"{name} uses {found['private_segment_fixed_size']} bytes of scratch memory a lane")
        if found["group_segment_fixed_size"] > LDS_BYTES:
            faults.append(f"{name} takes {found['group_segment_fixed_size']} bytes of local memory, {LDS_BYTES} are there")
    return kernels, faults


def print_kernels(module, kernels):
    source, target, defines = module[:3]
    for name, found in sorted(kernels.items()):
        registers = found["vgpr_count"]
        print(f"{target} {source} [{defines}] {name}: {registers} VGPRs ({found.get('agpr_count', 0)} of them AGPRs), "
              f"{found['sgpr_count']} SGPRs, {waves_per_simd(target, registers)} waves a SIMD, "
              f"LDS {found['group_segment_fixed_size']}, scratch {found['private_segment_fixed_size']}")  # fmt: skip


def main():
    arguments = sys.argv[1:]
    is_list = arguments[0] == "--list"
    compiler, readelf, folders, simt_tests, modules_file, work, *flags = arguments[1 if is_list else 0 :]
    folders = folders.split(":")
    with open(modules_file, encoding="utf-8") as f:
        modules = [line.rstrip("\n").split("|") for line in f if line.strip()]
    modules += with_terms(modules) + with_unaligned_rows(modules) + with_invariant_rows(modules)
    os.makedirs(work, exist_ok=True)
    failures = 0
    num_kernels = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        common = sorted({module[0] for module in modules if module[0].startswith("common/")})
        tables = dict(zip(common, pool.map(
            lambda source: entries_of_common(compiler, flags, folders, simt_tests, source), common)))  # fmt: skip
        jobs = []
        for index, module in enumerate(modules):
            expected = set(module[3].split()) or tables.get(module[0], set())
            output = os.path.join(work, f"{index}.co")
            jobs.append(pool.submit(check_module, compiler, readelf, flags, folders, module, expected, output))
        for module, job in zip(modules, jobs):
            kernels, faults = job.result()
            num_kernels += len(kernels)
            failures += len(faults)
            for fault in faults:
                print(f"{module[0]} [{module[2]}] for {module[1]}: {fault}")
            if is_list:
                print_kernels(module, kernels)
    print(f"{len(modules)} modules with {num_kernels} kernels: {failures} failures")
    return 1 if failures or not modules else 0


if __name__ == "__main__":
    sys.exit(main())
