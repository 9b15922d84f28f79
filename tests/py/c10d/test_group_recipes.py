"""Libraries' uses of c10d's private names must work when only the import is changed."""

import dldist
import group_recipes
import pytest
from dldist import distributed_c10d as c10d
from dldist.testing import run_ranks
from thread_ranks import error_of

pytestmark = pytest.mark.deadline(120)

LIMIT_S = 100.0  # four processes import PyTorch concurrently
ROOTS = ["dldist", pytest.param("torch.distributed", marks=pytest.mark.torch)]
# a rank, not the launcher, serves the store of a URL
NO_AGENT = {"TORCHELASTIC_USE_AGENT_STORE": "False"}


def run(case, nranks, *args):
    return run_ranks(case, nranks, *args, timeout=LIMIT_S, env=NO_AGENT, init=False)


@pytest.mark.parametrize("root", ROOTS)
def test_programs_with_groups_beside_the_default_group_work(root, tmp_path):
    """Both names of the options, from different torch versions, must work in one program."""
    names = ["backend_options", "pg_options"] if root == "dldist" else ["backend_options"]
    everything = [{"rank": rank} for rank in range(4)]
    for rank, found in enumerate(run(group_recipes.weights_to_engines, 4, root, str(tmp_path), names)):
        if rank != 1:
            assert found[:4] == [[7.0] * 4, max(rank - 1, 0), 3, [0, 1, 2]]
            found = found[4:]
        of_pair = 1.0 if rank < 2 else 5.0
        assert found[:3] == [6.0, of_pair, of_pair]
        assert found[3:] == [everything, "gloo", "own train" if rank < 2 else "own serve", 4.0, False]


@pytest.mark.parametrize("root", ROOTS)
def test_groups_made_without_registering_a_name_work(root, tmp_path):
    for rank, (one, other) in enumerate(run(group_recipes.stateless, 3, root, str(tmp_path))):
        assert one == (3.0, 2.0, [0.0, 1.0, 2.0], rank, 3, False)
        assert other == (3.0, 2.0, [2.0, 1.0, 0.0], 2 - rank, 3, False)


def test_group_made_directly_from_a_store_works(tmp_path):
    assert run(group_recipes.by_store, 3, "dldist", str(tmp_path)) == [[{"from": 0}, {"from": 2}, {"from": 1}, False]] * 3


@pytest.mark.parametrize("name", ["backend_options", "pg_options"])
def test_both_torch_names_of_the_argument_for_options_are_accepted(name):
    options = dldist.FakeProcessGroup.Options()
    options.error_on_collective = True
    pg, _ = c10d._new_process_group_helper(1, 0, [], "fake", dldist.HashStore(), "x", timeout=20.0, **{name: options})
    assert "error_on_collective" in str(error_of(dldist.barrier, pg))
    dldist.destroy_process_group(pg)


def test_unknown_names_of_the_argument_for_options_are_rejected():
    make = c10d._new_process_group_helper
    error = error_of(make, 1, 0, [], "gloo", dldist.HashStore(), "x", backend_options=1, pg_options=1, timeout=20.0)
    assert isinstance(error, TypeError) and "got both backend_options and pg_options" in str(error)
