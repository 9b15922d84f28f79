"""Run a Python program on one rank, with a system call of the core failing there.

    DLDIST_TEST_FAIL=rank:call:number:errno[:lasting] python tests/errors/failing.py program.py [arguments]

On the rank with that number (RANK; a process without RANK is the rank "launcher"), the call with
that name and number fails. Calls are counted from 0 at the start of the program. If the fault is
lasting, all later calls of that name also fail. The counts of all calls are written to the file
DLDIST_TEST_FAIL_COUNTS at the end. The extension must be built with DLDIST_FAULTS=1 (`make
errors-py`).
"""

import atexit
import contextlib
import errno
import json
import os
import runpy
import sys

from dldist import _core


def own_rank():
    return os.environ.get("RANK", "launcher")


def fail_by(text):
    """Set the fault from a text in the form of DLDIST_TEST_FAIL."""
    rank, call, number, name, *lasting = text.split(":")
    if rank == own_rank():
        _core._fail_system_call(call, int(number), getattr(errno, name), lasting == ["lasting"])


def count_from_now(path):
    _core._fail_system_call("open", -1, 0, False)
    atexit.register(lambda: _write_counts(f"{path}.{own_rank()}"))


def _write_counts(path):
    counts = _core._count_system_calls()
    with contextlib.suppress(OSError), open(path, "w") as file:
        json.dump(counts, file)


def main():
    if path := os.environ.get("DLDIST_TEST_FAIL_COUNTS"):
        count_from_now(path)
    if text := os.environ.get("DLDIST_TEST_FAIL"):
        fail_by(text)
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
