#!/usr/bin/env python3
"""Check locks and waits of csrc/.

Every mutex must be a dd_lock, docs/contributing/locks.md must list the kinds in csrc/core/lock.h in their order,
and no wait may depend on calendar time.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Calls that wait until a calendar time, and the files that may use clocks that can be changed.
CALENDAR_WAITS = re.compile(
    r"\b(pthread_(mutex|rwlock)_timed\w*lock|pthread_timedjoin_np|sem_timedwait|mq_timed\w+|aio_suspend"
    r"|FUTEX_CLOCK_REALTIME|TIMER_ABSTIME)\b"
)
CALENDAR = {
    r"\bpthread_cond_(timedwait|init)\b|\bPTHREAD_COND_INITIALIZER\b": {"core/lock.c"},
    r"\bCLOCK_REALTIME\b": {"core/clock.c"},
    r"\bdd_clock_calendar_ns\b": {"core/clock.c", "core/clock.h", "core/log.c", "observe/dump.c"},
}


def calendar_faults(path):
    """Yield uses of calendar time that may make a file wait for the wrong time."""
    name = path.relative_to(ROOT / "csrc").as_posix()
    text = path.read_text()
    for call in CALENDAR_WAITS.finditer(text):
        yield f"csrc/{name}: {call[0]} waits for a calendar time"
    for pattern, files in CALENDAR.items():
        if re.search(pattern, text) and name not in files:
            yield f"csrc/{name} uses {pattern}, which only {', '.join(sorted(files))} may"


def main():
    faults = []
    listed = re.findall(r"^ *X\((\w+),", (ROOT / "csrc/core/lock.h").read_text(), re.MULTILINE)
    listed.remove("TEST")
    rows = re.findall(r"^\| ([A-Z_]+) \| `([\w/.]+)`", (ROOT / "docs/contributing/locks.md").read_text(), re.MULTILINE)
    if [kind for kind, _ in rows] != listed:
        faults.append(f"docs/contributing/locks.md has {[kind for kind, _ in rows]}, and csrc/core/lock.h {listed}")
    for kind, file in rows:
        path = ROOT / "csrc" / file
        folder = path.parent.glob("*.c") if path.exists() else ()
        if not any(f"DD_LOCK_{kind})" in source.read_text() for source in folder):
            faults.append(f"docs/contributing/locks.md: {file} is not there, or nothing beside it makes a lock {kind}")
    for source in sorted((ROOT / "csrc").rglob("*.[ch]")):
        if "pthread_mutex" in source.read_text() and source.name not in ("lock.c", "lock.h"):
            faults.append(f"{source.relative_to(ROOT)} uses a mutex that is not a dd_lock")
        faults += calendar_faults(source)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
