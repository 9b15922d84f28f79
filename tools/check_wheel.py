#!/usr/bin/env python3
"""Check a wheel: platform, traces of the build machine, and type stubs.

The extension must load on every platform that the wheel's name promises, and the stubs must match
these sources. Needs auditwheel.

    python tools/check_wheel.py dist/*.whl
"""
import json
import re
import sys
import tempfile
import zipfile
from pathlib import Path

from check_symbols import EXPORTS, output
from check_symbols import problems as symbol_problems
from make_stubs import made_stubs

NAME = re.compile(r"dldist-.+-cp311-abi3-manylinux_2_(\d+)_(\w+)\.whl")


def platform(wheel: Path) -> tuple[int, str] | None:
    """Return the minor glibc version and the architecture in the wheel's name."""
    matched = NAME.fullmatch(wheel.name)
    return (int(matched[1]), matched[2]) if matched else None


def needed_platform(wheel: Path) -> tuple[int, str]:
    """Return the same, as required by the extension's symbols."""
    told = json.loads("".join(output(sys.executable, "-m", "auditwheel", "show", "--json", str(wheel))))
    matched = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", told["overall_tag"])
    assert matched, told["overall_tag"]
    return int(matched[1]), matched[2]


def platform_problems(wheel: Path) -> list[str]:
    named, needed = platform(wheel), needed_platform(wheel)
    if named is None:
        return ["is not named as a wheel for every Python from 3.11 on and a manylinux"]
    if named[1] != needed[1] or named[0] < needed[0]:
        return [f"is for glibc 2.{named[0]} on {named[1]} by its name, and needs 2.{needed[0]} on {needed[1]}"]
    return []


def unresolved(extension: str) -> list[str]:
    """Return undefined symbols that neither Python nor a versioned C library provides."""
    lines = [line.split() for line in output("nm", "-D", "--undefined-only", extension)]
    strong = [fields[-1] for fields in lines if fields and fields[0] == "U"]
    return sorted(name for name in strong if not name.startswith(("Py", "_Py")) and "@GLIBC_" not in name)


def leftovers(extension: str) -> list[str]:
    """Return the traces that the build machine left in the extension."""
    found = []
    if any("RUNPATH" in line or "RPATH" in line for line in output("readelf", "--wide", "-d", extension)):
        found.append("has a library search path (RPATH)")
    if any(".symtab" in line or ".debug_" in line for line in output("readelf", "--wide", "-S", extension)):
        found.append("is not stripped")
    return found


def extension_problems(name: str, extension: str) -> list[str]:
    found = symbol_problems(extension, EXPORTS[name]) + leftovers(extension)
    if names := unresolved(extension):
        found.append(f"has unresolved symbols: {', '.join(names)}")
    return [f"{name} {text}" for text in found]


def stub_problems(archive: zipfile.ZipFile) -> list[str]:
    held = set(archive.namelist())
    stubs = {f"dldist/{name}": text for name, text in made_stubs().items()}
    return [f"lacks {name} as it should be" for name, text in stubs.items() if name not in held or archive.read(name).decode() != text]


def main() -> int:
    failures = 0
    for wheel in map(Path, sys.argv[1:]):
        found, sizes = platform_problems(wheel), []
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
            found += stub_problems(archive)
            for name in EXPORTS:
                extension = archive.extract(f"dldist/{name}.abi3.so", folder)
                found += extension_problems(name, extension)
                sizes.append(f"{name} in it {Path(extension).stat().st_size:,}")
        for text in found:
            print(f"{wheel}: {text}")
        failures += len(found)
        print(f"wheel: {wheel} has {wheel.stat().st_size:,} bytes, {', '.join(sizes)}")
    return 1 if failures or not sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
