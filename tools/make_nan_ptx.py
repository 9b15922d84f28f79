#!/usr/bin/env python3
"""Compile csrc/nccl/driver/nan_kernel.cu into nan_ptx.inc, so that builds need no NVIDIA tools.

    python tools/make_nan_ptx.py           write it (needs nvcc)
    python tools/make_nan_ptx.py --check   fail if it is out of date; also, if nvcc and ptxas are
                                           available, if it is not nvcc's output or ptxas rejects it

The PTX targets the oldest supported devices and drivers; newer ones accept it. nvcc only generates
newer versions, so this program writes the .version and .target directives, and ptxas checks the
instructions against them. CUDA_HOME is the folder of the tools.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNEL = ROOT / "csrc/nccl/driver/nan_kernel.cu"
MADE = ROOT / "csrc/nccl/driver/nan_ptx.inc"
# PTX 7.0 is CUDA 11.0's.
VERSION, TARGET = "7.0", "sm_52"
# The devices to test, if the installed ptxas knows them.
DEVICES = ("sm_52", "sm_60", "sm_70", "sm_75", "sm_80", "sm_90", "sm_100", "sm_120")

HEADER = """\
/* Made by tools/make_nan_ptx.py from nan_kernel.cu; not to be edited.
 * source: {digest}
 * nvcc: {release} */
"""


def find_tool(name: str) -> str | None:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return next((found for home in homes if home and (found := shutil.which(f"{home}/bin/{name}"))), shutil.which(name))


def digest() -> str:
    return hashlib.sha256(KERNEL.read_bytes()).hexdigest()


def compiled(nvcc: str) -> list[str]:
    """Return the lines of the PTX, without comments, for VERSION and TARGET."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernel.ptx"
        subprocess.run([nvcc, "-ptx", "-O3", "-arch=compute_75", str(KERNEL), "-o", str(made)], check=True)
        text = made.read_text(encoding="ascii")
    text = re.sub(r"^\.version .*$", f".version {VERSION}", text, flags=re.MULTILINE)
    text = re.sub(r"^\.target .*$", f".target {TARGET}", text, flags=re.MULTILINE)
    lines = [" ".join(line.split("//")[0].split()) for line in text.splitlines()]
    return [line for line in lines if line]


def release_of(nvcc: str) -> str:
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V[\d.]+", said)[0]


def made_by(nvcc: str) -> str:
    lines = compiled(nvcc)
    assert not any(character in line for line in lines for character in '"\\')
    return HEADER.format(digest=digest(), release=release_of(nvcc)) + "\n".join(f'    "{line}\\n"' for line in lines) + "\n"


def ptx_in(source: str) -> str:
    return "\n".join(re.findall(r'^ +"(.*)\\n"', source, re.MULTILINE)) + "\n"


def accepted(ptxas: str, ptx: str) -> tuple[list[str], list[str]]:
    """Return the devices that ptxas knows, and its errors for the PTX on them."""
    known, complaints = [], []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="ascii")
        for device in DEVICES:
            command = [ptxas, f"-arch={device}", str(source), "-o", str(Path(folder) / "kernel.cubin")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if "is not defined for option" in done.stderr:
                continue
            known.append(device)
            if done.returncode != 0:
                complaints.append(f"{device}: {done.stderr.strip()}")
    return known, complaints


def check() -> int:
    source = MADE.read_text(encoding="ascii")
    if digest() not in source:
        print(f"{MADE.relative_to(ROOT)} is out of date with nan_kernel.cu: run tools/make_nan_ptx.py", file=sys.stderr)
        return 1
    nvcc = find_tool("nvcc")
    if nvcc is not None and f"nvcc: {release_of(nvcc)}" in source and made_by(nvcc) != source:
        print(f"{MADE.relative_to(ROOT)} differs from the output of {nvcc}: run tools/make_nan_ptx.py", file=sys.stderr)
        return 1
    ptxas = find_tool("ptxas")
    if ptxas is None:
        print("nan_ptx.inc: matches nan_kernel.cu; not compiled, as ptxas is not installed")
        return 0
    known, complaints = accepted(ptxas, ptx_in(source))
    print("\n".join(complaints) or f"nan_ptx.inc: matches nan_kernel.cu; {ptxas} accepts it for {', '.join(known)}")
    return 1 if complaints or not known else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        return check()
    nvcc = find_tool("nvcc")
    if nvcc is None:
        raise SystemExit("nvcc is not installed")
    MADE.write_text(made_by(nvcc), encoding="ascii")
    return check()


if __name__ == "__main__":
    sys.exit(main())
