#!/usr/bin/env python3
"""Reduce a libnccl.so.2 to the code of one GPU architecture, for a slow transfer.

    python tools/thin_nccl.py PATH/libnccl.so.2 FOLDER [--sm 90]

FOLDER gets libnccl.so.2, with the code of other architectures zeroed and symbols stripped, and
libnccl.so.2.xz for the transfer, which tests/gpu/run.sh unpacks into build/gpu/nccl. The result
must load and report the original's version; only a GPU of that architecture can show that its
kernels run.

Device code is in fatbins: a header, and a list of images, each with a header that describes it.
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
"""Magic, version, size of this header, size of the data after it."""
FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
IMAGE = struct.Struct("<HHIQ12xI")
"""Kind, attributes, size of this header, size of the image, ..., architecture."""
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
    """The library cannot be thinned; the message has the reason."""


def images_of_fatbin(data: mmap.mmap | bytes, start: int, end: int) -> list[Image] | None:
    """Return the images from start to end, or None if the data is not a list of images."""
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
    """Yield all images of all fatbins. The magic number also occurs by chance; such data is
    skipped."""
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
    """Zero, in place, all images except machine code of the architecture; return the bytes kept and
    zeroed."""
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
    """Return the version that the library reports, loaded in a separate process."""
    code = "import ctypes, sys; v = ctypes.c_int(); r = ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(r, v.value)"
    done = subprocess.run([sys.executable, "-c", code, str(path.resolve())], capture_output=True, text=True, timeout=120)
    result, _, version = done.stdout.strip().partition(" ")
    if done.returncode != 0 or result != "0":
        raise Refused(f"{path} does not load, or has no version: {done.stderr.strip() or done.stdout.strip()}")
    return version


def pack(path: Path) -> Path:
    """Compress the file into a new file beside it."""
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
    print(f"NCCL {version}: sm_{architecture} has {kept / MIB:.1f} MiB of code; {zeroed / MIB:.1f} MiB are zeroed")
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
