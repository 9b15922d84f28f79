"""Every bad input to torch.distributed's calls must raise c10d's error, and leave the group usable.

The calls are in c10d_bad_calls.py. If torch is installed, the same text is run with it, and the
types of the errors are compared.
"""


import c10d_team
import c10d_workers
import dldist
import pytest
from c10d_bad_calls import ACCEPTED, BAD_CALLS
from paths import DOCS

DOCUMENT = DOCS / "c10d-differences.md"


@pytest.fixture(scope="module")
def dldist_team():
    teams = c10d_team.Teams(c10d_workers.texts, "dldist", 2)
    yield teams
    teams.close()


@pytest.fixture(scope="module")
def torch_team():
    teams = c10d_team.Teams(c10d_workers.texts, "torch", 2)
    yield teams
    teams.close(is_silent=False)


def outcomes(teams, call, on=None):
    """Run a call; return the results of the calling ranks, after all ranks used the group again."""
    replies = teams.run((call, on))
    broken = [error["text"] for _, _, error in replies if error]
    if broken:
        teams.discard()
    assert not broken, f"the group is not usable after it: {broken}"
    return [(kind, value) for rank, (kind, value, _) in enumerate(replies) if on is None or rank in on]


@pytest.mark.parametrize("bad", BAD_CALLS, ids=lambda bad: bad.call)
def test_bad_call_raises_the_listed_error(dldist_team, bad):
    for kind, value in outcomes(dldist_team, bad.call, bad.on):
        assert kind == "error", f"it gave {value}"
        assert bad.error in value["kinds"], value
        assert bad.text in value["text"], value


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda accepted: accepted.call)
def test_call_that_only_dldist_accepts_returns(dldist_team, accepted):
    for kind, value in outcomes(dldist_team, accepted.call):
        assert kind == "value", value


@pytest.mark.torch
@pytest.mark.parametrize("bad", [bad for bad in BAD_CALLS if bad.torch_error is not None], ids=lambda bad: bad.call)
def test_torch_raises_the_same_kind_of_error_for_a_wrong_call(torch_team, dldist_team, bad):
    """torch's error must be a base class of dldist's, or be listed with the reason."""
    torch_outcomes = outcomes(torch_team, bad.call, bad.on)
    for (torch_kind, torch_error_value), (_, dldist_value) in zip(torch_outcomes, outcomes(dldist_team, bad.call, bad.on), strict=True):
        raised = torch_error_value["kinds"][0] if torch_kind == "error" else "nothing"
        if raised == bad.also:
            continue
        is_same = raised in dldist_value["kinds"]
        assert is_same == (not bad.torch_error), f"torch raises {raised}: {torch_error_value}"
        assert is_same or raised == bad.torch_error, torch_error_value


@pytest.mark.torch
@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda accepted: accepted.call)
def test_torch_rejects_a_call_that_only_dldist_accepts(torch_team, accepted):
    for kind, value in outcomes(torch_team, accepted.call):
        raised = value["kinds"][0] if kind == "error" else "nothing"
        assert raised in (accepted.torch_error, accepted.also or accepted.torch_error), value


def test_differences_of_errors_from_torch_are_documented():
    """The document must have the tables of this test."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert table_of_accepted() in text, "docs/c10d-differences.md: accepted calls"
    assert table_of_errors() in text, "docs/c10d-differences.md: other errors"


def table_of_accepted():
    rows = [f"| `{row.call}` | {row.torch_error} | {row.why} |" for row in ACCEPTED]
    return "\n".join(["| call | torch raises | why it works here |", "| --- | --- | --- |", *rows])


def table_of_errors():
    rows = [f"| `{bad.call}` | {bad.error} | {bad.torch_error} | {bad.why} |" for bad in BAD_CALLS if bad.torch_error]
    return "\n".join(["| call | dldist raises | torch raises | why |", "| --- | --- | --- | --- |", *rows])


# ---- without a world


BEFORE_INIT = {
    "dist.all_reduce(f(1))": "ValueError",
    "dist.broadcast(f(1), 0)": "ValueError",
    "dist.barrier()": "ValueError",
    "dist.monitored_barrier()": "ValueError",
    "dist.send(f(1), 0)": "ValueError",
    "dist.isend(f(1), 0)": "ValueError",
    "dist.recv(f(1))": "ValueError",
    "dist.P2POp(dist.isend, f(1), 0)": "ValueError",
    "dist._coalescing_manager().__enter__()": "ValueError",
    "dist.all_gather_object([None], 1)": "ValueError",
    "dist.get_rank()": "ValueError",
    "dist.get_world_size()": "ValueError",
    "dist.get_backend()": "ValueError",
    "dist.new_group([0])": "ValueError",
    "dist.new_subgroups(1)": "ValueError",
    "dist.split_group(split_ranks=[[0]])": "ValueError",
    "dist.distributed_c10d._get_default_group()": "ValueError",
    "dist.distributed_c10d._get_default_store()": "ValueError",
    "dist.destroy_process_group()": "AssertionError",
    "dist.init_process_group('gloo', store=dist.HashStore(), init_method='tcp://127.0.0.1:0')": "AssertionError",
    "dist.init_process_group('gloo', store=dist.HashStore())": "AssertionError",
    "dist.init_process_group('gloo', store=dist.HashStore(), world_size=1)": "AssertionError",
    "dist.init_process_group('gloo', store=dist.HashStore(), rank=0)": "AssertionError",
    "dist.init_process_group('gloo', timeout='x')": "TypeError",
    "dist.init_process_group('unknown', store=dist.HashStore(), rank=0, world_size=1)": "AssertionError",
    "dist.init_process_group('cpu:gloo,cpu:gloo', store=dist.HashStore(), rank=0, world_size=1)": "ValueError",
    "dist.init_process_group('cuda', store=dist.HashStore(), rank=0, world_size=1)": "AssertionError",
    "dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1)": "RuntimeError",
    "dist.init_process_group('gloo', init_method='unknown://x', rank=0, world_size=1)": "RuntimeError",
    "dist.init_process_group('gloo', init_method='tcp://127.0.0.1', rank=0, world_size=1)": "ValueError",
    "dist.init_process_group('gloo', init_method=3, rank=0, world_size=1)": "RuntimeError",
    "dist.init_process_group(3)": "ValueError",
}


def evaluate(library, call):
    kind, value = c10d_workers.evaluate(call, {"dist": library.dist, "f": library.f})
    return value["kinds"] if kind == "error" else f"no error, but {value}"


@pytest.mark.parametrize("call", BEFORE_INIT)
def test_failed_call_before_init_process_group_leaves_no_world(call):
    """A failed attempt must leave no world, and must not affect the next attempt."""
    assert BEFORE_INIT[call] in evaluate(c10d_workers.Dldist(), call)
    assert not dldist.is_initialized() and dldist.get_pg_count() == 0
    dldist.init_process_group("gloo", store=dldist.HashStore(), rank=0, world_size=1)
    dldist.destroy_process_group()


@pytest.mark.torch
@pytest.mark.parametrize("call", BEFORE_INIT)
def test_torch_raises_the_same_error_before_init_process_group(call):
    raised = evaluate(c10d_workers.Torch(), call)[0]
    # a torch build with NCCL refuses a machine without GPUs
    is_of_nccl = "'nccl'" in call and raised == "ValueError"
    assert raised == BEFORE_INIT[call] or is_of_nccl


def test_error_of_a_call_before_init_process_group_says_what_to_do():
    with pytest.raises(ValueError, match="has not been initialized, please make sure to call init_process_group"):
        dldist.all_reduce(bytearray(4))
