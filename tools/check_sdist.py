#!/usr/bin/env python3
"""Check that a source distribution has exactly the repository's files and setuptools' own.

    python tools/check_sdist.py dist/dldist-*.tar.gz
"""
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Needed only in a repository.
LEFT_OUT = {".gitignore"}
GENERATED = {"PKG-INFO", "setup.cfg"}
GENERATED_FOLDER = "pkg/dldist.egg-info/"


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return {name for name in listed.stdout.split("\0") if name} - LEFT_OUT


def held(sdist: str) -> set[str]:
    """Return the distribution's files, without its top folder."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    return {name for name in names - GENERATED if not name.startswith(GENERATED_FOLDER)}


def main() -> int:
    failures = 0
    for sdist in sys.argv[1:]:
        expected, found = tracked(), held(sdist)
        for name in sorted(expected - found):
            print(f"{sdist}: lacks {name}")
        for name in sorted(found - expected):
            print(f"{sdist}: contains {name}, which is not in the repository")
        failures += len(expected ^ found)
        print(f"sdist: {sdist} has {len(found)} files, {Path(sdist).stat().st_size:,} bytes")
    return 1 if failures or not sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
