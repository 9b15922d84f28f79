#!/usr/bin/env python3
"""Thins a libnccl.so.2 to the code of one GPU architecture, so that it can be carried to a machine with little room on the way.

    python tools/thin_nccl.py PATH/libnccl.so.2 FOLDER [--sm 90]

FOLDER gets libnccl.so.2, where the code of the other architectures is zeros and symbols are stripped, and libnccl.so.2.xz, which is to
be carried: tests/gpu/run.sh unpacks it in build/gpu/nccl. The thinned library must load and be of the same version as the one it came
from. Whether its kernels run, a GPU of that architecture alone can say.

Device code lies in the library as fatbins: a header, and a list of images, each with a header of its own that says what it holds.
"""

from __future__ import annotations

import argparse
import lzma
import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FATBIN = struct.Struct("<IHHQ")
"""Magic, version, bytes of this header, bytes after it."""
FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
IMAGE = struct.Struct("<HHIQ12xI")
"""Kind, attributes, bytes of this header, bytes of the image, ..., architecture."""
MACHINE_CODE = 2
LONGEST_HEADER = 4096
MIB = 1 << 20


class Image(NamedTuple):
    """Code for one architecture: machine code, or PTX (kind 1)."""

    kind: int
    architecture: int
    start: int
    nbytes: int

    def is_code_of(self, architecture: int) -> bool:
        return self.kind == MACHINE_CODE and self.architecture == architecture


class Refused(Exception):
    """The library cannot be thinned; the text says why."""


def images_of_fatbin(data: mmap.mmap | bytes, start: int, end: int) -> list[Image] | None:
    """The images from start to end; None if what is there is not a list of images."""
    images = []
    while start < end:
        if start + IMAGE.size > end:
            return None
        kind, _, header, nbytes, architecture = IMAGE.unpack_from(data, start)
        if not IMAGE.size <= header <= LONGEST_HEADER or start + header + nbytes > end:
            return None
        images.append(Image(kind, architecture, start + header, nbytes))
        start += header + nbytes
    return images


def find_images(data: mmap.mmap | bytes) -> Iterator[Image]:
    """All images of all fatbins. The magic number turns up by chance, too: what does not read as a fatbin is none."""
    at = data.find(FATBIN_MAGIC)
    while at >= 0:
        after = at + len(FATBIN_MAGIC)
        if at + FATBIN.size <= len(data):
            _, version, header, nbytes = FATBIN.unpack_from(data, at)
            end = at + header + nbytes
            if version == 1 and header == FATBIN.size and end <= len(data):
                images = images_of_fatbin(data, at + header, end)
                if images is not None:
                    yield from images
                    after = end
        at = data.find(FATBIN_MAGIC, after)


def zero_others(path: Path, architecture: int) -> tuple[int, int]:
    """Zeroes, in place, the images that are not machine code of the architecture; gives the bytes kept and zeroed."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        images = list(find_images(data))
        if not any(image.is_code_of(architecture) for image in images):
            names = sorted({image.architecture for image in images if image.kind == MACHINE_CODE})
            has = ", ".join(f"sm_{name}" for name in names) or "no code of a GPU"
            raise Refused(f"{path} has no code of sm_{architecture}; it has: {has}")
        kept = zeroed = 0
        for image in images:
            if image.is_code_of(architecture):
                kept += image.nbytes
            else:
                data[image.start : image.start + image.nbytes] = bytes(image.nbytes)
                zeroed += image.nbytes
    return kept, zeroed


def version_of(path: Path) -> str:
    """What the library says of itself, loaded in a process of its own."""
    code = "import ctypes, sys; v = ctypes.c_int(); r = ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(r, v.value)"
    done = subprocess.run([sys.executable, "-c", code, str(path.resolve())], capture_output=True, text=True, timeout=120)
    result, _, version = done.stdout.strip().partition(" ")
    if done.returncode != 0 or result != "0":
        raise Refused(f"{path} does not load, or has no version: {done.stderr.strip() or done.stdout.strip()}")
    return version


def pack(path: Path) -> Path:
    """The file compressed, beside it."""
    packed = path.with_name(path.name + ".xz")
    with path.open("rb") as plain, lzma.open(packed, "wb") as compressed:
        shutil.copyfileobj(plain, compressed, MIB)
    return packed


def thin(source: Path, folder: Path, architecture: int) -> None:
    version = version_of(source)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "libnccl.so.2"
    if target.exists() and target.samefile(source):
        raise Refused(f"{source} is what would be written")
    shutil.copyfile(source, target)
    kept, zeroed = zero_others(target, architecture)
    subprocess.run(["strip", "--strip-unneeded", target], check=True, timeout=300)
    thinned = version_of(target)
    if thinned != version:
        raise Refused(f"{target} says that it is {thinned}, and {source} is {version}")
    packed = pack(target)
    print(f"NCCL {version}: sm_{architecture} has {kept / MIB:.1f} MiB of code; {zeroed / MIB:.1f} MiB are zeros now")
    for path in (source, target, packed):
        print(f"{path.stat().st_size / MIB:8.1f} MiB  {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sm", type=int, default=90, help="the architecture: 90 for an H100 or H200")
    options = parser.parse_args()
    try:
        thin(options.library, options.folder, options.sm)
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
