"""Report the extension's leaks, as found by LeakSanitizer.

For processes with an extension built with DLDIST_SANITIZE=address and
ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0 (`make test-py-asan`). A check at exit would report
too many leaks of the interpreter.
"""

import ctypes
import os
import sys
import tempfile

DLDIST_FRAMES = ("csrc/", "dldist/_core.")
# The flight recorder uses its own pages, which LeakSanitizer does not scan for pointers. The C
# tests check it for leaks.
IGNORED_FRAMES = "csrc/observe/"


def is_possible():
    return "detect_leaks=1" in os.environ.get("ASAN_OPTIONS", "") and hasattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check")


def slower():
    """Return the factor by which tests may take longer."""
    if "TSAN_OPTIONS" in os.environ:  # scripts/free_threaded.sh
        return 10
    return 4 if is_possible() else 1


def _report_path():
    return os.path.join(tempfile.gettempdir(), f"dldist-leaks-{os.getuid()}")


def take_report(pid):
    """Return LeakSanitizer's report of a process, "" if there is none, and delete it."""
    path = f"{_report_path()}.{pid}"
    try:
        with open(path, errors="replace") as file:
            text = file.read()
        os.unlink(path)
    except FileNotFoundError:
        return ""
    return text


def has_broken_down_in(pid, name):
    """Return True, and print so to stderr, if LeakSanitizer itself crashed in a process that has
    ended.

    It stops all threads from outside. Its tracer sometimes crashes on a thread that is about to
    exit, which ends the process without a report.
    """
    has_broken_down = is_possible() and "LeakSanitizer has encountered a fatal error" in take_report(pid)
    if has_broken_down:
        print(f"{name} (pid {pid}): LeakSanitizer broke down, so nothing is known of leaks there", file=sys.stderr)
    return has_broken_down


def leaks():
    """Return the report of each lost block that a dldist call allocated. Leaks of the interpreter
    and of other packages are ignored."""
    runtime = ctypes.CDLL(None)
    runtime.__sanitizer_set_report_path(_report_path().encode())
    runtime.__lsan_do_recoverable_leak_check()
    runtime.__sanitizer_set_report_path(b"stderr")
    blocks = [block for block in take_report(os.getpid()).split("\n\n") if "leak of" in block]
    return [block for block in blocks if IGNORED_FRAMES not in block and any(part in block for part in DLDIST_FRAMES)]
