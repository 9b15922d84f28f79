"""Exceptions that end a program: the other ranks get their text, and the job ends."""

import os
import re
import socket
import subprocess
import sys
import time

import dldist
import jobs
import pytest
from dldist._base import uncaught

SLOWEST_END_S = 20
"""The limit for the end of a job on a loaded machine. The timeouts of the programs are longer."""

ABORTED = r"rank 1 \(.*pid \d+\) aborted the group: "

# The exit of the rank that raises takes a second, because of a thread.
WORLD = """
import threading
import dldist
world = dldist.World(timeout=100)
world.barrier()
if world.rank == 1:
    threading.Thread(target=time.sleep, args=(1,)).start()
    at()
    {failure}
world.barrier()
"""

RAISE = 'raise ValueError("loss is nan")'

GROUPS = """
import dldist
dldist.init_process_group(timeout=100)
group = dldist.new_group(list(range(dldist.get_world_size())))
dldist.barrier(group)
if dldist.get_rank() == 1:
    at()
    raise ValueError("loss is nan")
dldist.barrier(group)
"""

THREAD = """
import threading
import dldist
world = dldist.World(timeout=100)
def train():
    world.barrier()
    if world.rank == 1:
        at()
        raise ValueError("loss is nan")
    world.barrier()
thread = threading.Thread(target=train)
thread.start()
thread.join()
world.barrier()
"""


def check(job, size, reason="ValueError: loss is nan"):
    found = re.findall(rf"barrier .*\(rank (\d+) of {size}\): (?:the group has failed before: )?{ABORTED}{reason}$", job.text, re.M)
    assert set(found) - {"1"} == {str(rank) for rank in range(size) if rank != 1}, job.text
    assert job.seconds < SLOWEST_END_S, job.text
    assert any(job.codes)


@pytest.mark.deadline(90)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("starter", jobs.STARTERS)
def test_uncaught_exception_ends_a_job(tmp_path, starter, size):
    job = jobs.run(starter, size, WORLD.format(failure=RAISE), tmp_path)
    if starter in ("dlrun", "by hand"):  # torchrun and mpirun may kill the others before they print
        check(job, size)
    assert job.seconds < SLOWEST_END_S, job.text
    assert "ValueError: loss is nan" in job.lines
    if starter == "dlrun":
        assert "dlrun: rank 1 failed first: exit code 1" in job.lines[-2]
        assert job.lines[-1] == "ValueError: loss is nan"


@pytest.mark.deadline(90)
@pytest.mark.parametrize("text", [GROUPS, THREAD], ids=["groups", "thread"])
def test_uncaught_exception_with_a_default_world_or_in_a_thread_ends_a_job(tmp_path, text):
    job = jobs.run("dlrun", 2, text, tmp_path)
    check(job, 2)
    assert "dlrun: rank 1 failed first: exit code 1" in job.lines[-2]
    assert job.lines[-1].endswith("ValueError: loss is nan")


@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('no data')", "SystemExit: no data"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_exit_with_a_nonzero_status_ends_a_job(tmp_path, failure, reason):
    job = jobs.run("dlrun", 2, WORLD.format(failure=failure), tmp_path)
    check(job, 2, reason)
    assert "dlrun: rank 1 failed first: " in job.text


@pytest.mark.deadline(90)
def test_exit_with_status_zero_aborts_no_group(tmp_path):
    job = jobs.run("dlrun", 2, WORLD.format(failure="import sys; sys.exit(0)"), tmp_path)
    assert "has left the group" in job.text and "aborted" not in job.text


# ---- which exceptions count

