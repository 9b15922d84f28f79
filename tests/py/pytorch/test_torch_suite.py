"""PyTorch's own tests, run on dldist: those in the wheel of torch, and a selection of its test
files if available.

DLDIST_TORCH_TESTS names a folder filled by tests/torch_suite/fetch.py; without it, the files are
skipped. All tests must pass, except those with a reason in tests/torch_suite/reasons.toml, which
must fail. tests/torch_suite/run.py runs all files, compared with gloo (docs/torch-suite.md).
"""

import collections
import json
import os
import subprocess
import sys

import pytest
from paths import TESTS

pytestmark = [pytest.mark.torch, pytest.mark.deadline(400)]

SUITE = TESTS / "torch_suite"
sys.path.insert(0, str(SUITE))

import table  # noqa: E402

FILES = os.environ.get("DLDIST_TORCH_TESTS")
PARTS_OF_THE_WHEEL = 4
# (aim, additional options, files)
SELECTION = [
    ("dldist", [], ["test_c10d_gloo.py"]),
    ("dldist", [], ["test_c10d_common.py"]),
    ("dldist", [], ["test_c10d_object_collectives.py", "test_control_collectives.py", "test_c10d_pypg.py", "test_backends.py"]),
    ("dldist", [], ["test_c10d_spawn_gloo.py", "test_collective_utils.py", "_composable/test_replicate.py", "algorithms/test_join.py"]),
    ("dldist", [], ["_tensor/test_redistribute.py", "checkpoint/test_file_system_checkpoint_cpu.py"]),
    ("dldist", ["--onto-cpu"], [f"_composable/fsdp/test_fully_shard_{part}.py" for part in ("autograd", "extensions", "frozen")]),
    ("front", [], ["test_store.py", "test_c10d_object_collectives.py"]),
    ("front", [], ["test_control_collectives.py", "test_collective_utils.py"]),
    ("front", ["--only=DistributedDataParallelTest,ReducerTest"], ["test_c10d_gloo.py"]),
]


def outcomes_of(tmp_path, aim, *arguments):
    """Run tests; return {(file, test): outcome}."""
    pytest.importorskip("expecttest", reason="PyTorch's own tests need expecttest")
    results = tmp_path / "results.json"
    command = [sys.executable, SUITE / "run.py", "--aims", aim, "--limit=120", "--json", results, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=390, check=False)
    assert results.exists(), ran.stdout + ran.stderr
    files = json.loads(results.read_text())["files"]
    return {(file, test): outcome for file, by_aim in files.items() for test, outcome in by_aim[aim].items()}


def check(outcomes, aim):
    """Check that every failure has a reason, and that every test with a reason fails."""
    reasons = table.Reasons()
    wrong = [
        f"{file}: {test}: {outcome['status']}\n{outcome['reason']}"
        for (file, test), outcome in outcomes.items()
        if outcome["status"] != "skipped" and (outcome["status"] == "failed") == (reasons.why(aim, file, table.short(test)) is None)
    ]
    assert not wrong, "\n".join(wrong)


def count(outcomes, status):
    return collections.Counter(outcome["status"] for outcome in outcomes.values())[status]


@pytest.mark.parametrize("part", range(1, PARTS_OF_THE_WHEEL + 1))
def test_torchs_tests_in_its_wheel_pass_as_expected_on_dldist(tmp_path, part):
    outcomes = outcomes_of(tmp_path, "dldist", "--ranks=3", f"--part={part}/{PARTS_OF_THE_WHEEL}")
    check(outcomes, "dldist")
    # Most of the wheel's tests need a GPU.
    assert count(outcomes, "passed") >= 0.2 * len(outcomes), outcomes


def test_torchs_tests_for_gloo_pass_as_expected_on_dldist(tmp_path):
    """Tests that exist only for Gloo: profiler entries by name, DDP's log, monitored_barrier."""
    outcomes = outcomes_of(tmp_path, "as-gloo", "--ranks=3", "--only=profiler,ddp_logging,monitored_barrier,all_reduce_sum,gather_full")
    check(outcomes, "as-gloo")
    assert count(outcomes, "passed") >= 10, outcomes


@pytest.mark.skipif(not FILES, reason="DLDIST_TORCH_TESTS names no folder with PyTorch's tests")
@pytest.mark.parametrize(("aim", "options", "files"), SELECTION, ids=[f"{aim}-{files[0]}" for aim, _, files in SELECTION])
def test_torchs_test_files_pass_as_expected_on_dldist(tmp_path, aim, options, files):
    outcomes = outcomes_of(tmp_path, aim, "--tests", FILES, *options, *files)
    check(outcomes, aim)
    for file in {file for file, _test in outcomes}:
        assert any(outcome["status"] == "passed" for (of, _), outcome in outcomes.items() if of == file), file
