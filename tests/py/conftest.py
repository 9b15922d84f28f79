"""What every test gets: a deadline of its own, and child processes that do not outlive it.

    @pytest.mark.deadline(60)     # seconds; 30 when not given

At the deadline the test fails, by an exception in the main thread. If even that does not end it (a call that does not look
after signals), faulthandler writes all tracebacks some seconds later and ends the run.
"""

import faulthandler
import gc
import importlib.util
import os
import signal
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import leak_check  # noqa: E402
import procs as procs_module  # noqa: E402

DEFAULT_DEADLINE_S = 30
GRACE_S = 10
SETTINGS = (
    "DLDIST_AGENT_STORE DLDIST_CUDA_LIBRARY DLDIST_LOG DLDIST_MASTER_FD DLDIST_NCCL_LIBRARY DLDIST_SECRET DLDIST_STUB_ALLOW_SAME_GPU "
    "DLDIST_STUB_DEVICES DLDIST_STUB_DIR DLDIST_STUB_FAULTS MASTER_ADDR MASTER_PORT RANK VLLM_NCCL_SO_PATH WORLD_SIZE "
    "TORCHELASTIC_USE_AGENT_STORE TORCH_DISTRIBUTED_DEBUG"
).split()
_stderr_copy = None
_lost_by_workers = []
_network = "not needed"


class DeadlineExceeded(BaseException):
    """Not an Exception: no test may swallow it."""


def pytest_configure(config):
    global _stderr_copy, _network
    config.addinivalue_line("markers", "deadline(seconds): how long the test may take")
    config.addinivalue_line("markers", "torch: needs PyTorch with torch.distributed")
    # pytest's capture would swallow what faulthandler writes to descriptor 2.
    _stderr_copy = os.fdopen(os.dup(2), "w")
    if torch_missing() is None:
        refusal = procs_module.enter_own_network()
        _network = f"the machine's ({refusal})" if refusal else "a namespace of its own"


def pytest_sessionfinish(session):
    """Under LeakSanitizer: what the extension has lost in this process, or in one of pytest-xdist's, fails the run."""
    if not leak_check.is_possible():
        return
    gc.collect()
    lost = leak_check.leaks()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["lost"] = lost
        return
    for block in lost + _lost_by_workers:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nmemory is lost:\n{block}", file=_stderr_copy, flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """pytest-xdist: a worker has ended, which is before the session does."""
    _lost_by_workers.extend(getattr(node, "workeroutput", {}).get("lost", []))


def pytest_unconfigure():
    _stderr_copy.close()


def pytest_collection_modifyitems(items):
    reason = torch_missing()
    for item in items:
        if reason and item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason=reason))


def torch_missing():
    """Why there is no torch to test against, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    try:
        import torch.distributed
    except Exception as error:  # a broken installation must not break the others' tests
        return f"PyTorch cannot be imported: {error}"
    if not torch.distributed.is_available():
        return "this PyTorch has no torch.distributed"
    return None


def pytest_report_header():
    return f"torch interop: {torch_missing() or 'on'}; network: {_network}"


@pytest.fixture(autouse=True)
def deadline(request):
    marker = request.node.get_closest_marker("deadline")
    seconds = (marker.args[0] if marker else DEFAULT_DEADLINE_S) * leak_check.slower()

    def on_alarm(_signum, _frame):
        raise DeadlineExceeded(f"{request.node.nodeid} took longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=_stderr_copy)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield seconds
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def procs():
    group = procs_module.Group()
    try:
        yield group
    finally:
        group.close()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Settings of the caller's shell are not part of a test."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
