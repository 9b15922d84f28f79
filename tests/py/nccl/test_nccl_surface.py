"""c10d's interface of ProcessGroupNCCL besides operations, over the stubs of tests/stubs."""

import re

import nccl_stubs
import nccl_surface_workers
import pytest
from test_nccl_config import run as run_program
from test_nccl_lifecycle import NOTHING
from test_nccl_lifecycle import run as run_ranks

pytestmark = pytest.mark.exhaustive(every=4)


def run(name, tmp_path, size=2, **options):
    return run_ranks(name, size, tmp_path, worker=nccl_surface_workers.member, **options)[0]


@pytest.mark.parametrize(
    "name", ["waits_without_the_other_rank", "timing_from_now_on", "completion_hook_with_timing", "completion_hook_without_timing"]
)
def test_nccl_works_can_be_timed_and_call_completion_hooks(tmp_path, name):
    assert run(name, tmp_path) == [NOTHING] * 2


# ---- encryption

ENCRYPTED = {"DLDIST_NCCL_ENCRYPTION": "1"}


def test_all_ranks_encrypt_nccl_traffic_with_one_key(tmp_path, monkeypatch):
    monkeypatch.setenv("DLDIST_SECRET", "only the ranks know")
    assert run("encrypts", tmp_path, env=ENCRYPTED) == [NOTHING] * 2


@pytest.mark.parametrize(
    "name, rank_pattern, setting",
    [
        ("encrypts_on_some", r"rank 1 \(.*\) does not encrypt", "DLDIST_NCCL_ENCRYPTION"),
        ("encrypts_with_another_secret", r"rank 1 \(.*\) encrypts with another key", "DLDIST_SECRET"),
    ],
)
def test_ranks_that_disagree_on_nccl_encryption_fail(tmp_path, monkeypatch, name, rank_pattern, setting):
    monkeypatch.setenv("DLDIST_SECRET", "only the ranks know")
    for text in run(name, tmp_path, env=ENCRYPTED):
        assert re.search(rf"rank 0 \(.*\) encrypts NCCL's connections, and {rank_pattern}; set the same {setting} on all ranks", text), text


WHY_NOT = """
from dldist import nccl
try:
    nccl.NcclGroup(None, 0, 1)
except NotImplementedError as error:
    print(error)
"""


def test_nccl_encryption_needs_a_newer_nccl_and_a_secret():
    old, new = (nccl_stubs.build(version).environment() for version in ("2.27.3", "2.32.3"))
    text = run_program(WHY_NOT, {**old, **ENCRYPTED, "DLDIST_SECRET": "secret"})
    assert text.startswith("ncclSetEncryption needs NCCL 2.32.3 or newer, this is 2.27.3 ("), text
    text = run_program(WHY_NOT, {**new, **ENCRYPTED, "DLDIST_SECRET": ""})
    assert text.startswith("DLDIST_NCCL_ENCRYPTION=1 needs a secret, from which the key is derived"), text


# ---- reproducible results


@pytest.mark.parametrize(
    "env, algorithms",
    [
        ({}, None),
        ({"TORCH_FLAG": "0"}, None),
        ({"TORCH_FLAG": "1"}, b"^NVLS"),
        ({"TORCH_FLAG": "1", "DLDIST_NCCL_DETERMINISTIC": "0"}, None),
        ({"DLDIST_NCCL_DETERMINISTIC": "1"}, b"^NVLS"),
        ({"DLDIST_NCCL_DETERMINISTIC": "1", "NCCL_ALGO": "Ring"}, b"Ring"),
    ],
)
def test_nvls_is_turned_off_for_reproducible_results(tmp_path, monkeypatch, env, algorithms):
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    assert run("keeps_from_nvls", tmp_path, size=1, env=env) == [algorithms]


# ---- NCCL's properties of a communicator

FIRST = ["rank", "n_ranks", "cuda_dev", "nvml_dev", "device_api_support", "multimem_support"]
SECOND = ["gin_type", "n_lsa_teams", "host_rma_support", "railed_gin_type"]
THIRD = ["comm_hash", "gin_min_stride", "gin_connection_type", "cft_support", "cft_multicast_support", "cft_counted_support"]


@pytest.mark.parametrize("version, names", [("2.29.2", FIRST), ("2.29.7", FIRST + SECOND), ("2.32.3", FIRST + SECOND + THIRD)])
@pytest.mark.filterwarnings("ignore:this group does not know its device")
def test_properties_of_an_nccl_group_depend_on_the_nccl_version(tmp_path, version, names):
    assert run("properties", tmp_path, version=version) == [names] * 2


def test_properties_of_a_newer_nccl_are_an_error_with_an_older_one(tmp_path):
    for text in run("properties", tmp_path, version="2.27.3"):
        assert text.startswith("ncclCommQueryProperties needs NCCL 2.29.2 or newer, this is 2.27.3 ("), text


def test_memory_pools_can_be_registered_and_deregistered(tmp_path):
    assert run("pools", tmp_path) == [NOTHING] * 2


def test_first_nccl_message_waits_only_for_its_peer(tmp_path):
    text, of_barrier = run("receives_first", tmp_path, env={"DLDIST_PROPAGATE_ERROR": "0"})
    assert "for a message between rank 0 and rank 1" in text, text
    assert "rank 1 may be in a call of all ranks" in text and "missing: 1" in text, text
    assert "waited 2.0 s for the other ranks" in of_barrier and "missing: 0" in of_barrier, of_barrier
