#!/usr/bin/env python3
"""Count the lines of csrc/ and pkg/, and fail if one exceeds its budget.

Code and comments count. Generated files do not: type stubs, which are written at build time, and
data (.inc). A change that needs more lines than are left must remove lines first.
"""
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = {"csrc": 87_260, "pkg": 33_650}
SUFFIXES = {".c", ".h", ".cu", ".py", ".in", ".cpp"}


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def sizes_of(folder: str) -> dict[str, int]:
    """Return the number of lines of each folder below `folder`."""
    sizes: dict[str, int] = {}
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in SUFFIXES:
            relative = path.relative_to(ROOT)
            part = "/".join(relative.parts[: min(len(relative.parts) - 1, 3 if folder == "pkg" else 2)])
            sizes[part] = sizes.get(part, 0) + count_lines(path)
    return sizes


def main() -> int:
    failures = 0
    for folder, budget in BUDGETS.items():
        sizes = sizes_of(folder)
        total = sum(sizes.values())
        if "--parts" in sys.argv:
            for part, nlines in sorted(sizes.items(), key=lambda item: -item[1]):
                print(f"  {part:30s} {nlines:6d}")
        print(f"size: {folder} has {total} lines, its budget is {budget}")
        failures += total > budget
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
