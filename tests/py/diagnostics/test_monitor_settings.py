"""The environment variables of the watchdog: names, values, errors."""

import os
import re
import warnings

import pytest
from dldist import _core
from dldist._base import monitor_thread, settings
from paths import DOCS


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for setting in settings.FAILURES:
        for name in (*setting.names, *setting.old):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings, "_warned", set())


def test_defaults_of_monitor_settings_apply_without_variables():
    assert vars(settings.failure_settings()) == {setting.attribute: setting.default for setting in settings.FAILURES}


@pytest.mark.parametrize("text, value", [*[(t, True) for t in ("y", "YES", "1", "t", "True")], *[(t, False) for t in ("n", "no", "0", "F", "FALSE")]])
def test_variables_for_truth_values_are_read_as_bools(monkeypatch, text, value):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", text)
    assert settings.failure_settings().blocking_wait is value
    assert settings.value("high_priority") is False, "no other setting has changed"


@pytest.mark.parametrize(
    "name, text",
    [
        ("TORCH_NCCL_ENABLE_MONITORING", "maybe"),
        ("DLDIST_NCCL_NAN_CHECK", "2"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "4"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "yes"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "0"),
        ("DLDIST_COORD_CHECK_MS", "1.5"),
        ("DLDIST_COORD_CHECK_MS", "9" * 30),
        ("DLDIST_FR_DUMP_FORMAT", "xml"),
        ("NCCL_DESYNC_DEBUG", "on"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_malformed_value_of_a_monitor_variable_is_an_error(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(_core.DistArgumentError, match=f"^Invalid value for environment variable: {name}"):
        settings.failure_settings()


def test_empty_environment_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "")
    assert settings.failure_settings().dump_on_timeout is None


def test_variable_of_dldist_takes_precedence_over_that_of_torch(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/c")
    assert settings.failure_settings().dump_file == "/c"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "/b")
    assert settings.failure_settings().dump_file == "/b"
    monkeypatch.setenv("DLDIST_FR_DUMP_FILE", "/a")
    assert settings.failure_settings().dump_file == "/a"


def test_deprecated_names_of_variables_warn_once(monkeypatch):
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    with pytest.warns(FutureWarning, match="NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        assert settings.failure_settings().async_error_handling == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings.failure_settings().async_error_handling == 1
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        assert settings.failure_settings().async_error_handling == 0


@pytest.mark.parametrize(
    "env, dumping",
    [
        ({}, monitor_thread._DUMPING_DEVICES),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, monitor_thread._DUMPING_ON),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "DLDIST_FR_DUMP_FILE": "/a"}, monitor_thread._DUMPING_OFF),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/a"}, monitor_thread._DUMPING_ON),
    ],
)
def test_variables_for_dumps_determine_when_dumps_are_written(monkeypatch, env, dumping):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert monitor_thread._dump_mode(settings.failure_settings()) == dumping


def test_default_path_of_dumps_is_in_the_cache_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert settings.dump_prefix() == "/cache/torch/comm_lib_trace_rank_"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert settings.dump_prefix() == os.path.expanduser("~/.cache/torch/comm_lib_trace_rank_")


# The defaults of ProcessGroupNCCL and FlightRecorder in PyTorch's sources. A bool is 0 or 1.
DEFAULTS_OF_TORCH = {
    "TORCH_NCCL_COORD_CHECK_MILSEC": 1000,
    "TORCH_NCCL_PROPAGATE_ERROR": False,
    "TORCH_NCCL_DUMP_ON_TIMEOUT": True,
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": 15000,
    "TORCH_NCCL_EXTRA_DUMP_ON_EXEC": False,
    "TORCH_INCLUDE_STACK_TRACE": True,
    "TORCH_INCLUDE_ONLY_ACTIVE": False,
    "TORCH_NCCL_DESYNC_DEBUG": False,
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": 480,
    "TORCH_NCCL_ENABLE_MONITORING": True,
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": 3,
    "TORCH_NCCL_BLOCKING_WAIT": False,
    "TORCH_NCCL_HIGH_PRIORITY": False,
    "TORCH_NCCL_NAN_CHECK": False,
    "TORCH_NCCL_ENABLE_TIMING": False,
    "TORCH_NCCL_CUDA_EVENT_CACHE": True,
    "TORCH_NCCL_RANKS_PER_ROOT": 128,
    "TORCH_NCCL_USE_COMM_NONBLOCKING": False,
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": 1800,
}


def rows_of_the_table():
    """Yield dldist's name, torch's names, torch's default and dldist's."""
    page = (DOCS / "watchdog.md").read_text(encoding="utf-8")
    table = page.partition("| variable | torch's name |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        dldist_name, aliases, of_torch, here, _ = (cell.strip() for cell in line.strip("|").split("|"))
        yield dldist_name.strip("`"), tuple(re.findall(r"`(\w+)`", aliases)), of_torch, here


def words(default):
    return str(int(default)) if isinstance(default, int) else None


def test_documented_defaults_of_monitor_variables_are_correct():
    found = {setting.names[0]: setting for setting in settings.FAILURES}
    rows = {name: rest for name, *rest in rows_of_the_table()}
    assert rows.keys() == found.keys()
    numbers = set()
    for name, (aliases, of_torch, here) in rows.items():
        assert aliases == found[name].names[1:], name
        is_number = words(found[name].default) is not None
        assert here == words(found[name].default) if is_number else not here.isdecimal(), name
        numbers.update(aliases if of_torch.isdecimal() else ())
        for each in aliases:
            assert of_torch == words(DEFAULTS_OF_TORCH[each]) if of_torch.isdecimal() else each not in DEFAULTS_OF_TORCH, each
    assert numbers == DEFAULTS_OF_TORCH.keys()


def test_documented_defaults_that_differ_from_torch_have_a_reason():
    page = (DOCS / "watchdog.md").read_text(encoding="utf-8")
    reasons = page.partition("Reasons for defaults that differ from torch's:\n\n")[2].partition("\n\n")[0]
    differing = {name for name, aliases, of_torch, here in rows_of_the_table() if of_torch.isdecimal() and of_torch != here}
    assert set(re.findall(r"`(DLDIST_\w+)`", reasons)) == differing


@pytest.mark.parametrize("page", ["watchdog.md", "environment.md"])
def test_documentation_pages_list_all_monitor_variables(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    known = set(re.findall(r"`([A-Z0-9_]+)`", text))
    for setting in settings.FAILURES:
        assert {*setting.names, *setting.old} <= known
    accepted = re.search(r"Accepted, without effect: (.*)\.", (DOCS / "environment.md").read_text(encoding="utf-8"))[1]
    assert set(accepted.replace("`", "").split(", ")) <= known
