"""Limits for the system calls of whole Python calls that need not wait. Counts, not times, so equal
on every machine.

Lower a limit when a call gets cheaper; never raise one. tests/c/test_counts.c has the costs of the
core, including allocations and copies.
"""

import json
import shutil
import subprocess
import sys

import leak_check
import pytest
from paths import SUPPORT, TESTS

pytestmark = [
    pytest.mark.deadline(120),
    pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the counter"),
    pytest.mark.skipif(leak_check.is_possible(), reason="sanitizers make system calls of their own"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ptrace"),
]

LIMITS = {
    "barrier": 0,
    "plan.barrier": 0,
    "broadcast": 0,
    "plan.broadcast": 0,
    "reduce": 0,
    "plan.reduce": 0,
    "all_reduce": 0,
    "plan.all_reduce": 0,
    "all_gather_single": 0,
    "plan.all_gather_single": 0,
    "reduce_scatter_single": 0,
    "plan.reduce_scatter_single": 0,
    "all_to_all_single": 0,
    "plan.all_to_all_single": 0,
    "send": 0,
    "recv": 0,
}


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counts")
    program, counter = folder / "count_syscalls", folder / "counter"
    sources = [SUPPORT / "count_syscalls.c", TESTS / "c" / "syscall_counter.c"]
    subprocess.run(["cc", "-std=gnu11", "-D_GNU_SOURCE", "-I", TESTS / "c", "-o", program, *sources], check=True)
    command = [program, counter, sys.executable, SUPPORT / "count_worker.py", counter, folder / "store"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if done.returncode == 77:
        pytest.skip(f"system calls cannot be counted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_counter_of_system_calls_counts_correctly(counts):
    assert counts["getppid, five times"] == 5


@pytest.mark.parametrize("call", LIMITS)
def test_each_call_makes_few_system_calls(counts, call):
    assert counts[call] <= LIMITS[call]


def test_all_counted_calls_have_a_limit_of_system_calls(counts):
    assert set(counts) == {*LIMITS, "getppid, five times"}
