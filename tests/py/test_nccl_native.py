"""The tests of nccl_native_cases.py, over the doubles of NCCLs with and without calls for gather, scatter and all-to-all, those of
nccl_estimate_cases.py, over NCCLs that estimate and one that does not, and those of nccl_config_cases.py, over NCCLs that configure single
collectives and one that does not."""

import os
import subprocess
import sys

import nccl_stubs
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 100

pytestmark = pytest.mark.deadline(LIMIT_S + 10)


@pytest.mark.parametrize("version", ["2.27.3", "2.28.3", "2.32.3"])
def test_native_calls_of_version(version):
    run("nccl_native_cases.py", version)


@pytest.mark.parametrize("version", ["2.19.3", "2.22.3", "2.32.3"])
def test_estimates_of_version(version):
    run("nccl_estimate_cases.py", version)


@pytest.mark.parametrize("version", ["2.30.7", "2.31.2", "2.32.3"])
def test_configurations_of_version(version):
    run("nccl_config_cases.py", version)


def run(file, version):
    stubs = nccl_stubs.build(version)
    environment = {**os.environ, **stubs.environment(devices=4), "NCCL_TEST_VERSION": version}
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command.append(os.path.join(HERE, file))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
