"""Tests that need a GPU; they are skipped without one.

DLDIST_GPU_REHEARSAL=1 runs the same tests with the stubs of tests/stubs instead of a GPU."""

import gc
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SUPPORT = os.path.join(os.path.dirname(HERE), "py", "support")
sys.path[:0] = [HERE, SUPPORT]

# Child processes of tests find their workers here.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
# Exceptions that Python ignores, as in __del__, fail the test: here by pytest's filter, in child
# processes by procs.py.
os.environ["DLDIST_TEST_UNRAISABLE"] = "fail"
# Two ranks on one GPU; read by NCCL when it is loaded.
os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("NCCL_MAX_CTAS", "4")

import deadlines  # noqa: E402
from deadlines import deadline as deadline  # noqa: E402
from deadlines import procs as procs  # noqa: E402

IS_REHEARSAL = "DLDIST_GPU_REHEARSAL" in os.environ
if IS_REHEARSAL:
    import nccl_stubs

    os.environ.update(nccl_stubs.build().environment(devices=1))


def pytest_configure(config):
    deadlines.begin(config)
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True)
def collect_garbage():
    """Run the __del__ of all garbage within the test that left it."""
    yield
    gc.collect()


def pytest_unconfigure():
    deadlines.end()


def pytest_report_header():
    return "a rehearsal, with stubs of libcuda and libnccl" if IS_REHEARSAL else "on a GPU"


def pytest_collection_modifyitems(items):
    import dldist.nccl

    why = dldist.nccl.why_not_available()
    if why:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))
