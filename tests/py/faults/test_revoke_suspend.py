"""Revoked groups and suspended groups. Ranks are threads, except in tests of process memory."""


import threading

import dldist
import pytest
import suspend_workers
from procs import Group as Processes
from thread_ranks import error_of, on_threads

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")


def in_groups(size, case, **options):
    store = dldist.HashStore()

    def run(rank):
        with dldist.Group(store, rank, size, **{"timeout": 10.0, **options}) as group:
            return case(group)

    return on_threads(size, run)


# ---- revoke


def test_revoke_ends_pending_calls_on_all_ranks():
    under_way = threading.Barrier(3)

    def case(group):
        if group.rank == 2:
            under_way.wait(10)
            group.revoke("a rank is ill")
            return str(error_of(group.barrier))
        work = group.all_reduce(numpy.ones(4), async_op=True)
        under_way.wait(10)
        error = error_of(work.wait)
        assert isinstance(error, dldist.DistAbortedError) and error.rank == 2
        assert "revoked the group: a rank is ill" in str(error)
        return str(error_of(group.all_reduce, numpy.ones(4)))

    for text in in_groups(3, case):
        assert "the group has failed before" in text and "revoked the group: a rank is ill" in text


def test_revoked_group_can_be_split():
    def case(group):
        group.revoke()
        group.revoke("another reason")
        assert "revoke() was called" in str(error_of(group.barrier))
        with group.split([0, 2]) if group.rank != 1 else group.split([1]) as part:
            x = numpy.full(3, group.rank + 1.0)
            part.all_reduce(x)
            return x[0]

    assert in_groups(3, case) == [4.0, 2.0, 4.0]


def test_failed_group_can_be_revoked_and_split():
    def case(group):
        if group.rank == 2:
            group.abort("left")
            return None
        error = error_of(group.barrier)
        assert isinstance(error, dldist.DistAbortedError)
        assert isinstance(error_of(group.split, [0, 1]), dldist.DistAbortedError)
        group.revoke()
        assert "left" in str(error_of(group.barrier)), "the first cause stays"
        with group.split([0, 1]) as part:
            x = numpy.ones(2)
            part.all_reduce(x)
            return x[0]

    assert in_groups(3, case) == [2.0, 2.0, None]


def test_default_world_can_be_revoked():
    dldist.init_process_group()
    group = dldist.group.WORLD
    with pytest.raises(ValueError, match="REVOKE_DEFAULT"):
        dldist.revoke_process_group(flags=1)
    part = dldist.new_group([0])
    dldist.revoke_process_group(part)
    dldist.revoke_process_group(part)
    assert "revoked" in str(error_of(dldist.barrier, part))
    dldist.barrier()
    dldist.destroy_process_group(part)
    dldist.revoke_process_group()
    assert dldist.is_initialized() and dldist.group.WORLD is group
    dldist.destroy_process_group()
    with pytest.raises(AssertionError):
        dldist.revoke_process_group()


# ---- suspend


def test_suspend_releases_memory_and_resume_restores_it(tmp_path):
    processes = Processes()
    try:
        ranks = [processes.start(suspend_workers.suspend_and_measure, rank, str(tmp_path / "store")) for rank in range(2)]
        for rank in ranks:
            before, while_suspended, after, stats, suspended, texts, low, high = rank.recv(timeout=40)
            assert before > 1 << 20, "the collectives have touched the arena"
            assert while_suspended < before / 8 and after > 4 * while_suspended
            assert stats["cpu_mem_suspended"] == 0 and suspended["cpu_mem_suspended"] >= 1 << 20
            assert stats["cpu_mem_suspend"] > suspended["cpu_mem_suspend"], "the unused array has been released"
            assert stats["cpu_mem_total"] == stats["cpu_mem_suspend"] + stats["cpu_mem_persist"]
            assert all("is suspended: call resume() on all its ranks first" in text for text in texts), texts
            assert (low, high) == (3.0, 3.0)
    finally:
        processes.close()


def test_calls_wait_until_all_ranks_have_resumed_the_group():
    """A rank that resumes early must wait, and a late rank still have its data afterwards."""

    def case(group):
        results = []
        for step in range(5):
            x = numpy.full(200000, group.rank + step, "float64")
            group.all_reduce(x)
            results.append((x.min(), x.max()))
            group.suspend()
            group.resume()
        return results

    expected = [(3.0 + 3 * step,) * 2 for step in range(5)]
    assert in_groups(3, case) == [expected] * 3


def test_shared_arrays_keep_their_contents_during_a_suspension():
    def case(group):
        array = group.empty(1000, "float32")
        numpy.asarray(array)[...] = group.rank + 1
        group.suspend()
        assert numpy.asarray(array).tolist() == [group.rank + 1] * 1000
        group.resume()
        group.all_reduce(array)
        return numpy.asarray(array)[0]

    assert in_groups(2, case) == [3, 3]


def test_suspended_group_can_be_closed_and_aborted():
    both = threading.Barrier(2)

    def case(group):
        group.suspend()
        both.wait(10)
        if group.rank == 0:
            group.abort("enough")

    in_groups(2, case)
    in_groups(2, lambda group: group.suspend())


def test_suspend_times_out_if_a_rank_does_not_call_it():
    def case(group):
        if group.rank == 0:
            return None
        return error_of(group.suspend)

    assert isinstance(in_groups(2, case, timeout=0.5)[1], dldist.DistError)


def test_group_of_one_rank_can_be_suspended():
    with dldist.Group(None, 0, 1) as group:
        group.suspend()
        assert "is suspended" in str(error_of(group.barrier))
        group.resume()
        group.barrier()


def test_suspend_and_resume_work_by_their_torch_distributed_names():
    dldist.init_process_group()
    group = dldist.group.WORLD
    group.suspend()
    with pytest.raises(ValueError, match="is suspended"):
        dldist.barrier()
    assert set(group.memory_stats()) == {f"cpu_mem_{name}" for name in ("suspend", "suspended", "persist", "total")}
    group.resume()
    dldist.barrier()
    dldist.destroy_process_group()

