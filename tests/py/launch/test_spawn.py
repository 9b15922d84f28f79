"""dist.spawn in scripts, at prompts, and in failures."""

import json
import os
import signal
import subprocess
import sys

import dldist
import procs as procs_module
import pytest
from dldist._launch.spawn import spawn
from ports import reserve_port

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_programs", "spawns.py")

PROMPT = """
import math, pickle
from dldist._launch.spawn import spawn

BASE = 5

def power(x, n):
    return 1 if n == 0 else x * power(x, n - 1)

def work(i, more=1, *, sign=-1):
    return sign * (math.floor(2.5) + power(BASE, i) + more)

try:
    print(spawn(work, (100,), nprocs=2))
except pickle.PicklingError as error:
    print(error)
"""

SECRETS = """
import json, os
import dldist

def secret(i):
    return os.environ.get("DLDIST_SECRET")

print(json.dumps([dldist.spawn(secret, nprocs=3) for _ in range(2)]))
"""

CLASSES = """
import array
from dldist import init_process_group, all_gather_object, World
from dldist._launch.spawn import spawn

class Own:
    def __init__(self, i):
        self.i = i

class OwnError(Exception):
    pass

def makes(i):
    return Own(i)

def gathers(i):
    data = array.array("d", [i]) * 100000
    with World() as world:
        there = world.all_gather_object((Own(i), data), serializer="pickle")
    return [(type(own) is Own, own.i, len(data), data[0]) for own, data in there]

def fails(i):
    raise OwnError("of a notebook")

for work in (makes, gathers, fails):
    try:
        results = spawn(work, nprocs=2)
        print(work.__name__, [result.i for result in results if isinstance(result, Own)] or results[0])
    except Exception as error:
        print(work.__name__, type(error).__name__, type(error.__cause__).__name__, str(error).splitlines()[-1])
"""


def run(*args, **how):
    done = subprocess.run(
        [sys.executable, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=25, **how
    )
    assert done.returncode == 0, done.stderr
    return done


def last(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_spawn_returns_results_in_rank_order_and_accepts_queues():
    (results, sizes, word, inner) = last(run(SCRIPT, "results"))
    assert results == [["ab", 3.0], ["abab", 3.0]]
    assert sizes == [200_000] * 2
    assert word == "ab"
    assert inner == [17, 1, 1]


def test_all_ranks_of_spawn_have_the_same_secret():
    """Ranks of another call must have another secret, unless it is given."""
    first, second = last(run("-c", SECRETS))
    for secrets in (first, second):
        assert secrets[0] and secrets == secrets[:1] * 3, secrets
    assert first != second
    assert last(run("-c", SECRETS, env={**os.environ, "DLDIST_SECRET": "a given one"})) == [["a given one"] * 3] * 2


def test_ranks_of_spawn_may_use_another_rendezvous():
    assert last(run(SCRIPT, "own place", str(reserve_port()))) == [[0, 1]] * 2


def test_spawn_raises_the_first_failure_with_its_traceback():
    kind, text, cause, cause_text = last(run(SCRIPT, "fails"))
    assert kind == "ProcessRaisedException"
    assert text.startswith("\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):")
    assert text.endswith("LookupError: no such thing\n")
    assert (cause, cause_text) == ("LookupError", "no such thing")


def test_spawn_names_the_signal_that_killed_a_rank():
    kind, text, _, _ = last(run(SCRIPT, "dies"))
    assert (kind, text) == ("ProcessExitedException", "process 0 terminated with signal SIGKILL")


@pytest.mark.parametrize("how", ["dies as a parent", "is cut off"])
def test_spawn_detects_a_death_even_if_the_pipe_stays_open(how):
    kind, text, _, _ = last(run(SCRIPT, how))
    assert (kind, text) == ("ProcessExitedException", "process 0 terminated with signal SIGKILL")


def test_spawn_names_the_rank_whose_result_cannot_be_unpickled():
    error, note = last(run(SCRIPT, "unreadable"))
    assert "no number" in error and note == "spawn(): while reading the result of process 0"


def test_timeout_of_spawn_names_the_late_ranks():
    kind, text, _, _ = last(run(SCRIPT, "late"))
    assert (kind, text) == ("DistTimeoutError", "spawn(): of 2 processes these did not end within the timeout of 1.0 s: [0, 1]")


def test_join_of_a_spawn_context_returns_true_once_all_ranks_have_ended():
    assert last(run(SCRIPT, "context")) == [False, True, [False, False]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_of_spawn_end_with_their_parent(number):
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
        lambda: all(procs_module.thread_state(pid, pid) in (None, "Z") for pid in pids), description="end of the processes"
    )


@pytest.fixture(params=["with cloudpickle", "without"])
def prompt(request, tmp_path):
    """Return a function that runs a program as if typed at a prompt and returns its output."""
    env = dict(os.environ)
    if request.param == "without":
        (tmp_path / "cloudpickle.py").write_text("raise ImportError")
        env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, map(os.path.abspath, sys.path))])
    else:
        pytest.importorskip("cloudpickle")
    return request.param, lambda text: run("-c", text, env=env).stdout.splitlines()


def test_spawn_of_functions_defined_at_a_prompt_needs_cloudpickle(prompt):
    """They are sent as globals of functions, with the classes defined at the prompt."""
    kind, typed = prompt
    [line] = typed(PROMPT)
    if kind == "without":
        assert line == "work cannot be pickled: expected a name that another process can import; define it in a module, or install cloudpickle"
    else:
        assert line == "[-103, -107]"


def test_spawn_of_classes_defined_at_a_prompt_needs_cloudpickle(prompt):
    """They are sent back as results, in objects of groups, and as causes of failures."""
    kind, typed = prompt
    lines = typed(CLASSES)
    if kind == "without":
        refusal = "cannot be pickled: expected a name that another process can import; define it in a module, or install cloudpickle"
        assert lines == [f"{name} PicklingError NoneType {name} {refusal}" for name in ("makes", "gathers", "fails")]
    else:
        assert lines == [
            "makes [0, 1]",
            "gathers [(True, 0, 100000, 0.0), (True, 1, 100000, 1.0)]",
            "fails ProcessRaisedException OwnError OwnError: of a notebook",
        ]


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: spawn(None), TypeError, "'fn' must be callable, not NoneType"),
        (lambda: spawn(print, nprocs=0), ValueError, "'nprocs' must be 1 or more, not 0"),
        (lambda: spawn(print, (), "2"), TypeError, "'nprocs' must be int, not str"),
        (lambda: spawn(print, 2, ("x",)), TypeError, "'args' must be a tuple, not int; 'nprocs' comes after it, as in torch"),
        (lambda: spawn(print, (), 2, True), TypeError, "positional arguments"),
    ],
)
def test_spawn_rejects_wrong_arguments(call, kind, words):
    with pytest.raises(kind, match="spawn") as caught:
        call()
    assert words in str(caught.value)


def test_failures_raised_by_spawn_are_dist_errors():
    from dldist._launch import spawn as launch_spawn

    assert issubclass(launch_spawn.ProcessException, dldist.DistError)
