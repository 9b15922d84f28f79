#!/usr/bin/env python3
"""Check the exported symbols and required libraries of the extension and the library for JAX.

The extension must export only its init function, and the library only the functions that
MPItrampoline looks up; other symbols might conflict with other libraries. Both must need only the C
library, so that the wheel loads everywhere.

    python tools/check_symbols.py [folder of the package]
"""
import re
import subprocess
import sys
from pathlib import Path

# Exported symbols, by the prefix of a file's path in the package.
EXPORTS = {
    "_core": re.compile(r"Py(Init|ModExport)__core"),
    "jax/_mpi": re.compile(r"MPIX?ABI_\w+|mpi(abi|wrapper)_version_\w+|mpiwrapper_export_fortran_constants_"),
}
# On some machines, libc includes ld-linux.
NEEDED = re.compile(r"^(libc|libpthread|libm|librt|libdl|ld-linux[-\w]*)\.so(\.\d+)*$")


def output(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def exported(path: str) -> set[str]:
    return {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--defined-only", path) if line}


def needed(path: str) -> set[str]:
    return {m[1] for line in output("readelf", "-d", path) if (m := re.search(r"\(NEEDED\).*\[(.+)\]", line))}


def problems(path: str, exports: re.Pattern[str]) -> list[str]:
    found = []
    names = exported(path)
    if not names:
        found.append("exports nothing")
    if foreign := sorted(name for name in names if not exports.fullmatch(name)):
        found.append(f"exports {', '.join(foreign)}")
    if foreign := sorted(lib for lib in needed(path) if not NEEDED.match(lib)):
        found.append(f"needs {', '.join(foreign)}")
    return found


def main() -> int:
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "pkg" / "dldist"
    failures = 0
    for name, exports in EXPORTS.items():
        paths = [str(path) for path in package.glob(f"{name}*.so")]
        found = problems(paths[0], exports) if len(paths) == 1 else [f"there are {len(paths)} such files (make ext builds one)"]
        failures += len(found)
        for text in found:
            print(f"{package}/{name}: {text}")
        if not found:
            print(f"symbols: {paths[0]} exports {len(exported(paths[0]))} and needs {', '.join(sorted(needed(paths[0])))}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
