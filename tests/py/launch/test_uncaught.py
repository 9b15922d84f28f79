"""Exceptions that end a program: the other ranks get their text, and the job ends."""

import os
import re
import subprocess
import sys

import dldist
import jobs
import pytest

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
def test_exception_ends_a_job(tmp_path, starter, size):
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
def test_exception_of_a_default_world_or_thread_ends_a_job(tmp_path, text):
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
def test_exit_with_a_failure_ends_a_job(tmp_path, failure, reason):
    job = jobs.run("dlrun", 2, WORLD.format(failure=failure), tmp_path)
    check(job, 2, reason)
    assert "dlrun: rank 1 failed first: " in job.text


@pytest.mark.deadline(90)
def test_exit_without_a_failure_aborts_nothing(tmp_path):
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
        ("sys.exit()", None),
        ("sys.exit(0)", None),
        ("catches()", None),
        ("catches(); sys.exit(0)", None),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass", None),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())", None),
        ("threading.Thread(target=lambda: 1 / 0).start()", None),
        ("threading.Thread(target=sys.exit, args=(3,)).start()", None),
        ("if os.fork() == 0:\n    1 / 0\nos.wait()", None),
    ],
)
def test_abort_names_the_uncaught_exception(text, reason):
    assert aborts_of(text) == ([] if reason is None else [f"aborted: {reason}"])


def test_interactive_interpreter_keeps_its_groups():
    assert aborts_of("1 / 0", "-i") == []


def test_hooks_of_the_program_are_called():
    text = "sys.excepthook = lambda *e, old=sys.excepthook: (print('mine'), old(*e)); 1 / 0"
    assert run_alone(text).stdout.splitlines() == ["mine", "aborted: ZeroDivisionError: division by zero"]
    text = "import sys; sys.excepthook = lambda *e: print('mine')" + ALONE + "1 / 0"
    assert run_alone(text, setup="").stdout.splitlines() == ["mine", "aborted: ZeroDivisionError: division by zero"]


def aborts_of(text, *options):
    return [line for line in run_alone(text, *options).stdout.splitlines() if line.startswith("aborted")]


def run_alone(text, *options, setup=ALONE):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(dldist.__file__))}
    command = [sys.executable, *options, "-c", setup + text]
    return subprocess.run(command, env=environment, input="", capture_output=True, text=True, timeout=20, check=False)
