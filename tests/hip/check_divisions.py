"""Looks for unsigned divisions of sign-extended numbers in the HIP kernels, which clang 19 miscompiles.

Usage: check_divisions.py COMPILER FOLDERS MODULES_FILE FLAG...

Where both operands of an unsigned division or remainder have copies of the sign bit to spare, clang 19 takes a shorter
path for numbers of 24 bits (or 32 of 64), which is right only for those that are not negative: of a short x = -1 and an
unsigned char y = 1, (unsigned)x / y becomes 32767 in place of 4294967295. Of the lines in MODULES_FILE
("source|target|defines|...") few are compiled to LLVM's text, which have among them every definition of each source,
sizes counting as one, those with matrix instructions for an MFMA and a WMMA target. The dividend of each udiv and urem
is followed back to where its sign may come from. First this must find the pattern in a source that has it. Exits with 1
if it is in a kernel.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

from compile_kernels import find_source, options_of

PATTERN = """
#define KERNEL extern "C" __attribute__((global)) void
KERNEL faulty(unsigned* out, const short* x, const short* y, unsigned char z) { out[0] = (unsigned)(x[0] + y[0]) / z; }
KERNEL sound(unsigned* out, const short* x, const short* y, unsigned char z) { out[0] = (x[0] & 0x7fff) / z + y[0] / z; }
"""

# Whose results have as many copies of the sign as what goes in, or one less.
FOLLOWED = {"add", "sub", "mul", "or", "xor", "shl", "select", "phi", "freeze", "trunc"}
NOT_NEGATIVE = {"zext", "lshr", "and", "udiv", "urem", "uitofp"}


def suspicious_divisions(text):
    """Lines of LLVM's text that divide, unsigned, what may be a negative number of few bits."""
    found = []
    for body in re.findall(r"^define .*?^}", text, re.MULTILINE | re.DOTALL):
        definitions = dict(re.findall(r"^  (%[\w.]+) = (.*)$", body, re.MULTILINE))

        def sign_of(value, seen):
            """"few": of few bits, not negative; "signed": of few bits; "any": of any size."""
            line = definitions.get(value, "")
            opcode = line.split()[0] if line else ""
            if opcode in ("sext", "ashr"):
                return "signed"
            if opcode in NOT_NEGATIVE or value in seen:
                return "few"
            seen.add(value)
            if opcode not in FOLLOWED and ".smin." not in line and ".smax." not in line:
                return "few" if "range(" in line else "any"
            operands = line.split(",", 1)[1] if opcode == "select" else line
            signs = {sign_of(operand, seen) for operand in re.findall(r"%[\w.]+", operands) if operand in definitions}
            signs |= {"any" for operand in re.findall(r"%[\w.]+", operands) if operand not in definitions and opcode != "phi"}
            signs |= {"signed" for _ in re.findall(r" -\d+", operands)}
            return next((sign for sign in ("any", "signed") if sign in signs), "few")

        for name, line in definitions.items():
            division = re.match(r"(?:udiv|urem)\s+(?:exact )?\S+ ([^,]+),", line)
            if division and sign_of(division[1], set()) == "signed":
                found.append(f"{name} = {line}")
    return found


def text_of(compiler, flags, path, options):
    command = [compiler, *flags, *options, "-S", "-emit-llvm", path, "-o", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def finds_the_pattern(compiler, flags):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pattern.hip")
        with open(path, "w", encoding="utf-8") as f:
            f.write(PATTERN)
        text = text_of(compiler, flags, path, options_of("gfx1100", "", []))
    return len(suspicious_divisions(text)) == 1


def traits_of(source, target, defines):
    """What a module shows of its source that others may not. Sizes and numbers of warps change no operand's sign."""
    kind = source
    if source.startswith("matrix/"):  # whose text depends on the target
        kind += " MFMA" if target.startswith("gfx9") else " WMMA"
    return {kind} | {kind + " " + re.sub(r"=([2-9]|\d\d+)$", "=", define) for define in defines.split()}


def modules_with_every_trait(modules):
    """Few of `modules`, each the one that adds most."""
    missing = set().union(*(traits_of(*module) for module in modules))
    some = []
    while missing:
        some.append(max(modules, key=lambda module: len(missing & traits_of(*module))))
        missing -= traits_of(*some[-1])
    return some


def main():
    compiler, folders, modules_file, *flags = sys.argv[1:]
    folders = folders.split(":")
    if not finds_the_pattern(compiler, flags):
        print("the faulty division in this test's own source was not found, or the sound one was")
        return 1
    with open(modules_file, encoding="utf-8") as f:
        modules = modules_with_every_trait([line.split("|")[:3] for line in f])
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            pool.submit(text_of, compiler, flags, find_source(folders, source), options_of(target, defines, folders)):
            (source, defines, target) for source, target, defines in modules
        }  # fmt: skip
        for job in concurrent.futures.as_completed(jobs):
            for line in suspicious_divisions(job.result()):
                failures += 1
                print("{} [{}] for {} divides a number as unsigned that may be negative: {}".format(*jobs[job], line))
    print(f"{len(modules)} modules: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
