#!/usr/bin/env python3
"""Check that every static function in csrc/ has a unique name, so that it is easy to find."""
import sys
from collections import defaultdict
from pathlib import Path

from c_source import functions, read

ROOT = Path(__file__).resolve().parent.parent / "csrc"


def repeated_names(root: Path) -> dict[str, list[str]]:
    """Return the names of static functions that several files define, with the files."""
    files = defaultdict(list)
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".c", ".h")):
        for name in sorted(set(functions(read(path), static=True))):
            files[name].append(path.relative_to(root).as_posix())
    return {name: where for name, where in files.items() if len(where) > 1}


def main() -> int:
    repeated = repeated_names(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    for name, where in sorted(repeated.items()):
        print(f"{name}() is static in {', '.join(where)}: rename all but one after the file's subject")
    print(f"statics: {len(repeated)} names are in several files")
    return 1 if repeated else 0


if __name__ == "__main__":
    sys.exit(main())
