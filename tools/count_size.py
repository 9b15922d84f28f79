#!/usr/bin/env python3
"""Prints how large the parts of dldist are, in lines, and how many files name one operation. Code and comments count, generated stubs do not."""
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPERATION = "reduce_scatter_single"
PARTS = {
    "csrc without nccl and python": ("csrc", {".c", ".h"}, {"csrc/nccl", "csrc/python"}),
    "csrc/nccl": ("csrc/nccl", {".c", ".h"}, set()),
    "csrc/python": ("csrc/python", {".c", ".h"}, set()),
    "pkg": ("pkg", {".py"}, set()),
    "stubs of pkg": ("pkg", {".in"}, set()),
}


def files_of(folder: str, kinds: set[str], left_out: set[str]) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in kinds and not any(path.is_relative_to(ROOT / each) for each in left_out)
    ]


def main() -> None:
    for name, part in PARTS.items():
        files = files_of(*part)
        nlines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        print(f"{name:30s} {nlines:6d} lines in {len(files):3d} files")
    sources = files_of("csrc", {".c", ".h"}, set()) + files_of("pkg", {".py"}, set())
    named = [path.relative_to(ROOT).as_posix() for path in sources if OPERATION in path.read_text(encoding="utf-8")]
    print(f"{OPERATION} is named in {len(named)} files: {', '.join(named)}")


if __name__ == "__main__":
    main()
