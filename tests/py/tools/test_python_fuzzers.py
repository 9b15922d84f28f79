"""A short, deterministic run of each fuzzer of a Python parser. fuzz_python.py runs longer."""

import sys

import pytest
from paths import TESTS

sys.path.insert(0, str(TESTS / "fuzz"))

import fuzz_python  # noqa: E402


@pytest.mark.parametrize("parser", fuzz_python.PARSERS)
def test_parsers_raise_only_their_own_errors_for_fuzzed_input(parser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the input of a failure is written here
    assert fuzz_python.fuzz(parser, seconds=10, seed=1, most=300) > 30


def test_slurm_job_id_may_have_any_bytes():
    environ = fuzz_python.environ_of(fuzz_python.SLURM.replace("JOB_ID=7", "JOB_ID=\udcff").encode("utf-8", "surrogateescape"))
    assert 61440 <= fuzz_python.launchers.detect(environ).master_port < 65536
