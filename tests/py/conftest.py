"""Give every test a deadline, child processes that end with it, and a clean environment."""

import gc
import importlib.util
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))

import deadlines  # noqa: E402
import leak_check  # noqa: E402
import selection  # noqa: E402
from deadlines import deadline as deadline  # noqa: E402
from deadlines import procs as procs  # noqa: E402
from procs import enter_own_network  # noqa: E402

SETTINGS = (
    "DLDIST_AGENT_STORE DLDIST_CUDA_LIBRARY DLDIST_LOG DLDIST_MASTER_FD DLDIST_NCCL_LIBRARY DLDIST_SECRET DLDIST_STUB_ALLOW_SAME_GPU "
    "DLDIST_STUB_DEVICES DLDIST_STUB_DIR DLDIST_STUB_FAULTS DLDIST_STUB_INSTANT MASTER_ADDR MASTER_PORT RANK VLLM_NCCL_SO_PATH WORLD_SIZE "
    "TORCHELASTIC_USE_AGENT_STORE TORCH_DISTRIBUTED_DEBUG"
).split()
# These take minutes and mostly wait. They start first, to overlap with many short tests.
FIRST = "test_torch_suite.py test_group_past_4_gib.py test_torch_suite_tools.py test_types.py".split()
_lost_by_workers = []
_network = "not needed"


def pytest_addoption(parser):
    selection.add_option(parser)


def pytest_configure(config):
    global _network
    deadlines.begin(config)
    selection.begin(config)
    config.addinivalue_line("markers", "torch: needs PyTorch with torch.distributed")
    if torch_missing() is None:
        refusal = enter_own_network()
        _network = f"the machine's ({refusal})" if refusal else "a namespace of its own"


def pytest_sessionfinish(session):
    """Fail the run if LeakSanitizer finds leaks of the extension, here or in an xdist worker."""
    if not leak_check.is_possible():
        return
    gc.collect()
    lost = leak_check.leaks()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["lost"] = lost
        return
    for block in lost + _lost_by_workers:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nmemory is lost:\n{block}", file=deadlines.stderr, flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Collect a pytest-xdist worker's results. Called at the worker's end, before the session's."""
    output = getattr(node, "workeroutput", {})
    _lost_by_workers.extend(output.get("lost", []))
    selection.collect_from_worker(node.config, output)


def pytest_unconfigure():
    deadlines.end()


def pytest_terminal_summary(terminalreporter, config):
    selection.write_summary(terminalreporter, config)


def pytest_collection_modifyitems(config, items):
    selection.deselect_exhaustive(config, items)
    items.sort(key=lambda item: item.path.name not in FIRST)
    reason = torch_missing()
    for item in items:
        if reason and item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason=reason))


def torch_missing():
    """Return the reason why torch cannot be tested, or None."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    try:
        import torch.distributed
    except Exception as error:  # a broken installation must not break other tests
        return f"PyTorch cannot be imported: {error}"
    if not torch.distributed.is_available():
        return "this PyTorch has no torch.distributed"
    return None


def pytest_report_header():
    return f"torch interop: {torch_missing() or 'on'}; network: {_network}"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Remove the settings of the caller's shell."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
