#!/usr/bin/env python3
"""Checks what a built extension shows to the process that loads it, and what it asks for.

It must export its init function and nothing else, or it would meet the symbols of other libraries; and need
nothing beyond the C library, or the wheel would not load everywhere.

    python tools/check_symbols.py pkg/dldist/_core.abi3.so ...
"""
import re
import subprocess
import sys
from pathlib import Path

EXPORTS = {"PyInit__core"}
# ld-linux comes with libc on some machines.
NEEDED = re.compile(r"^(libc|libpthread|libm|librt|libdl|ld-linux[-\w]*)\.so(\.\d+)*$")


def output(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def exported(path: str) -> set[str]:
    return {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--defined-only", path) if line}


def needed(path: str) -> set[str]:
    return {m[1] for line in output("readelf", "-d", path) if (m := re.search(r"\(NEEDED\).*\[(.+)\]", line))}


def problems(path: str) -> list[str]:
    found = []
    names = exported(path)
    if EXPORTS - names:
        found.append(f"does not export {', '.join(sorted(EXPORTS - names))}")
    if names - EXPORTS:
        found.append(f"exports {', '.join(sorted(names - EXPORTS))}")
    foreign = sorted(lib for lib in needed(path) if not NEEDED.match(lib))
    if foreign:
        found.append(f"needs {', '.join(foreign)}")
    return found


def main() -> int:
    paths = sys.argv[1:] or [str(p) for p in Path(__file__).parent.parent.glob("pkg/dldist/_core*.so")]
    if not paths:
        print("symbols: no extension given and none built in pkg/dldist (make ext)")
        return 1
    failures = 0
    for path in paths:
        found = problems(path)
        failures += len(found)
        for text in found:
            print(f"{path}: {text}")
        if not found:
            print(f"symbols: {path} exports {', '.join(sorted(EXPORTS))} and needs {', '.join(sorted(needed(path)))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
