"""The environment variables of the watchdog: names, values, errors."""

import os
import pathlib
import re
import warnings

import pytest
from dldist import _core
from dldist.base import settings, watch

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for setting in settings.FAILURES:
        for name in (*setting.names, *setting.old):
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings, "_warned", set())


def test_defaults():
    assert vars(settings.of_failures()) == {setting.attribute: setting.default for setting in settings.FAILURES}


@pytest.mark.parametrize("text, value", [*[(t, True) for t in ("y", "YES", "1", "t", "True")], *[(t, False) for t in ("n", "no", "0", "F", "FALSE")]])
def test_truth(monkeypatch, text, value):
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", text)
    assert settings.of_failures().blocking_wait is value
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
def test_nonsense(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(_core.DistArgumentError, match=f"^Invalid value for environment variable: {name}"):
        settings.of_failures()


def test_empty_is_unset(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "")
    assert settings.of_failures().dump_on_timeout is None


def test_ours_comes_first(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/c")
    assert settings.of_failures().dump_file == "/c"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", "/b")
    assert settings.of_failures().dump_file == "/b"
    monkeypatch.setenv("DLDIST_FR_DUMP_FILE", "/a")
    assert settings.of_failures().dump_file == "/a"


def test_names_of_old_warn_once(monkeypatch):
    monkeypatch.setenv("NCCL_ASYNC_ERROR_HANDLING", "1")
    with pytest.warns(FutureWarning, match="NCCL_ASYNC_ERROR_HANDLING is deprecated; use TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        assert settings.of_failures().async_error_handling == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings.of_failures().async_error_handling == 1
        monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        assert settings.of_failures().async_error_handling == 0


@pytest.mark.parametrize(
    "env, dumping",
    [
        ({}, watch._DUMPING_DEVICES),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, watch._DUMPING_ON),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "DLDIST_FR_DUMP_FILE": "/a"}, watch._DUMPING_OFF),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/a"}, watch._DUMPING_ON),
    ],
)
def test_what_is_dumped(monkeypatch, env, dumping):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert watch._dumping(settings.of_failures()) == dumping


def test_the_default_place(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert settings.dump_prefix() == "/cache/torch/comm_lib_trace_rank_"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert settings.dump_prefix() == os.path.expanduser("~/.cache/torch/comm_lib_trace_rank_")


@pytest.mark.parametrize("page", ["watchdog.md", "environment.md"])
def test_the_pages_have_all_variables(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    known = set(re.findall(r"`([A-Z0-9_]+)`", text))
    for setting in settings.FAILURES:
        assert {*setting.names, *setting.old} <= known
    accepted = re.search(r"Accepted, without effect: (.*)\.", (DOCS / "environment.md").read_text(encoding="utf-8"))[1]
    assert set(accepted.replace("`", "").split(", ")) <= known
