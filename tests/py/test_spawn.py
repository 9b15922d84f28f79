"""dist.spawn in scripts, at prompts, and when it fails."""

import json
import os
import signal
import socket
import subprocess
import sys

import procs as procs_module
import pytest

import dldist
from dldist._spawn import spawn

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_programs", "spawns.py")

PROMPT = """
import math
from dldist._spawn import spawn

BASE = 5

def power(x, n):
    return 1 if n == 0 else x * power(x, n - 1)

def work(i, more=1, *, sign=-1):
    return sign * (math.floor(2.5) + power(BASE, i) + more)

class Own:
    pass

print(spawn(work, 2, (100,)))
try:
    spawn(lambda i: Own, 1)
except Exception as error:
    print(type(error).__name__, error)
"""


def run(*args, **how):
    done = subprocess.run(
        [sys.executable, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=25, **how
    )
    assert done.returncode == 0, done.stderr
    return done


def last(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_results_in_order_and_queues_as_arguments():
    (results, sizes, word, inner) = last(run(SCRIPT, "results"))
    assert results == [["ab", 3.0], ["abab", 3.0]]
    assert sizes == [200_000] * 2
    assert word == "ab"
    assert inner == [17, 1, 1]


def test_ranks_may_meet_elsewhere():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert last(run(SCRIPT, "own place", str(port))) == [[0, 1]] * 2


def test_first_failure_is_raised_with_its_traceback():
    kind, text, cause, cause_text = last(run(SCRIPT, "fails"))
    assert kind == "ProcessRaisedException"
    assert text.startswith("\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):")
    assert text.endswith("LookupError: no such thing\n")
    assert (cause, cause_text) == ("LookupError", "no such thing")


def test_signal_is_named():
    kind, text, _, _ = last(run(SCRIPT, "dies"))
    assert (kind, text) == ("ProcessExitedException", "process 0 terminated with signal SIGKILL")


@pytest.mark.parametrize("how", ["dies as a parent", "is cut off"])
def test_death_is_seen_whatever_becomes_of_the_pipe(how):
    kind, text, _, _ = last(run(SCRIPT, how))
    assert (kind, text) == ("ProcessExitedException", "process 0 terminated with signal SIGKILL")


def test_result_that_cannot_be_read_says_whose_it_is():
    error, note = last(run(SCRIPT, "unreadable"))
    assert "no number" in error and note == "spawn(): while the result of process 0 was read"


def test_deadline_names_those_that_are_late():
    kind, text, _, _ = last(run(SCRIPT, "late"))
    assert (kind, text) == ("DistTimeoutError", "spawn(): of 2 processes these did not end within the timeout of 1.0 s: [0, 1]")


def test_context():
    assert last(run(SCRIPT, "context")) == [False, True, [False, False]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(number):
    process = subprocess.Popen([sys.executable, SCRIPT, "hang"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        lines = [process.stdout.readline().split() for _ in range(2)]
        assert all(lines), process.stderr.read().decode()
        pids = [int(line[1]) for line in lines]
        process.send_signal(number)
        process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == -number
    procs_module.poll_until(
        lambda: all(procs_module.thread_state(pid, pid) in (None, "Z") for pid in pids), what="end of the processes"
    )


def test_functions_of_a_prompt_are_sent_by_value():
    lines = run("-c", PROMPT).stdout.splitlines()
    assert lines[0] == "[-103, -107]"
    has_cloudpickle = len(lines) == 1
    assert has_cloudpickle or lines[1].startswith("PicklingError class Own cannot be sent to another process")


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: spawn(None), TypeError, "'fn' must be callable, not NoneType"),
        (lambda: spawn(print, 0), ValueError, "'nprocs' must be 1 or more, not 0"),
        (lambda: spawn(print, ("torch's", "order"), 2), TypeError, "'nprocs' must be int, not tuple"),
        (lambda: spawn(print, 1, "x"), TypeError, "'args' must be a tuple, not str"),
    ],
)
def test_mistakes(call, kind, words):
    with pytest.raises(kind, match="spawn") as caught:
        call()
    assert words in str(caught.value)


def test_failures_are_dist_errors():
    from dldist import _spawn

    assert issubclass(_spawn.ProcessException, dldist.DistError)
