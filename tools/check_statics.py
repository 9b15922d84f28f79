#!/usr/bin/env python3
"""Checks that a static function has a name of its own in csrc/, so that readers and tools can jump to it.

Two files may not define static functions of one name. Folders that still do have a ceiling, which only falls. --list prints the names.
"""
import sys
from collections import defaultdict
from pathlib import Path

from c_source import functions, read

ROOT = Path(__file__).resolve().parent.parent / "csrc"
# The names in each folder that another file has, too. Lower it with the number; a folder that is not here has none.
CEILINGS = {
    "collective": 21, "core": 4, "group": 21, "kernels": 1, "transport": 25,
    "window": 15,
}


def repeated_names(root: Path) -> dict[str, list[str]]:
    """Names of static functions, and the files that define one, if there are several."""
    files = defaultdict(list)
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".c", ".h")):
        for name in sorted(set(functions(read(path), static=True))):
            files[name].append(path.relative_to(root).as_posix())
    return {name: where for name, where in files.items() if len(where) > 1}


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    repeated = repeated_names(Path(arguments[0]) if arguments else ROOT)
    by_folder = defaultdict(set)
    for name, where in repeated.items():
        for file in where:
            by_folder[file.split("/")[0]].add(name)
    failures = 0
    for folder, names in sorted(by_folder.items()):
        ceiling = CEILINGS.get(folder, 0)
        if len(names) > ceiling:
            failures += 1
            print(f"csrc/{folder}: {len(names)} static functions share their names with another file's, where {ceiling} is the most: rename one")
        if len(names) > ceiling or "--list" in sys.argv:
            for name in sorted(names):
                print(f"  {name}: {', '.join(repeated[name])}")
    print(f"statics: {len(repeated)} names stand in several files")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
