"""Whole programs in which calls of the core to the system fail, a few of very many: docs/failing-calls.md."""

import os
import subprocess
import sys

import leak_check
import pytest
from dldist import _core

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "errors", "run_programs.py")


@pytest.mark.deadline(290)
@pytest.mark.skipif(not hasattr(_core, "_fail_system_call"), reason="the extension is built without DLDIST_FAULTS=1")
def test_programs_in_which_calls_fail():
    command = [sys.executable, SCRIPT, "--share", "173", "--slow", str(leak_check.slower())]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
    assert run.returncode == 0, run.stdout
