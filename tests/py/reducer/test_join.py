"""Loops that ranks leave at different times: dldist.algorithms.join."""

import dldist
import join_programs
import pytest
from dldist.algorithms import join
from dldist.testing import run_ranks
from thread_ranks import error_of, in_worlds, on_threads

TURNS = [1, 4, 2]
SEEN = [[3], [3, 2, 1, 1], [3, 2]]


def test_join_lets_ranks_run_loops_of_different_lengths():
    def case(rank):
        return join_programs.loops("dldist", dldist, rank, TURNS[rank], {"note": 3})

    for rank, (seen, shadowed, (is_last, kwargs)) in enumerate(in_worlds(3, case)):
        assert seen == SEEN[rank] and shadowed == 4 - TURNS[rank]
        assert is_last == (rank == 1) and kwargs == {"note": 3}


def test_join_lets_ranks_run_loops_of_equal_length():
    def case(rank):
        return join_programs.loops("dldist", dldist, rank, 2, {}), join_programs.loops("dldist", dldist, rank, 2, {"enable": False})

    assert in_worlds(2, case) == [(([2, 2], 0, (True, {})), ([2, 2], 0, None))] * 2


def test_join_can_end_all_loops_when_one_rank_ends_early():
    def case(rank):
        return join_programs.loops("dldist", dldist, rank, TURNS[rank], {"throw_on_early_termination": True})

    found = in_worlds(3, case)
    assert found[0] == ([3], 0, "Rank 0 exhausted all inputs.")
    assert found[1] == found[2] == ([3], 0, "Detected at least one rank that exhausted inputs. Throwing across all ranks.")


def test_join_works_over_worlds_without_a_default_world():
    """The groups may be Worlds, without a default world."""
    store = dldist.HashStore()

    class OfWorld:
        """The program's calls, on a World."""

        def __init__(self, world):
            self.group, self.all_reduce = dldist.group, lambda x, group: group.all_reduce(x)

    def case(rank):
        with dldist.World(store, rank, 3, timeout=20.0) as world:
            return join_programs.loops("dldist", OfWorld(world), rank, TURNS[rank], {}, world)

    found = on_threads(3, case)
    assert [seen for seen, _, _ in found] == SEEN and not dldist.is_initialized()


def test_error_in_a_joined_loop_is_raised():
    def case(rank):
        counter = join_programs.counter_of("dldist", join)(dldist)
        with pytest.raises(KeyError), join.Join([counter]):
            raise KeyError
        return counter.ended

    assert in_worlds(2, case) == [None, None]


def test_rank_that_ends_much_earlier_warns(monkeypatch):
    monkeypatch.setattr(join, "_WARN_AFTER_PASSES", 2)

    def case(rank):
        if rank:
            return join_programs.loops("dldist", dldist, rank, 4, {})
        with pytest.warns(UserWarning, match="rank 0 has ended 2 iterations before other ranks"):
            return join_programs.loops("dldist", dldist, rank, 0, {})

    assert [shadowed for _, shadowed, _ in in_worlds(2, case)] == [4, 0]


def test_join_rejects_wrong_arguments():
    class WithoutInit(join.Joinable):
        join_device = join_process_group = None

        def __init__(self):
            pass

        def join_hook(self):
            return join.JoinHook()

    def case(rank):
        counter = join_programs.counter_of("dldist", join)
        several = [counter(dldist), counter(dldist, dldist.new_group([0]))]
        return [type(error_of(join.Join, joinables)) for joinables in ([], several)]

    assert in_worlds(1, case) == [[ValueError, ValueError]]
    error = error_of(join.Join.notify_join_context, WithoutInit())
    assert isinstance(error, TypeError) and "constructor of WithoutInit" in str(error)
    assert isinstance(error_of(join.Joinable), TypeError)


def test_join_module_is_available_without_importing_it():
    assert dldist.algorithms.join is join
    assert join.JoinHook().main_hook() is None


@pytest.mark.torch
@pytest.mark.deadline(120)
def test_join_has_the_same_results_as_torchs(tmp_path):
    cases = [{"note": 3}, {"enable": True}, {"throw_on_early_termination": True}]
    found = {}
    for root in ("dldist", "torch.distributed"):
        folder = tmp_path / root
        folder.mkdir()
        found[root] = run_ranks(join_programs.in_processes, 2, root, str(folder), [1, 3], cases, timeout=100.0, init=False)
    assert found["dldist"] == found["torch.distributed"]
