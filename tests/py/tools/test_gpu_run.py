"""tests/gpu/run.sh must run its steps in order. It runs in a separate tree, with a stub
interpreter.

A rehearsal (.ci/run) tests the steps themselves.
"""

import lzma
import os
import re
import shutil
import subprocess
import sys
import time

import procs as procs_module
import pytest
import workers
from paths import TESTS

GPU = TESTS / "gpu"
CALL_LIMIT_S = 600
INTERPRETER = f"""#!/usr/bin/env bash
echo "$STEP: $*" >>"$CALLS"
case "$*" in
*" -m pytest "*)
    printf '<a><testsuite tests="3" skipped="%s"/></a>' "${{TESTS_SKIPPED:-1}}" >"$OUT/$STEP.xml"
    eval "$ON_TESTS"
    ;;
*lzma* | *.xml) exec {sys.executable} "$@" ;;
*check_nccl*) eval "$ON_DECLARATIONS" ;;
*benchmarks*) eval "$ON_BENCH" ;;
-) eval "$ON_NCCL" ;;
esac
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    shutil.copy(GPU / "run.sh", tmp_path / "tests" / "gpu")
    interpreter = tmp_path / "interpreter"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    (tmp_path / "calls").touch()
    return tmp_path


def run(tree, *arguments, **settings):
    removed = ("OUT", "DLDIST_NCCL_LIBRARY", "DLDIST_GPU_REHEARSAL")
    environment = {name: value for name, value in os.environ.items() if name not in removed}
    environment |= {"PYTHON": str(tree / "interpreter"), "CALLS": str(tree / "calls"), **settings}
    command = ["bash", str(tree / "tests" / "gpu" / "run.sh"), *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, timeout=25)


def summary(folder):
    """Return {step: (result, note)}."""
    lines = (folder / "summary.txt").read_text().splitlines()
    found = [re.fullmatch(r"(.+?) +\d+ s  (\S+) *(.*)", line) for line in lines]
    return {match[2]: (match[1], match[3]) for match in found}


def test_failed_step_of_a_gpu_run_does_not_stop_the_others(tree):
    done = run(
        tree, "--steps", "bench,suite,one_rank,declarations", "results",
        ON_DECLARATIONS="echo it differs; exit 3", ON_TESTS="[[ $STEP != suite ]]", ON_BENCH="echo 5 us",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert summary(tree / "results") == {
        "nccl": ("passed", ""),
        "declarations": ("failed (3)", "it differs"),
        "one_rank": ("passed", "2 passed, 1 skipped"),
        "suite": ("failed (1)", ""),
        "bench": ("passed", "5 us"),
    }
    assert (tree / "results" / "declarations.log").read_text() == "it differs\n"
    assert "   | it differs" in done.stdout


def test_successful_steps_of_a_gpu_run_are_summarised_as_passed(tree):
    done = run(tree, "--steps", "one_rank,bench", OUT=str(tree / "out"))
    assert done.returncode == 0, done.stdout
    assert {result for result, _ in summary(tree / "out").values()} == {"passed"}


def test_gpu_step_fails_if_its_log_has_an_ignored_exception(tree):
    done = run(tree, "--steps", "bench,declarations", ON_BENCH="echo Exception ignored in: f >&2; echo 5 us", OUT=str(tree / "out"))
    assert done.returncode == 1
    found = summary(tree / "out")
    assert found["bench"] == ("failed (Python ignored an exception)", "5 us") and found["declarations"][0] == "passed"


def test_gpu_step_that_takes_too_long_is_ended_with_its_children(tree):
    started = time.monotonic()
    done = run(tree, "--limit", "1", "--steps", "declarations,bench", ON_DECLARATIONS="echo at it; sleep 100 & wait", ON_BENCH="echo 5 us")
    assert time.monotonic() - started < 15
    assert done.returncode == 1
    found = summary(tree / "build" / "gpu")
    assert found["declarations"] == ("failed (took too long)", "at it") and found["bench"] == ("passed", "5 us")


def test_steps_for_nccl_are_skipped_with_a_reason_if_it_is_missing(tree):
    done = run(tree, "--steps", "declarations,suite,bench", ON_NCCL="echo no driver here; exit 1")
    assert done.returncode == 1
    refusal = ("skipped", "NCCL cannot be used: no driver here")
    assert summary(tree / "build" / "gpu") == {
        "nccl": ("failed (1)", "no driver here"), "declarations": ("passed", ""), "suite": refusal, "bench": refusal,
    }  # fmt: skip
    calls = (tree / "calls").read_text()
    assert " -m pytest " not in calls and "benchmarks" not in calls


def test_gpu_step_whose_tests_are_all_skipped_counts_as_skipped(tree):
    done = run(tree, "--steps", "suite", TESTS_SKIPPED="3")
    assert done.returncode == 0
    assert summary(tree / "build" / "gpu")["suite"] == ("skipped", "0 passed, 3 skipped")


def test_packed_nccl_library_is_unpacked_and_used(tree):
    folder = tree / "build" / "gpu" / "nccl"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2.xz").write_bytes(lzma.compress(b"a library"))
    show = 'echo "library: ${DLDIST_NCCL_LIBRARY-its own}"'
    run(tree, "--steps", "own_nccl", ON_NCCL=show, ON_TESTS=show)
    carried = folder / "libnccl.so.2"
    assert carried.read_bytes() == b"a library"
    assert summary(tree / "build" / "gpu")["nccl"] == ("passed", f"library: {carried}")
    assert (tree / "build" / "gpu" / "own_nccl.log").read_text().startswith("library: its own\nlibrary: its own\n")
    run(tree, "--steps", "nccl", ON_NCCL=show, DLDIST_NCCL_LIBRARY="/another")
    assert summary(tree / "build" / "gpu")["nccl"] == ("passed", "library: /another")


def test_step_for_a_second_nccl_is_skipped_if_there_is_none(tree):
    done = run(tree, "--steps", "own_nccl", DLDIST_NCCL_LIBRARY="/here", ON_NCCL='[[ -n $DLDIST_NCCL_LIBRARY ]] || { echo "none"; exit 1; }')
    assert done.returncode == 0
    assert summary(tree / "build" / "gpu")["own_nccl"] == ("skipped", "none")
    run(tree, "--steps", "own_nccl")
    assert summary(tree / "build" / "gpu")["own_nccl"] == ("skipped", "one_rank has run with it")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--steps", "suite,sweet"], "no such step: sweet"),
        (["--steps"], "--steps needs a value"),
        (["--limit", "1m"], "--limit is a number of seconds: 1m"),
        (["--fast"], "no such option: --fast"),
        (["a", "b"], "one folder is enough: b"),
    ],
)
def test_gpu_run_rejects_wrong_arguments(tree, arguments, text):
    done = run(tree, *arguments)
    assert done.returncode == 2 and text in done.stderr
    assert (tree / "calls").read_text() == ""


def steps(tree):
    """Return {name: its limit}."""
    done = run(tree, "--list")
    assert done.returncode == 0
    return {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}


def test_every_gpu_step_exists_and_fits_into_the_time_limit_of_a_call(tree):
    found = steps(tree)
    assert set(found) == set(re.findall(r"^step_(\w+)\(\)", (GPU / "run.sh").read_text(), re.MULTILINE))
    assert max(found.values()) < CALL_LIMIT_S


def test_every_planned_gpu_run_fits_into_its_time_limit(tree):
    limits = steps(tree)
    calls = re.findall(r"run\.sh (?:--limit (\d+) )?--steps ([\w,]+)", (GPU / "PLAN.md").read_text())
    assert len(calls) >= 4
    for most, names in calls:
        taken = sum(min(limits[name], int(most or CALL_LIMIT_S)) for name in {*names.split(","), "nccl"})
        assert taken < CALL_LIMIT_S, (names, taken)
    assert {name for _, names in calls for name in names.split(",")} == set(limits)


def test_worker_process_fails_if_python_ignores_an_exception(procs):
    """A worker must fail if Python ignores an exception, with the GPU tests' environment."""
    assert procs.start(workers.raise_in_del).result() == "done"
    with pytest.raises(procs_module.ChildFailed, match="LookupError: in __del__"):
        procs.start(workers.raise_in_del, env={"DLDIST_TEST_UNRAISABLE": "fail"}).result()
