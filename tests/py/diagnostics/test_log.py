"""DLDIST_LOG: core records must reach Python's logging; without it, no log thread may run."""

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


def test_debug_records_reach_logging():
    out, _ = run(COLLECT, PRINT_WHEN_THERE.format(condition="any(r[1] == 'DEBUG' for r in records)"), "debug")
    records = records_of(out)
    assert records, out
    assert all(name.split(".")[0] == "dldist" for name, *_ in records)
    assert any(level == "DEBUG" for _, level, *_ in records)
    assert any("127.0.0.1" in message for _, _, message, *_ in records), records


def test_info_level_has_no_debug_records():
    out, _ = run(COLLECT, PRINT_WHEN_THERE.format(condition="records"), "INFO")
    records = records_of(out)
    assert records, out
    assert all(level == "INFO" for _, level, *_ in records)


@pytest.mark.parametrize("level", [None, "", "off"])
def test_off_is_silent_and_runs_no_thread(level):
    out, err = run(COLLECT, "time.sleep(0.1); print(records, threading.active_count(), threads)", level)
    assert out.split() == ["[]", "1", "2"]  # the second task is the server's thread
    assert err == ""


def test_unknown_level_is_reported():
    """A misspelt level must not break the import, and must be reported."""
    environment = dict(os.environ, DLDIST_LOG="verbos")
    done = subprocess.run(
        [sys.executable, "-c", "import dldist"], env=environment, capture_output=True, text=True, timeout=25
    )
    assert "DLDIST_LOG" in done.stderr and "verbos" in done.stderr


def test_exit_with_logging_on_is_clean():
    out, err = run("logging.basicConfig(level=logging.DEBUG)", "print('end')", "debug")
    assert out == "end\n"
    assert "Traceback" not in err and "Fatal" not in err


def test_log_contains_no_secret():
    setup = COLLECT + "os.environ['DLDIST_SECRET'] = 'sesame-77'\n"
    out, err = run(setup, PRINT_WHEN_THERE.format(condition="len(records) > 2"), "debug")
    assert records_of(out)
    assert "sesame" not in out + err
