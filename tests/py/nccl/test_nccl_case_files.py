"""Run the test files over the NCCL stubs, each with the versions that it distinguishes.

Each file runs in its own process: libraries, and some fake frameworks, are looked up once per
process.
"""

import os
import subprocess
import sys

import leak_check
import nccl_stubs
import pytest
from paths import SUPPORT

pytestmark = pytest.mark.exhaustive(every=6)

LIMIT_S = 100
VERSIONS = {
    "nccl_comms_cases.py": ("2.32.3",),
    "nccl_group_cases.py": ("2.18.1", "2.27.3", "2.32.3"),
    "nccl_mistakes_cases.py": ("2.18.1", "2.27.3", "2.32.3"),
    "nccl_stream_cases.py": ("2.19.3", "2.32.3"),
    "nccl_estimate_cases.py": ("2.19.3", "2.22.3", "2.32.3"),  # 2.22 adds estimates
    # 2.28 adds calls for gather, scatter and all-to-all
    "nccl_native_cases.py": ("2.27.3", "2.28.3", "2.32.3"),
    "nccl_config_cases.py": ("2.30.7", "2.31.2", "2.32.3"),  # 2.31 adds configurations
}


@pytest.mark.deadline(LIMIT_S + 10)
@pytest.mark.parametrize(("file", "version"), [(file, version) for file in VERSIONS for version in VERSIONS[file]])
def test_each_file_of_nccl_cases_passes_with_every_nccl_version(file, version):
    stubs = nccl_stubs.build(version)
    environment = {**os.environ, **stubs.environment(devices=4), "NCCL_TEST_VERSION": version}
    status, output = run(file, environment)
    assert status == 0, output
    assert " passed" in output


def run(file, environment):
    """Run a file; return the process's exit status and output.

    If LeakSanitizer itself crashes, that is not the test's failure, so run it again.
    """
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SUPPORT / file)]
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    for _ in range(2):
        with subprocess.Popen(command, **options) as process:
            try:
                output, _ = process.communicate(timeout=LIMIT_S * leak_check.slower())
            except subprocess.TimeoutExpired:
                process.kill()
                pytest.fail(f"{file} is not through:\n{process.communicate()[0]}")
        if not leak_check.has_broken_down_in(process.pid, file):
            break
    return process.returncode, output
