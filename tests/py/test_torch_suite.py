"""A selection of PyTorch's own tests, aimed at "dldist"; all of them: tests/torch_suite/run.py, docs/torch-suite.md."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.deadline(170)]

RUNNER = pathlib.Path(__file__).resolve().parents[1] / "torch_suite" / "run.py"
SELECTION = [
    "test_DistributedDataParallelCPU",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_full_group_sum",
    "test_all_reduce_sum_complex",
    "test_all_to_all_single_unequal_split_complex",
    "test_barrier_group",
    "test_batch_isend_irecv_gloo",
    "test_gather_object_subgroup",
    "test_grads_same_across_ranks_with_no_sync",
    "test_isend",
    "test_new_subgroups_by_enumeration",
    "test_reduce_group_max",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
    "test_static_graph_api_cpu",
]
MOST_SKIPPED = 0.5  # of the selection: those for a GPU, among others


def test_selection(tmp_path):
    pytest.importorskip("expecttest", reason="PyTorch's own tests need expecttest")
    results = tmp_path / "results.json"
    command = [sys.executable, RUNNER, "--backends=dldist", "--ranks=3", "--only", ",".join(SELECTION), "--json", results]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=160, env=dict(os.environ, PYTHONWARNINGS="ignore"), check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (by_backend,) = json.loads(results.read_text()).values()
    statuses = {name: status for name, (status, _reason) in by_backend["dldist"].items()}
    for part in SELECTION:
        assert any(part in name for name in statuses), f"PyTorch has no test {part} any more"
    assert list(statuses.values()).count("skipped") <= MOST_SKIPPED * len(statuses), statuses
