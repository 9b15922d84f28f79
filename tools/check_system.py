#!/usr/bin/env python3
"""Check that only csrc/core calls the system, and that other code uses only pure C functions.

Examines the undefined symbols of a build's objects. csrc/core/system.h, clock.h, lock.h, thread.h
and mem.h have the wrappers that all other code uses, so that a test can replace the system.

    python tools/check_system.py build/fast
"""
import subprocess
import sys
from pathlib import Path

# Functions that depend only on their arguments (and errno, and stdio's buffers in memory).
PURE = """memcpy memmove memset memcmp memchr strlen strnlen strcmp strncmp strcasecmp strchr strrchr strstr strspn strcspn
strtol strtoll strtoul strtoull strtod snprintf vsnprintf sscanf qsort bsearch llround lround inet_ntop inet_pton
gai_strerror strerror_r explicit_bzero abort __errno_location""".split()
# Names added by compilers and libraries.
COMPILED = (
    "__isoc", "__stack_chk", "__asan", "__tsan", "__ubsan", "_GLOBAL_OFFSET_TABLE_", "__memcpy_chk", "__snprintf_chk", "__divti3", "__udivti3",
)  # fmt: skip
# The assertions of test builds (csrc/core/assert.h).
ASSERTED = {"dd_assert_fail", "dd_lock_holds"}
# One file opens shared libraries; their functions are called through tables.
ALLOWED = {"core/dylib": {"dlopen", "dlsym", "dlerror", "dladdr", "dlclose"}}


def names(nm_output: str) -> tuple[set[str], set[str]]:
    """Return the defined and the undefined symbols."""
    defined, undefined = set(), set()
    for line in nm_output.splitlines():
        fields = line.split()
        if len(fields) >= 2:
            (undefined if fields[-2] == "U" else defined).add(fields[-1].split("@")[0])
    return defined, undefined


def main() -> int:
    build = Path(sys.argv[1])
    objects = sorted(path for path in (build / "csrc").rglob("*.o") if Path(str(path.relative_to(build))[:-2] + ".c").exists())
    if not objects:
        print(f"{build}/csrc has no objects: build first")
        return 1
    tables = {}
    ours = set()
    for path in objects:
        found = subprocess.run(["nm", str(path)], check=True, capture_output=True, text=True).stdout
        defined, undefined = names(found)
        ours |= defined
        tables[str(path.relative_to(build / "csrc"))[:-2]] = undefined
    failures = 0
    for where, undefined in tables.items():
        if where.startswith("core/"):
            continue
        allowed = ours | set(PURE) | ASSERTED | ALLOWED.get(where, set())
        for name in sorted(undefined - allowed):
            if not name.startswith(COMPILED):
                print(f"csrc/{where}.c: calls {name}, which only csrc/core may do (csrc/core/system.h)")
                failures += 1
    if failures == 0:
        print(f"system: {len(tables)} files use it through csrc/core")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
