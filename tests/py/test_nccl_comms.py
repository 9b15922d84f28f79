"""The tests of nccl_life_comms.py, in a process of their own: a library that has been loaded stays."""

import os
import subprocess
import sys

import leak_check
import nccl_stubs
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 60


@pytest.mark.deadline(LIMIT_S + 10)
def test_communicators_of_one_process():
    environment = {**os.environ, **nccl_stubs.build("2.32.3").environment(devices=4)}
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command.append(os.path.join(HERE, "nccl_life_comms.py"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S * leak_check.slower())
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
