#!/usr/bin/env python3
"""Every mutex is a dd_lock, and docs/locks.md lists the kinds of csrc/core/lock.h in the same order."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    faults = []
    listed = re.findall(r"^ *X\((\w+),", (ROOT / "csrc/core/lock.h").read_text(), re.MULTILINE)
    listed.remove("TEST")
    rows = re.findall(r"^\| ([A-Z_]+) \| `([\w/.]+)`", (ROOT / "docs/locks.md").read_text(), re.MULTILINE)
    if [kind for kind, _ in rows] != listed:
        faults.append(f"docs/locks.md has {[kind for kind, _ in rows]}, and csrc/core/lock.h {listed}")
    for kind, file in rows:
        path = ROOT / "csrc" / file
        folder = path.parent.glob("*.c") if path.exists() else ()
        if not any(f"DD_LOCK_{kind})" in source.read_text() for source in folder):
            faults.append(f"docs/locks.md: {file} is not there, or nothing beside it makes a lock {kind}")
    for source in sorted((ROOT / "csrc").rglob("*.[ch]")):
        if "pthread_mutex" in source.read_text() and source.name not in ("lock.c", "lock.h", "sim_thread.c"):
            faults.append(f"{source.relative_to(ROOT)} uses a mutex that is no dd_lock")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