ALONE = """
import os, sys, threading
import dldist
from dldist._base import uncaught
uncaught.aborts[lambda reason: print("aborted:", reason, flush=True)] = None
uncaught.install()
def catches():
    try:
        sys.exit(3)
    except SystemExit:
        pass
def run_thread(target):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
world = dldist.World(dldist.HashStore(), 0, 1)
def use_group():
    world.barrier()
    if "fails" in globals():
        1 / 0
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('x')", "ValueError: x"),
        ("raise ValueError", "ValueError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("try:\n    1 / 0\nfinally:\n    catches()", "ZeroDivisionError: division by zero"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("sys.exit('no data')", "SystemExit: no data"),
        ("try:\n    sys.exit(3)\nfinally:\n    print()", "SystemExit: 3"),
        ("def main():\n    sys.exit(3)\nmain()", "SystemExit: 3"),
        ("try:\n    catches()\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(3)", "SystemExit: 3"),
        ("fails = True; run_thread(use_group)", "ZeroDivisionError: division by zero"),
        ("sys.exit()", None),
        ("sys.exit(0)", None),
        ("catches()", None),
        ("catches(); sys.exit(0)", None),
        ("catches(); raise SystemExit(0)", None),
        ("raise SystemExit(3)", None),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass", None),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())", None),
        ("threading.Thread(target=lambda: 1 / 0).start()", None),
        # The last thread has the id of an earlier one.
        ("for _ in range(30): run_thread(use_group)\nrun_thread(lambda: 1 / 0)", None),
        ("threading.Thread(target=sys.exit, args=(3,)).start()", None),
        ("if os.fork() == 0:\n    1 / 0\nos.wait()", None),
        ("import code\ncode.InteractiveConsole().push('1 / 0')", None),
        (
            "import multiprocessing\ndef child():\n    uncaught.install()\n    catches()\n"
            "process = multiprocessing.get_context('fork').Process(target=child)\nprocess.start()\nprocess.join()",
            None,
        ),
    ],
)
def test_abort_reason_on_other_ranks_names_the_uncaught_exception(text, reason):
    assert aborts_of(text) == ([] if reason is None else [f"aborted: {reason}"])


@pytest.mark.parametrize("text", ["1 / 0", "sys.exit(3)"])
def test_uncaught_exception_in_an_interactive_interpreter_aborts_no_group(text):
    assert aborts_of(text, "-i", stdin="1 / 0\n") == []


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)"])
def test_system_exit_that_the_program_catches_aborts_no_group(tmp_path, end):
    """The outermost frame of `python -m` is in runpy, and calls the module only once."""
    (tmp_path / "program.py").write_text(f"{ALONE}\ncatches()\n{end}\n")
    command = [sys.executable, "-m", "program"]
    ended = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True)
    assert "aborted" not in ended.stdout


def test_exit_with_a_failure_aborts_groups_before_it_waits_for_threads():
    text = "import time; threading.Thread(target=lambda: (time.sleep(1), print('end of thread'))).start(); sys.exit(3)"
    assert run_alone(text).stdout.splitlines() == ["aborted: SystemExit: 3", "end of thread"]


def test_excepthooks_of_the_program_are_still_called():
    text = "sys.excepthook = lambda *e, old=sys.excepthook: (print('mine'), old(*e)); 1 / 0"
    assert run_alone(text).stdout.splitlines() == ["mine", "aborted: ZeroDivisionError: division by zero"]
    text = "import sys; sys.excepthook = lambda *e: print('mine')" + ALONE + "1 / 0"
    assert run_alone(text, setup="").stdout.splitlines() == ["mine", "aborted: ZeroDivisionError: division by zero"]


def test_excepthooks_that_the_program_replaces_do_not_prevent_the_abort():
    text = "fails = True; sys.excepthook = threading.excepthook = lambda *_: print('mine'); uncaught.install(); run_thread(use_group); 1 / 0"
    reason = "aborted: ZeroDivisionError: division by zero"
    assert run_alone(text).stdout.splitlines() == ["mine", reason, "mine", reason]
    text = "sys.excepthook = lambda *e, old=sys.excepthook: old(*e); uncaught.install('> '); 1 / 0"
    ended = run_alone(text)
    assert ended.stdout.splitlines() == [reason]
    assert ended.stderr.splitlines()[-1] == "> ZeroDivisionError: division by zero"


# ---- which process is to blame

CAUSES = [
    "lost rank 1 ({}): connection closed",
    "rank 1 ({}) aborted the group: x",
    "rank 1 ({}) revoked the group: x",
    "rank 1 ({}) has left the group",
    "rank 1 ({}) has lost the connection to this rank: x",
]


@pytest.mark.parametrize("text", CAUSES)
def test_process_to_blame_is_read_from_the_text_of_an_error(text):
    assert uncaught.blamed_processes(f"all_reduce (rank 0 of 2): {text.format('node-b, pid 47')}") == [("node-b", 47)]
    assert uncaught.blamed_processes(text.format("node-b")) == []


def test_rank_whose_error_blames_another_process_delays_its_exit(monkeypatch):
    delays = []
    monkeypatch.setattr(uncaught, "aborts", {})
    monkeypatch.setattr(uncaught, "endings", {})
    monkeypatch.setattr(time, "sleep", delays.append)
    own = f"{socket.gethostname()}, pid {os.getpid()}"
    for process in (own, f"elsewhere, pid {os.getpid()}", own.replace("pid ", "pid 1")):
        cause, error = dldist.DistAbortedError(f"rank 1 ({process}) aborted the group: x"), RuntimeError("training has failed")
        error.__cause__ = cause
        uncaught._end(cause)
        uncaught._end(error)
    assert delays == [0, 0, 0.5, 0.5, 0.5, 0.5]


def aborts_of(text, *options, stdin=""):
    return [line for line in run_alone(text, *options, stdin=stdin).stdout.splitlines() if line.startswith("aborted")]


def run_alone(text, *options, setup=ALONE, stdin=""):
    command = [sys.executable, *options, "-c", setup + text]
    return subprocess.run(command, env=environment(), input=stdin, capture_output=True, text=True, timeout=20, check=False)


def environment():
    return {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(dldist.__file__))}
