"""Each allocation of typical calls fails once: the call must raise MemoryError or succeed, and the
next call work. See out_of_memory_workers.py."""

import importlib.util
import platform
import sys

import dldist
import leak_check
import nccl_stubs
import out_of_memory_workers as cases
import pytest
from dldist import _core

NEEDS = {
    "core": (hasattr(_core, "_fail_allocation"), "the extension is built without DLDIST_FAULTS=1"),
    "python": (importlib.util.find_spec("_testcapi") is not None, "this Python has no _testcapi"),
}
NEEDS["burst"] = NEEDS["python"]
RUNS = [
    pytest.param(case.__name__, allocator, marks=pytest.mark.skipif(not NEEDS[allocator][0], reason=NEEDS[allocator][1]))
    for case in cases.CASES
    for allocator in cases.ALLOCATORS
]


@pytest.mark.deadline(150)
@pytest.mark.parametrize(("name", "allocator"), RUNS)
def test_each_allocation_may_fail_without_a_crash_or_a_leak(procs, name, allocator):
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    env = {"OUT_OF_MEMORY_PORT": str(store.port)}
    if name == "nccl_group":
        env.update(nccl_stubs.build().environment(devices=1))
    counts = procs.start(cases.run_case, name, allocator, env=env).result(140)
    assert counts and (allocator != "python" or sum(counts) > 0), counts


def survives_lack_of_memory(procs):
    """Return False for Python 3.13.0, which uses a dict after its growth has failed."""
    if sys.version_info[:2] != (3, 13):
        return True
    child = procs.start(cases.make_modules_of_python)
    return child.wait_exit(60) >= 0  # negative: ended by a signal


ALLOCATORS = [
    pytest.param(name, marks=pytest.mark.skipif(not NEEDS[name][0], reason=NEEDS[name][1])) for name in cases.ALLOCATORS
]


@pytest.mark.deadline(150)
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_each_allocation_of_the_import_may_fail_without_a_crash_or_a_leak(procs, allocator):
    if allocator != "core" and not survives_lack_of_memory(procs):
        pytest.skip(f"Python {platform.python_version()} crashes when memory runs out for types of its own modules")
    assert procs.start(cases.make_modules, allocator).result(140) > 0


@pytest.mark.deadline(150)
@pytest.mark.skipif(not NEEDS["core"][0], reason=NEEDS["core"][1])
@pytest.mark.parametrize("name", cases.PAIRED)
def test_each_allocation_of_two_ranks_may_fail_without_a_crash_or_a_leak(procs, name):
    """A rank without memory must notify the other, or the other must time out; neither may hang."""
    procs.start(cases.run_pair, name).result(140)


@pytest.mark.skipif(not leak_check.is_possible(), reason="not under LeakSanitizer: make test-py-asan")
def test_out_of_memory_tests_detect_a_leak(procs):
    with pytest.raises(AssertionError, match="memory is lost(.|\n)*py_memory_array_dlpack"):
        procs.start(cases.lose_memory).result(60)
