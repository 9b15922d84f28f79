"""Symmetric memory, which all ranks write, read and signal by. See window_workers.py."""

import importlib.util
import os
import signal
import time

import dldist
import group_team
import pytest
import window_workers as cases
from dldist import symmetric_memory
from thread_ranks import in_worlds

SIZES = [1, 2, 3, 4]


def needs(library):
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


@pytest.fixture(scope="module")
def teams():
    teams = group_team.Teams()
    yield lambda size, **settings: teams(size, worker=cases.member, **settings)
    teams.close()


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_symmetric_memory_may_have_every_dtype(teams, dtype):
    teams(2).run(cases.every_dtype, dtype)


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "case",
    [
        cases.different_sizes, cases.own_array, cases.async_transfers, cases.dropped, cases.pointers, cases.pads, cases.counting,
        cases.second_signal_without_a_receiver, cases.wait_without_a_signal, cases.barriers, cases.threads, cases.views_outlive_everything,
        cases.cycles, cases.closed, cases.abort_ends_waits, cases.interrupt, cases.bad_arguments, cases.other_dtypes, cases.forked,
    ],
    ids=lambda case: case.__name__,
)  # fmt: skip
def test_each_case_of_symmetric_memory_passes(teams, size, case):
    teams(size).run(case)


@needs("numpy")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", [cases.parts, cases.packed, cases.bad_memory, cases.one_sided_gets], ids=lambda case: case.__name__)
def test_each_case_of_symmetric_memory_with_numpy_passes(teams, size, case):
    teams(size).run(case)


@pytest.mark.deadline(90)
@pytest.mark.parametrize("library", [pytest.param(name, marks=needs(name)) for name in ("numpy", "torch", "jax")])
def test_symmetric_memory_works_with_arrays_of_each_library(teams, library):
    teams(2).run(cases.libraries, library, timeout=60)


@pytest.mark.parametrize("size", [2, 3])
def test_different_signal_pad_sizes_are_an_error(teams, size):
    teams(size).run(cases.different_pads)


@pytest.mark.exhaustive
@pytest.mark.deadline(120)
def test_many_allocations_leak_nothing(teams):
    teams(2).run(cases.many, timeout=100)


def test_waiting_for_the_signal_of_a_dead_rank_is_an_error(procs):
    """A rank that waits for the peer must get an error within a second; the peer's memory must stay
    readable."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    waiter, victim = (procs.start(cases.survivor, store.port, rank) for rank in range(2))
    assert waiter.recv() == "ready"
    pid = victim.recv()
    time.sleep(0.1)  # it is waiting now
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    error, at = waiter.recv()
    assert "DistPeerLostError" in error["kinds"] and error["rank"] == 1 and error["pid"] == pid
    assert at - killed < 1.0
    assert waiter.result() == "alive"


# ---- the module


def test_module_level_symmetric_memory_calls_work_over_every_kind_of_group():
    """Calls must work over the default group, a group by name, and a group unknown to c10d."""

    def case(rank):
        x = dldist.empty((2, 3), "int32")
        assert (x.shape, x.dtype) == ((2, 3), "int32") and symmetric_memory.is_symm_mem_tensor(x)
        part = dldist.new_group([0, 1])
        for group in (None, dldist.group.WORLD, part, part.group_name):
            y = symmetric_memory.empty(4, 2, dtype="float64", device="cpu", group=group)
            assert y.shape == (4, 2)
            memory = symmetric_memory.rendezvous(y, group)
            memory.signal(1 - rank)
            memory.wait_signal(1 - rank)
            assert memory.get_buffer(1 - rank, [8], "float64").shape == (8,)
            memory.barrier()
        assert dldist.empty(3, group=part).dtype == "float32"

    in_worlds(2, case)


def test_symmetric_memory_has_the_static_methods_of_torchs_class():
    kind = symmetric_memory._SymmetricMemory
    store = dldist.HashStore()
    kind.set_group_info("by hand", 0, 1, store)
    assert symmetric_memory.is_symm_mem_enabled_for_group("by hand")
    assert not symmetric_memory.is_symm_mem_enabled_for_group("nobody")
    x = kind.empty_strided_p2p((2, 3), (3, 1), "float32", "cpu", "by hand", alloc_id=1)
    memory = kind.rendezvous(x, "by hand")
    assert memory.world_size == 1 and kind.is_symm_mem_tensor(x) and not kind.is_symm_mem_tensor(bytearray(4))
    with pytest.raises(NotImplementedError, match=r"got \(1, 2\), expected \(3, 1\)"):
        kind.empty_strided_p2p((2, 3), (1, 2), "float32", "cpu", "by hand")
    with pytest.raises(NotImplementedError, match="got cuda:0, expected cpu"):
        kind.empty_strided_p2p((2,), (1,), "float32", "cuda:0", "by hand")
    assert kind.has_multicast_support("cuda", 0) is False
    assert (kind.get_backend("cpu"), kind.get_backend("cuda:1")) == ("CPU", None)
    kind.set_backend("CPU")
    with pytest.raises(ValueError, match="'NVSHMEM'"):
        kind.set_backend("NVSHMEM")
    for call in (kind.get_mempool_allocator, symmetric_memory.get_mem_pool):
        with pytest.raises(NotImplementedError, match="unsupported on the CPU"):
            call("cuda")
    assert not symmetric_memory.is_nvshmem_available()


def test_signal_pad_size_can_be_set(monkeypatch):
    monkeypatch.setattr(symmetric_memory.symmetric, "signal_pad_size", symmetric_memory.get_signal_pad_size())
    symmetric_memory.set_signal_pad_size(8192)
    world = dldist.World(dldist.HashStore(), 0, 1)
    assert world.rendezvous(world.empty(1)).signal_pad_size == symmetric_memory.get_signal_pad_size() == 8192
    with pytest.raises(ValueError, match="'size' is out of range: got 0, expected 1 or more"):
        symmetric_memory.set_signal_pad_size(0)


def test_symmetric_memory_without_a_group_is_an_error():
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dldist.empty(4)
    with pytest.raises(RuntimeError, match="'unknown'"):
        symmetric_memory.empty(4, group="unknown")
    with pytest.raises(TypeError, match="'group' must be a group"):
        symmetric_memory.rendezvous(bytearray(4), 17)
    with pytest.raises(RuntimeError, match="'unknown'"):
        symmetric_memory.enable_symm_mem_for_group("unknown")


@pytest.mark.torch
def test_symmetric_memory_has_the_public_names_of_torchs_module():
    """Public names of torch's module and its handles' members must exist, except those listed."""
    from torch._C import _distributed_c10d as core
    from torch.distributed import _symmetric_memory as torch_module

    missing = {name for name in torch_module.__all__ if not hasattr(symmetric_memory, name)}
    assert missing == {"reduce_scatter_offset"}, "a kernel of CUDA"
    names = {name for name in dir(core._SymmetricMemory) if not name.startswith("_")}
    missing = {name for name in names if not hasattr(symmetric_memory._SymmetricMemory, name)}
    assert missing <= {"boxed", "unbox"}, "for torch's script objects"
