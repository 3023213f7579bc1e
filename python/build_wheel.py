#!/usr/bin/env python3
"""Makes the wheel: the Python files, the C interface's library, and the libraries that it needs.

    cmake --build build/release --target tessera_c
    python3 python/build_wheel.py --library build/release/lib/libtessera_c.so --out dist

One file serves every Python 3 on every Linux with a C library as new as its name says. libstdc++ is not in it: one process
can have one only, and every system whose glibc will do has one as new as is needed.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent

# Of the system that the wheel is used on.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux.*|lib(c|m|mvec|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s))\.so")

# No times of this machine: the same input gives the same file.
TIME = (1980, 1, 1, 0, 0, 0)


def dependencies(library: pathlib.Path) -> list[pathlib.Path]:
    """The libraries that it loads, but for the system's."""
    found = []
    for line in subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout.splitlines():
        name, _, rest = line.strip().partition(" ")
        if SYSTEM.match(pathlib.Path(name).name):
            continue
        if "not found" in rest:
            raise SystemExit(f"error: {library} needs {name}, which was not found")
        found.append((name, pathlib.Path(rest.split()[1]).resolve()))
    return found


def glibc_needed(libraries: list[pathlib.Path]) -> tuple[int, int]:
    """The newest version of glibc's symbols that any of them uses."""
    versions = set()
    for library in libraries:
        text = subprocess.run(["readelf", "-W", "-V", library], check=True, capture_output=True, text=True).stdout
        versions |= {(int(a), int(b)) for a, b in re.findall(r"\bGLIBC_(\d+)\.(\d+)", text)}
    return max(versions)


def licence_of(library: pathlib.Path) -> tuple[str, pathlib.Path] | None:
    """Name and file of the licence of the Debian package that a library is from."""
    for path in (library, pathlib.Path("/usr") / library.relative_to("/")):
        found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True) if shutil.which("dpkg") else None
        if found is not None and found.returncode == 0:
            package = found.stdout.split(":")[0]
            copyright = pathlib.Path("/usr/share/doc") / package / "copyright"
            return (package, copyright) if copyright.exists() else None
    return None


def metadata(version: str) -> str:
    return "\n".join([
        "Metadata-Version: 2.1",
        "Name: tessera",
        f"Version: {version}",
        "Summary: Attention and language models on NVIDIA GPUs, AMD GPUs and CPUs",
        "License: Apache-2.0",
        "Requires-Python: >=3.9",
        "Requires-Dist: numpy>=1.21",
        "",
    ])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, required=True, help="the built libtessera_c.so")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder that the wheel goes to")
    options = parser.parse_args()

    loaded = ctypes.CDLL(str(options.library.resolve()))
    loaded.tessera_version.restype = ctypes.c_char_p
    version = loaded.tessera_version().decode()

    files: dict[str, bytes] = {}
    for path in sorted((HERE / "tessera").rglob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            files[str(path.relative_to(HERE))] = path.read_bytes()

    info = f"tessera-{version}.dist-info"
    files[f"{info}/licenses/LICENSE"] = (HERE.parent / "LICENSE").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for name, path in [("libtessera_c.so", options.library.resolve()), *dependencies(options.library)]:
            copy = pathlib.Path(folder) / name
            shutil.copy(path, copy)
            subprocess.run(["strip", "--strip-unneeded", copy], check=True)
            copies.append(copy)
            files[f"tessera/lib/{name}"] = copy.read_bytes()
            licence = licence_of(path) if name != "libtessera_c.so" else None
            if licence is not None:
                files[f"{info}/licenses/{licence[0]}"] = licence[1].read_bytes()
        glibc = glibc_needed(copies)

    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{platform.machine()}"
    files[f"{info}/METADATA"] = metadata(version).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: build_wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()

    options.out.mkdir(parents=True, exist_ok=True)
    wheel = options.out / f"tessera-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
