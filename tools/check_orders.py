#!/usr/bin/env python3
"""Check that docs/contributing/memory-orders.md covers every file in csrc/ with atomic variables."""
import re
import sys
from pathlib import Path

PAGE = Path("docs/contributing/memory-orders.md")
ATOMIC = re.compile(r"\batomic_\w+|\b_Atomic\b|\bmemory_order_")


def files_without_words():
    words = PAGE.read_text()
    files = [path for path in sorted(Path("csrc").rglob("*.[ch]")) if ATOMIC.search(path.read_text())]
    return files, [path for path in files if "`" + path.parts[1] + "/" not in words]


def main():
    files, missing = files_without_words()
    for path in missing:
        print(f"{PAGE} does not cover the atomic variables in {path}")
    print(f"orders: {len(files)} files with atomic variables")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
