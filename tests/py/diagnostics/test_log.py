"""The log: core records must reach Python's logging; if it is off, no log thread may run."""

import os
import subprocess
import sys
import textwrap

import pytest

USE = """
import logging, os, sys, threading, time
{setup}
import dldist
master = dldist.TCPStore("127.0.0.1", 0, is_master=True)
client = dldist.TCPStore("127.0.0.1", master.port)
client.set("k", "v")
client.get("k")
threads = len(os.listdir("/proc/self/task"))
{end}
"""

COLLECT = """
records = []
class Collect(logging.Handler):
    def emit(self, record):
        records.append((record.name, record.levelname, record.getMessage(), threading.current_thread().name))
logging.getLogger("dldist").addHandler(Collect())
logging.getLogger("dldist").setLevel(logging.DEBUG)
"""

PRINT_WHEN_THERE = """
deadline = time.monotonic() + 5
while not {condition} and time.monotonic() < deadline:
    time.sleep(0.01)
for record in list(records):
    print(*record, sep="|")
"""


def run(setup, end, level):
    environment = dict(os.environ)
    environment.pop("DLDIST_LOG", None)
    if level is not None:
        environment["DLDIST_LOG"] = level
    code = USE.format(setup=setup, end=textwrap.dedent(end))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def records_of(out):
    return [line.split("|") for line in out.splitlines() if line.count("|") >= 3]


def test_debug_records_are_passed_to_pythons_logging():
    out, _ = run(COLLECT, PRINT_WHEN_THERE.format(condition="any(r[1] == 'DEBUG' for r in records)"), "debug")
    records = records_of(out)
    assert records, out
    assert all(name.split(".")[0] == "dldist" for name, *_ in records)
    assert any(level == "DEBUG" for _, level, *_ in records)
    assert any("127.0.0.1" in message for _, _, message, *_ in records), records


def test_log_level_info_leaves_out_debug_records():
    out, _ = run(COLLECT, PRINT_WHEN_THERE.format(condition="records"), "INFO")
    records = records_of(out)
    assert records, out
    assert all(level == "INFO" for _, level, *_ in records)


@pytest.mark.parametrize(
    ("setup", "level"),
    [
        (COLLECT, "off"),
        ("", None),
        ("logging.basicConfig()", ""),
        ("logging.basicConfig(level='DEBUG'); logging.getLogger('dldist').setLevel('WARNING')", None),
    ],
)
def test_log_level_off_is_silent_and_runs_no_thread(setup, level):
    out, err = run(setup, "time.sleep(0.1); print(threading.active_count(), threads)", level)
    assert out.split() == ["1", "2"]  # the second task is the server's thread
    assert err == ""


@pytest.mark.parametrize("setup", [COLLECT, COLLECT.replace(".setLevel(logging.DEBUG)", "") + "logging.basicConfig(level='DEBUG')"])
def test_log_level_set_before_the_import_applies(setup):
    out, _ = run(setup, PRINT_WHEN_THERE.format(condition="any(r[1] == 'DEBUG' for r in records)"), None)
    assert {"INFO", "DEBUG"} == {level for _, level, *_ in records_of(out)}, out


SET_LATER = """
dldist.World().close()
{set_level}
{then}
store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
""" + PRINT_WHEN_THERE.format(condition="records")


@pytest.mark.parametrize(
    ("set_level", "then", "is_shown"),
    [
        ("logging.getLogger('dldist').setLevel('INFO')", "", True),
        ("logging.getLogger('dldist').setLevel('INFO')", "logging.getLogger('dldist').setLevel('ERROR')", False),
        ("logging.getLogger('dldist').setLevel('INFO')", "dldist.set_log_level('off')", False),
        ("dldist.set_log_level('info')", "logging.getLogger('dldist').setLevel('ERROR')", False),
        ("dldist.set_log_level('off')", "logging.getLogger('dldist').setLevel('INFO')", True),
        ("logging.basicConfig(level='INFO')", "dldist.World().close()", True),  # read when a World is created
    ],
)
def test_log_level_that_was_set_last_applies(set_level, then, is_shown):
    setup = COLLECT.replace(".setLevel(logging.DEBUG)", "")
    end = SET_LATER.format(set_level=set_level, then=then).replace("+ 5", "+ 5" if is_shown else "+ 0.2")
    out, _ = run(setup, end, None)
    assert bool(records_of(out)) == is_shown, out


def test_unknown_log_level_is_reported():
    """A misspelt level must not break the import, and must be reported."""
    environment = dict(os.environ, DLDIST_LOG="verbos")
    done = subprocess.run(
        [sys.executable, "-c", "import dldist"], env=environment, capture_output=True, text=True, timeout=25
    )
    assert "DLDIST_LOG" in done.stderr and "verbos" in done.stderr


def test_process_exit_with_logging_on_is_clean():
    out, err = run("logging.basicConfig(level=logging.DEBUG)", "print('end')", "debug")
    assert out == "end\n"
    assert "Traceback" not in err and "Fatal" not in err


def test_log_contains_no_secret():
    setup = COLLECT + "os.environ['DLDIST_SECRET'] = 'sesame-77'\n"
    out, err = run(setup, PRINT_WHEN_THERE.format(condition="len(records) > 2"), "debug")
    assert records_of(out)
    assert "sesame" not in out + err
