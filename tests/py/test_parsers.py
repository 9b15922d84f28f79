"""A moment of each fuzzer of a parser in Python, always the same; tests/fuzz/fuzz_python.py goes on for as long as one likes."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))

import fuzz_python  # noqa: E402


@pytest.mark.parametrize("parser", fuzz_python.PARSERS)
def test_parser(parser, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the input of a failure is left
    assert fuzz_python.fuzz(parser, seconds=10, seed=1, most=300) > 30


def test_a_job_of_slurm_may_have_any_name():
    environ = fuzz_python.environ_of(fuzz_python.SLURM.replace("JOB_ID=7", "JOB_ID=\udcff").encode("utf-8", "surrogateescape"))
    assert 61440 <= fuzz_python.launchers.detect(environ).master_port < 65536
