"""What LeakSanitizer finds that the extension has lost. For processes with an extension built with DLDIST_SANITIZE=address and
ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0 (`make test-py-asan`): at the exit itself an interpreter leaves too much behind."""

import ctypes
import os
import sys
import tempfile

OURS = ("csrc/", "dldist/_core.")
# The flight recorder lives in pages of its own, where LeakSanitizer looks for no pointers. The C tests look after it.
UNSEEN = "csrc/observe/"


def is_possible():
    return "detect_leaks=1" in os.environ.get("ASAN_OPTIONS", "") and hasattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check")


def slower():
    """By how much tests may take longer here."""
    if "TSAN_OPTIONS" in os.environ:  # scripts/free_threaded.sh
        return 10
    return 4 if is_possible() else 1


def _report_path():
    return os.path.join(tempfile.gettempdir(), f"dldist-leaks-{os.getuid()}")


def take_report(pid):
    """What LeakSanitizer has said in that process, which is removed; "" where it has said nothing."""
    path = f"{_report_path()}.{pid}"
    try:
        with open(path, errors="replace") as file:
            text = file.read()
        os.unlink(path)
    except FileNotFoundError:
        return ""
    return text


def has_broken_down_in(pid, name):
    """LeakSanitizer itself, in a process that has ended; that is said on stderr. It stops all threads from outside, and now and then its
    tracer crashes on one that is about to end. That ends the process, and says nothing about it."""
    has_broken_down = is_possible() and "LeakSanitizer has encountered a fatal error" in take_report(pid)
    if has_broken_down:
        print(f"{name} (pid {pid}): LeakSanitizer broke down, so nothing is known of leaks there", file=sys.stderr)
    return has_broken_down


def leaks():
    """The report of each lost block that was allocated in a call of ours. What the interpreter and other packages lose is theirs."""
    runtime = ctypes.CDLL(None)
    runtime.__sanitizer_set_report_path(_report_path().encode())
    runtime.__lsan_do_recoverable_leak_check()
    runtime.__sanitizer_set_report_path(b"stderr")
    blocks = [block for block in take_report(os.getpid()).split("\n\n") if "leak of" in block]
    return [block for block in blocks if UNSEEN not in block and any(part in block for part in OURS)]
