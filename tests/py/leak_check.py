"""What LeakSanitizer finds that the extension has lost. For processes with an extension built with DLDIST_SANITIZE=address and
ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0 (`make test-py-asan`): at the exit itself an interpreter leaves too much behind."""

import ctypes
import glob
import os
import tempfile

OURS = ("csrc/", "dldist/_core.")
# The flight recorder lives in pages of its own, where LeakSanitizer looks for no pointers. The C tests look after it.
UNSEEN = "csrc/observe/"


def is_possible():
    return "detect_leaks=1" in os.environ.get("ASAN_OPTIONS", "") and hasattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check")


def slower():
    """By how much tests may take longer here."""
    return 4 if is_possible() else 1


def leaks():
    """The report of each lost block that was allocated in a call of ours. What the interpreter and other packages lose is theirs."""
    runtime = ctypes.CDLL(None)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report")
        runtime.__sanitizer_set_report_path(path.encode())
        runtime.__lsan_do_recoverable_leak_check()
        runtime.__sanitizer_set_report_path(b"stderr")
        text = "".join(open(name, errors="replace").read() for name in glob.glob(path + ".*"))
    blocks = [block for block in text.split("\n\n") if "leak of" in block]
    return [block for block in blocks if UNSEEN not in block and any(part in block for part in OURS)]
