"""Cases of test_torch_backend.py: functions of a rank and the size, in a default group of the
backend "dldist".

A case that does not apply returns the reason. No pytest here, so that the children start faster.
"""

import collections
import datetime
import functools
import json
import os
import pickle
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, nullcontext

import dldist
import dldist.torch
import torch
import torch.distributed as dist
from dldist.torch import _native, _profile
from dldist.torch._runner import runner_of
from torch._C import _distributed_c10d as c10d

SHORT = datetime.timedelta(milliseconds=300)
IS_IN_CPP = _native.load() is not None
"""True if groups have a backend in C++."""
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


@contextmanager
def raises(kinds, *texts):
    try:
        yield
    except kinds as error:
        for text in texts:
            assert text in str(error), error
    else:
        raise AssertionError(f"no {kinds}")


def check(tensor, expected):
    expected = torch.as_tensor(expected).to(tensor.dtype)
    assert torch.equal(tensor.detach(), expected), f"{tensor} instead of {expected}"


def of(rank, *shape, dtype=torch.float32):
    """Return a rank's input, which differs on every rank."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) + 10 * rank + 1).reshape(shape).to(dtype)


def root_of(rank):
    opts = c10d.BroadcastOptions()
    opts.rootRank = rank
    return opts


def total(size, *shape, dtype=torch.float32):
    return sum(of(rank, *shape) for rank in range(size)).to(dtype)


def end(work, is_async):
    if is_async:
        assert work.wait() is True and work.is_completed() and work.is_success() and work.exception() is None
    else:
        assert work is None, work


def end_future(future, is_async):
    """Check and wait for torch's result of coalesced calls."""
    if is_async:
        future.wait()
    else:
        assert future is None, future


# ---- the calls of the module


def attributes_of_the_group(rank, size):
    group = dist.group.WORLD
    assert isinstance(group, dist.ProcessGroup) and isinstance(group, dldist.torch.ProcessGroup) == (not IS_IN_CPP)
    assert dist.get_backend() == group.name() == group._get_backend_name() == "dldist"
    assert (group.rank(), group.size()) == (rank, size) == (dist.get_rank(), dist.get_world_size())
    assert group.group_name == "0" and group.group_desc == "default_pg"
    assert c10d.ProcessGroup.unbox(group.boxed()) is group
    assert IS_IN_CPP or f"rank {rank} of {size}" in repr(group)
    world = dldist.torch.world_of()
    assert isinstance(world, dldist.World) and (world.rank, world.size) == (rank, size)
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == "dldist" and (backend.rank(), backend.size()) == (rank, size)
    assert backend.supports_splitting and not backend.supports_coalescing
    assert backend.options._timeout == datetime.timedelta(seconds=20) and backend.options.backend == ("dldist" if IS_IN_CPP else "gloo")
    assert torch.device("cpu") in group._device_types
    group.get_group_store().set(f"k{rank}", "v")
    assert group.get_group_store().get(f"k{rank}") == b"v"


def every_collective(rank, size):
    for is_async in (False, True):
        how = {"async_op": is_async}
        x = of(rank, 3)
        end(dist.all_reduce(x, **how), is_async)
        check(x, total(size, 3))
        x = of(rank, 2, 2)
        end(dist.broadcast(x, src=size - 1, **how), is_async)
        check(x, of(size - 1, 2, 2))
        x = of(rank, 2)
        end(dist.reduce(x, dst=1, **how), is_async)
        check(x, total(size, 2) if rank == 1 else of(rank, 2))
        outs = [torch.zeros(2, 3) for _ in range(size)]
        end(dist.all_gather(outs, of(rank, 2, 3), **how), is_async)
        for other, out in enumerate(outs):
            check(out, of(other, 2, 3))
        out = torch.zeros(size * 2)
        end(dist.all_gather_into_tensor(out, of(rank, 2), **how), is_async)
        check(out, torch.cat([of(other, 2) for other in range(size)]))
        outs = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
        end(dist.gather(of(rank, 2), outs, dst=0, **how), is_async)
        for other, out in enumerate(outs or []):
            check(out, of(other, 2))
        x = torch.zeros(2)
        end(dist.scatter(x, [of(other, 2) for other in range(size)] if rank == 1 else None, src=1, **how), is_async)
        check(x, of(rank, 2))
        x = torch.zeros(2)
        end(dist.reduce_scatter(x, [of(rank + other, 2) for other in range(size)], **how), is_async)
        check(x, sum(of(rank + other, 2) for other in range(size)))
        x = torch.zeros(2)
        end(dist.reduce_scatter_tensor(x, of(rank, 2 * size), **how), is_async)
        check(x, total(size, 2 * size)[2 * rank : 2 * rank + 2])
        outs = [torch.zeros(1) for _ in range(size)]
        end(dist.all_to_all(outs, [torch.tensor([10.0 * rank + other]) for other in range(size)], **how), is_async)
        check(torch.cat(outs), [10.0 * other + rank for other in range(size)])
        out = torch.zeros(size)
        end(dist.all_to_all_single(out, torch.arange(size) + 10.0 * rank, **how), is_async)
        check(out, [10.0 * other + rank for other in range(size)])
        counts = [rank + 1] * size  # each rank sends its own number of elements, plus one
        out = torch.zeros(sum(range(1, size + 1)))
        end(dist.all_to_all_single(out, of(rank, sum(counts)), list(range(1, size + 1)), counts, **how), is_async)
        check(out[:1], of(0, size)[rank : rank + 1])
        end(dist.barrier(**how), is_async)
        xs = [of(rank, 2), of(rank, 3)]
        end_future(dist.all_reduce_coalesced(xs, **how), is_async)
        check(xs[1], total(size, 3))
        lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(size)]
        end_future(dist.all_gather_coalesced(lists, [of(rank, 2), of(rank, 1)], **how), is_async)
        check(lists[-1][0], of(size - 1, 2))


def methods_of_the_group(rank, size):
    """c10d's low-level calls must work with options, in flat forms, and under old and new names."""
    group = dist.group.WORLD
    x = of(rank, 2)
    assert group.allreduce([x]).wait()
    check(x, total(size, 2))
    x = of(rank, 2)
    group.allreduce(x, dist.ReduceOp.MAX).wait()
    check(x, of(size - 1, 2))
    x = of(rank, 2)
    group.allreduce([x], op=dist.ReduceOp.MIN, timeout=datetime.timedelta(seconds=9)).wait()
    check(x, of(0, 2))
    opts = c10d.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.PRODUCT
    opts.asyncOp = False
    x = torch.full((1,), 2.0)
    work = group.allreduce([x], opts)
    assert work is None or work.is_completed() and work.result()[0] is x  # already completed
    check(x, [2.0**size])
    x = of(rank, 1)
    group.broadcast(x, 1).wait()
    check(x, of(1, 1))
    x = of(rank, 1)
    group.reduce(x, root=0, op=dist.ReduceOp.SUM).wait()
    check(x, total(size, 1) if rank == 0 else of(rank, 1))
    outs = [torch.zeros(1) for _ in range(size)]
    assert len(group.allgather(outs, of(rank, 1)).result()) == size
    for name in ("all_gather_single", "_allgather_base"):
        out = torch.zeros(size)
        getattr(group, name)(out, of(rank, 1)).wait()
        check(out, [10.0 * other + 1 for other in range(size)])
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        outs = [torch.zeros(size), torch.zeros(2 * size)]
        getattr(group, name)(outs, [of(rank, 1), of(rank, 2)]).wait()
        check(outs[1][-2:], of(size - 1, 2))
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        out = torch.zeros(1)
        getattr(group, name)(out, of(rank, size)).wait()
        check(out, total(size, size)[rank : rank + 1])
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        outs = [torch.zeros(1), torch.zeros(1)]
        getattr(group, name)(outs, [of(rank, size), of(rank, size)]).wait()
        check(outs[1], total(size, size)[rank : rank + 1])
    for name in ("all_to_all_single", "alltoall_base"):
        out = torch.zeros(size)
        getattr(group, name)(out, torch.arange(size) + 10.0 * rank, [], []).wait()
        check(out, [10.0 * other + rank for other in range(size)])
    # in C++, groups have these only since torch 2.14
    for name in () if IS_IN_CPP else ("gather_single", "gather_into_tensor"):
        out = torch.zeros(size) if rank == 0 else None
        getattr(group, name)(out, of(rank, 1), root=0).wait()
        assert out is None or out.tolist() == [10.0 * other + 1 for other in range(size)]
    assert group.barrier().wait()
    group.monitored_barrier(datetime.timedelta(seconds=10))
    dist.monitored_barrier()
    dist.monitored_barrier(group, 10.0, wait_all_ranks=True)
    x = of(rank, 1)
    if rank == 0:
        group.send([x], 1, 5).wait()
    elif rank == 1:
        work = group.recv([x], 0, 5)
        work.wait()
        assert work.source_rank() == work._source_rank() == 0
        check(x, of(0, 1))


def calls_from_cpp(rank, size):
    """The virtual methods that DDP and the functional collectives call must work."""
    tensors = [of(rank, 2), of(rank, 3)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 250, 1)
    check(tensors[1], of(1, 3))
    dist._verify_params_across_processes(dist.group.WORLD, [torch.zeros(2, 3)], None)
    # rank 0's shape is the reference
    with raises(RuntimeError, "appears not to match") if rank else nullcontext():
        dist._verify_params_across_processes(dist.group.WORLD, [torch.zeros(2, 3 + rank)], None)


def gather_into_one_tensor(rank, size):
    if not hasattr(dist, "gather_single"):
        return "this PyTorch has no torch.distributed.gather_single (new in 2.14)"
    if IS_IN_CPP:
        return "the backend in C++ has no gather_single"
    for gather in (dist.gather_single, dist.gather_into_tensor):
        for is_async in (False, True):
            out = torch.zeros(2 * size) if rank == 1 else None
            end(gather(of(rank, 2), out, dst=1, async_op=is_async), is_async)
            assert out is None or torch.equal(out, torch.cat([of(other, 2) for other in range(size)]))


def messages(rank, size):
    if rank == 0:
        dist.send(of(0, 3), 1)
        dist.send(of(7, 3), 1, tag=9)
        dist.isend(of(8, 2), 1).wait()
    elif rank == 1:
        late = torch.zeros(3)
        dist.recv(late, 0, tag=9)
        check(late, of(7, 3))
        x = torch.zeros(3)
        assert dist.recv(x) == 0
        check(x, of(0, 3))
        x = torch.zeros(2)
        work = dist.irecv(x, 0)
        assert work.wait() and work.is_completed() and work.result()[0] is x
        check(x, of(8, 2))
    to, back = (rank + 1) % size, (rank - 1) % size
    out = torch.zeros(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, of(rank, 2), to), dist.P2POp(dist.irecv, out, back)]):
        work.wait()
    check(out, of(back, 2))


def objects(rank, size):
    seen = [None] * size
    dist.all_gather_object(seen, {"rank": rank, "text": "x" * rank})
    assert seen == [{"rank": other, "text": "x" * other} for other in range(size)]
    things = [{"of": "rank 1"}, rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(things, src=1)
    assert things == [{"of": "rank 1"}, 1]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("thing", rank), gathered)
    assert gathered is None or gathered == [("thing", other) for other in range(size)]
    own_value = [None]
    dist.scatter_object_list(own_value, list(range(size)) if rank == 0 else None, src=0)
    assert own_value == [rank]
    if rank == 0:
        dist.send_object_list(["a", 1], 1)
    elif rank == 1:
        got = [None, None]
        dist.recv_object_list(got, 0)
        assert got == ["a", 1]


# ---- tensors

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
SMALL_FLOATS = tuple(
    getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz") if hasattr(torch, name)
)


def every_dtype(rank, size):
    for dtype in (*INTEGERS, *FLOATS, *COMPLEX, torch.bool, *SMALL_FLOATS):
        own_value = of(rank, 4).to(dtype) if dtype is not torch.bool else torch.tensor([True, False, rank == 0, rank != 0])
        x = own_value.clone()
        dist.broadcast(x, 0)
        if rank == 0:
            assert torch.equal(x.to(torch.complex128), own_value.to(torch.complex128)), dtype
        outs = [torch.empty_like(own_value) for _ in range(size)]
        dist.all_gather(outs, own_value)
        assert torch.equal(outs[rank].to(torch.complex128), own_value.to(torch.complex128)), dtype
        if dtype in (*INTEGERS, *FLOATS, *COMPLEX):
            x = own_value.clone()
            dist.all_reduce(x)
            check(x, sum(of(other, 4).to(dtype) for other in range(size)))
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags, dist.ReduceOp.BOR)
    assert flags.tolist() == [True, False, True]


def every_reduction(rank, size):
    for name in REDUCTIONS:
        x = torch.tensor([rank + 1, 6], dtype=torch.int64 if name[0] == "B" else torch.float64)
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        if name == "AVG":
            check(x, [(size + 1) / 2, 6])
        elif name == "BAND":
            assert x[1] == 6
    x = torch.full((2,), 3.0)
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    check(x, [1.5 * size] * 2)
    with raises((RuntimeError, ValueError)):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)


def unusual_tensors(rank, size):
    whole = torch.zeros(4, 6)
    part = whole.t()[1:3]
    part.copy_(of(rank, 2, 4))
    dist.all_reduce(part)
    check(part, total(size, 2, 4))
    assert whole.sum() == part.sum()
    leaf = of(rank, 3).requires_grad_()
    dist.all_reduce(leaf)
    check(leaf, total(size, 3))
    result = leaf * 1.0
    dist.broadcast(result, 0)
    check(result, total(size, 3))
    with torch.inference_mode():
        x = of(rank, 3)
        dist.all_reduce(x)
        check(x, total(size, 3))
    scalar = torch.tensor(rank + 1.0)
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(1, size + 1))
    dist.all_reduce(torch.empty(0, 3))
    dist.broadcast(torch.empty(0), 0)
    strided = torch.zeros(2 * size)[::2]
    dist.all_gather_into_tensor(strided, of(rank, 1))
    check(strided, [10.0 * other + 1 for other in range(size)])
    shared = torch.zeros(3).share_memory_()
    dist.all_reduce(shared)
    parameter = torch.nn.Parameter(of(rank, 2))
    dist.broadcast(parameter, 1)
    check(parameter, of(1, 2))


def lazily_conjugated_and_negated_tensors(rank, size):
    group = dist.group.WORLD  # torch.distributed refuses some conjugated tensors itself
    for of_rank in (conjugated, negated):
        expected = sum(of_rank(other).resolve_conj().resolve_neg() for other in range(size))
        x = of_rank(rank)
        group.allreduce([x]).wait()
        assert (x.is_conj() or x.is_neg()) and torch.equal(x, expected), x
        rows = [torch.zeros_like(expected) for _ in range(size)]
        group.allgather([rows], [of_rank(rank)]).wait()
        assert torch.equal(sum(rows), expected)
    x = negated(rank)
    dist.all_reduce(x)
    assert torch.equal(x, expected)
    # A tensor may be lazy on some ranks only, and every way of waiting must return its values.
    x = conjugated(0) if rank == 0 else conjugated(rank).resolve_conj()
    (result,) = group.allreduce([x]).get_future().wait()
    assert result is x and torch.equal(x, sum(conjugated(other) for other in range(size)))
    received = conjugated(rank)
    if rank == 0:
        group.send([conjugated(0) * 2], 1, 0).wait()
    elif rank == 1:
        work = group.recv([received], 0, 0)
        while not work.is_completed():
            time.sleep(0.001)
        assert torch.equal(received, conjugated(0) * 2)
    group.broadcast(received, 1).wait()
    assert torch.equal(received, conjugated(0) * 2)
    negative = negated(rank)
    with dist._coalescing_manager(async_ops=True) as manager:
        group.broadcast(received, 0)
        dist.broadcast(negative, 0)
    manager.wait()
    assert torch.equal(received, conjugated(0) * 2) and torch.equal(negative, negated(0))


def conjugated(rank):
    return torch.view_as_complex(of(rank, 2, 2)).conj()


def negated(rank):
    return torch.view_as_complex(of(rank, 2, 2)).conj().imag


def memory_is_not_copied(rank, size):
    x = of(rank, 1 << 20)
    where = x.data_ptr()
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.data_ptr() == where and work.result()[0] is x
    shared = dldist.torch.empty((4, 5), dtype=torch.bfloat16)
    assert shared.shape == (4, 5) and shared.dtype is torch.bfloat16
    shared.fill_(rank + 1)
    dist.all_reduce(shared)
    check(shared, torch.full((4, 5), sum(range(1, size + 1))))


def sparse(rank, size):
    tensor = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 2,), check_invariants=False)
    dist.all_reduce(tensor)
    assert tensor.is_coalesced()
    check(tensor.to_dense(), [1.0] * size + [2.0 * size, 0.0])
    work = dist.all_reduce(torch.sparse_coo_tensor([[0]], [[1.0, 2.0]], (3, 2), check_invariants=False), async_op=True)
    assert work.get_future().wait()[0].to_dense().tolist()[0] == [size * 1.0, size * 2.0]
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0), (3,), check_invariants=False)
    own = empty if rank else torch.sparse_coo_tensor([[1]], [5.0], (3,), check_invariants=False)
    dist.all_reduce(own)
    check(own.to_dense(), [0.0, 5.0, 0.0])
    with raises(RuntimeError, "allreduce of sparse tensors only works with ReduceOp.SUM"):
        dist.all_reduce(own, dist.ReduceOp.MAX)
    other = torch.sparse_coo_tensor([[0]] * (1 + rank % 2), [1.0], (3,) * (1 + rank % 2), check_invariants=False)
    with raises(ValueError, "Sparse dimensions do not match"):
        dist.all_reduce(other)


def several_tensors(rank, size):
    """Low-level calls must accept several tensors of one rank, as Gloo does."""
    group = dist.group.WORLD
    tensors = [torch.tensor([rank + 1.0]), torch.tensor([10.0])]
    work = group.allreduce(tensors)
    work.wait()
    check(torch.cat(tensors), [sum(range(1, size + 1)) + 10.0 * size] * 2)
    assert work.is_success() and work.get_future().wait() == tensors
    outputs = [[torch.zeros(1) for _ in range(2 * size)] for _ in range(2)]
    group.allgather(outputs, [torch.tensor([float(rank)]), torch.tensor([rank + 0.5])]).wait()
    for output in outputs:
        check(torch.cat(output), [other + half for other in range(size) for half in (0.0, 0.5)])


# ---- works and futures


def works(rank, size):
    x = of(rank, 2)
    work = dist.all_reduce(x, async_op=True)
    assert isinstance(work, dist._Work)
    work.synchronize()
    assert work.is_completed() and work.result() == [x] and work._get_op_type() == 1 and work._get_duration() >= 0
    assert work.get_future_result().wait() == 0
    first = dist.all_reduce(x, async_op=True)
    second = dist.barrier(async_op=True)
    assert first.wait(datetime.timedelta(seconds=9)) and second.wait() and second.result() == []
    assert IS_IN_CPP or second._get_sequence_number() == first._get_sequence_number() + 1
    assert first.get_future().done() and second.get_future().wait() == []


def futures(rank, size):
    if rank == 0:
        time.sleep(0.05)  # the other ranks' works are pending when queried
    xs = [of(rank, 2) for _ in range(8)]
    called = threading.Event()
    futures = [dist.all_reduce(x, async_op=True).get_future() for x in xs]
    futures[-1].add_done_callback(lambda future: called.set())
    doubled = [future.then(lambda future: future.value()[0] * 2) for future in futures]
    for x, future, double in zip(xs, futures, doubled, strict=True):
        assert future.wait()[0] is x
        check(double.wait(), 2 * total(size, 2))
    assert called.wait(5)
    assert torch.futures.wait_all([dist.all_reduce(of(rank, 1), async_op=True).get_future() for _ in range(3)])[0][0] == total(size, 1)
    outs = [torch.zeros(1) for _ in range(size)]
    assert len(dist.all_gather(outs, of(rank, 1), async_op=True).get_future().wait()) == size


def many_in_flight(rank, size):
    xs = [of(rank, 100) for _ in range(500)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        work.wait()
    for x in xs:
        check(x, total(size, 100))


def coalescing(rank, size):
    xs = [of(rank, 2), of(rank, 3)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    check(xs[1], total(size, 3))
    outs = [torch.zeros(2 * size), torch.zeros(size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out in outs:
            dist.all_gather_into_tensor(out, of(rank, len(out) // size))
    manager.wait()
    check(outs[0][:2], of(0, 2))
    cpu = torch.device("cpu")
    xs = [of(rank, 2), of(rank, 3)]
    with dist._coalescing_manager(device=cpu, async_ops=True) as manager:
        for x in xs:
            dist.broadcast(x, 1, async_op=True)
    assert len(manager.works) == 1
    assert len(manager.works[0].get_future().wait()) == 2
    manager.wait()
    check(xs[1], of(1, 3))
    assert manager.works[0].is_completed() and manager.works[0].is_success()


# ---- the profiler


def profile(function):
    """Return a function's result, and dldist's profiler entries: {name: count}, and their times in
    seconds."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        result = function()
    events = [event for event in profiler.events() if event.name.startswith("dldist:")]
    counts = collections.Counter(event.name for event in events)
    return result, counts, [(event.time_range.end - event.time_range.start) / 1e6 for event in events]


def profiler_has_an_entry_for_each_call(rank, size):
    def calls():
        every_collective(rank, size)
        others = [torch.zeros(2) for _ in range(size)]
        works = [dist.isend(torch.ones(2), to, tag=to) for to in range(size)]
        works += [dist.irecv(others[source], source, tag=rank) for source in range(size)]
        for work in works:
            work.wait()

    _, counts, times = profile(calls)
    kinds = "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"
    assert set(counts) == {f"dldist:{kind}" for kind in (*kinds, "send", "recv")}, counts
    assert counts["dldist:send"] == counts["dldist:recv"] == size
    assert all(seconds < 20 for seconds in times), times
    assert not torch.autograd._profiler_enabled()


def profiler_has_the_time_from_start_to_end(rank, size):
    store = dist.distributed_c10d._get_default_store()

    def late_all_reduce(turn):
        x = of(rank, 3)
        if rank == size - 1:
            store.wait([f"turn {turn}: rank {other} has begun" for other in range(size - 1)])
            time.sleep(0.5)
        work = dist.all_reduce(x, async_op=True)
        store.set(f"turn {turn}: rank {rank} has begun", "")
        work.wait()
        return x

    for turn in range(2):
        x, counts, (seconds,) = profile(functools.partial(late_all_reduce, turn))
        check(x, total(size, 3))
        assert counts == {"dldist:all_reduce": 1}
        assert rank == size - 1 or seconds > 0.3, seconds
        dist.barrier()


def profiler_has_the_end_before_other_callbacks(rank, size):
    """The profiler must get the end first: an entry's memory is freed with its profile, and DDP
    waits only for futures."""
    if IS_IN_CPP:
        return "in C++ the work itself ends its entry: no future comes between"
    end_after = _profile._Entry._call_end_callbacks_on_future

    def end_late(entry, future):
        return end_after(entry, future.then(lambda done: (time.sleep(0.3), done.value())[1]))

    def poll(work):
        deadline = time.monotonic() + 20
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.001)

    _profile._Entry._call_end_callbacks_on_future = end_late
    try:
        for see_the_end in (lambda work: work.wait(), lambda work: work.get_future().wait(), poll):
            x = of(rank, 3)

            def start_and_record_the_end():
                work = dist.all_reduce(x, async_op=True)
                see_the_end(work)
                return work

            work, _, (seconds,) = profile(start_and_record_the_end)
            assert seconds > 0.25, seconds
            check(x, total(size, 3))
            assert work.get_future().wait()[0] is x and work.is_completed() and work.wait()
    finally:
        _profile._Entry._call_end_callbacks_on_future = end_after


def profiler_has_the_end_of_failed_calls(rank, size):
    group = dist.new_group()
    group.set_timeout(SHORT)

    def fail():
        with raises(RuntimeError, "recv"):
            dist.recv(torch.zeros(1), (rank + 1) % size, group=group)
        with raises(RuntimeError, "recv"):
            dist.irecv(torch.zeros(1), (rank + 1) % size, group=group).get_future().wait()
        with raises(TypeError):
            dist.group.WORLD.allreduce([torch.zeros(1, dtype=torch.complex32)], c10d.AllreduceOptions())

    _, counts, times = profile(fail)
    assert counts == {"dldist:recv": 2, "dldist:all_reduce": 1} and max(times) < 10, times


def profiler_has_the_buckets(rank, size):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
    for _ in range(3):
        model(torch.ones(2, 300)).sum().backward()
    _, counts, _ = profile(lambda: model(torch.ones(2, 300)).sum().backward())
    assert counts["dldist:all_reduce"] >= 1


# ---- groups


def groups(rank, size):
    pair = dist.new_group([0, 1], group_desc="the first two")
    if rank < 2:
        assert pair.group_desc == "the first two" and dist.get_backend(pair) == "dldist"
        x = of(rank, 2)
        dist.all_reduce(x, group=pair)
        check(x, of(0, 2) + of(1, 2))
        dist.destroy_process_group(pair)
    else:
        assert pair == dist.GroupMember.NON_GROUP_MEMBER
    own_value = dist.new_group([rank], use_local_synchronization=True)
    dist.barrier(group=own_value)
    everyone, _ = dist.new_subgroups(size)
    assert everyone.size() == size
    gloo = dist.new_group(backend="gloo")
    x = of(rank, 2)
    dist.all_reduce(x, group=gloo)
    check(x, total(size, 2))


def split(rank, size):
    group = dist.group.WORLD
    part = group.split_group([1, 0], timeout=datetime.timedelta(seconds=7), group_name="reversed", group_desc="two, reversed")
    if rank > 1:
        assert part is None
        return
    # Before 2.14, which removed this method, PyTorch sorts the ranks in C++.
    is_sorted = IS_IN_CPP and hasattr(dist.ProcessGroup, "_set_sequence_number_for_group")
    place = rank if is_sorted else 1 - rank
    assert (part.rank(), part.size(), part.group_name, part.group_desc) == (place, 2, "reversed", "two, reversed")
    assert dldist.torch.world_of(part).timeout == datetime.timedelta(seconds=7)
    x = of(rank, 2)
    part.broadcast(x, 0).wait()
    check(x, of(0 if is_sorted else 1, 2))
    part.get_group_store().set("a", "b")
    part.shutdown()


def merge(rank, size):
    store = dist.PrefixStore("merge", dist.group.WORLD.get_group_store())
    merged = dist.group.WORLD.merge_remote_group(store, size, group_name="merged")
    x = of(rank, 1)
    merged.allreduce([x]).wait()
    check(x, total(size, 1))
    merged.shutdown()


def merge_of_parts(rank, size):
    """Parts that each have their own rank 0 must merge."""
    group = dist.group.WORLD
    part = group.split_group([0]) if rank == 0 else group.split_group(list(range(1, size)))
    store = dist.PrefixStore("merge of parts", group.get_group_store())
    merged = part.merge_remote_group(store, size, datetime.timedelta(seconds=12), "merged", "of parts")
    assert (merged.size(), merged.group_name, merged.group_desc) == (size, "merged", "of parts")
    assert dldist.torch.world_of(merged).timeout == datetime.timedelta(seconds=12)
    ranks = torch.empty(size, 2, dtype=torch.int64)
    merged._allgather_base(ranks, torch.tensor([[merged.rank(), rank]])).wait()
    assert [row[0] for row in ranks.tolist()] == list(range(size)), ranks  # one entry per rank
    later = [other for _, other in ranks.tolist() if other > 0]
    # ranks of a part must stay in order; torch's groups in C++ order ranks by arrival
    assert IS_IN_CPP or later == sorted(later), ranks
    merged.shutdown()
    part.shutdown()


def independent_groups(rank, size):
    try:
        from torch.distributed import _dist2
    except ImportError:
        return "this PyTorch has no torch.distributed._dist2 (2.9 to 2.13 have it)"
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = torch.tensor(server.port)
    else:
        port = torch.tensor(0)
    dist.broadcast(port, 0)
    # The server already exists: all ranks are its clients.
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(int(port)), "RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ.update(place, TORCHELASTIC_USE_AGENT_STORE="True")
    try:
        known = len(dist.distributed_c10d._world.pg_map)
        first, second = (_dist2.new_group("dldist", datetime.timedelta(seconds=20), "cpu") for _ in range(2))
        assert len(dist.distributed_c10d._world.pg_map) == known and dldist.torch.world_of(first).timeout.seconds == 20
        with _dist2.process_group(second):
            assert _dist2.current_process_group() is second
        for group in (second, first):
            x = of(rank, 3)
            group.allreduce(x, timeout=datetime.timedelta(seconds=20)).wait()
            check(x, total(size, 3))
        with raises(TypeError):
            _dist2.new_group("dldist", datetime.timedelta(seconds=20), "cpu", unknown=1)
        second.shutdown()
        first.shutdown()
        dist.barrier()  # before the server closes
    finally:
        for name in (*place, "TORCHELASTIC_USE_AGENT_STORE"):
            del os.environ[name]


def settings(rank, size):
    group = dist.new_group(timeout=datetime.timedelta(seconds=11))
    world = dldist.torch.world_of(group)
    assert world.timeout == datetime.timedelta(seconds=11)
    group.set_timeout(datetime.timedelta(seconds=12))
    assert world.timeout == datetime.timedelta(seconds=12) == group._get_backend(torch.device("cpu")).options._timeout
    before = group._get_sequence_number_for_group()
    dist.barrier(group=group)
    assert group._get_sequence_number_for_group() == before + 1
    if hasattr(group, "_set_sequence_number_for_group"):  # until torch 2.13
        group._set_sequence_number_for_group()
    # a method of groups only in torch 2.14
    backend = group._get_backend(torch.device("cpu")) if IS_IN_CPP else group
    assert not group._has_hooks() and backend.get_error() == c10d.ErrorType.SUCCESS
    with raises(TypeError, "world_of"):
        dldist.torch.world_of("group")


def hooks_on_completion(rank, size):
    if not IS_IN_CPP:
        return "PyTorch has hooks on completion only for backends in C++"
    group = dist.new_group()
    infos = []
    group._register_on_completion_hook(infos.append)
    assert group._has_hooks()
    dist.all_reduce(of(rank, 2), group=group)
    dist.barrier(group=group, async_op=True).wait()
    group._wait_for_pending_works()
    assert [int(info.op_type) for info in infos] == [1, 15] and [info.seq for info in infos] == [1, 2], infos
    assert all(info.active_duration >= datetime.timedelta(0) for info in infos)
    with raises(RuntimeError, "has a hook already"):
        group._register_on_completion_hook(infos.append)
    dist.destroy_process_group(group)


def synchronous_calls_may_be_waited_for_as_tensors(rank, size):
    """PyTorch registers the return value if compiled programs may take tensors of pending calls."""
    x = of(rank, 2)
    c10d._set_allow_inflight_collective_as_graph_input(True)
    try:
        dist.all_reduce(x)
    finally:
        c10d._set_allow_inflight_collective_as_graph_input(False)
    torch.ops._c10d_functional.wait_tensor(x)
    check(x, total(size, 2))


def completion_hook_that_raises(rank, size):
    if not IS_IN_CPP:
        return "PyTorch has hooks on completion only for backends in C++"
    group = dist.new_group()

    def hook(info):
        raise ValueError("mine")

    group._register_on_completion_hook(hook)
    # keeps the call pending on rank 0, and makes another thread run the hook
    time.sleep(0.1 * rank)
    x = of(rank, 2)
    dist.all_reduce(x, group=group, async_op=True).wait()
    group._wait_for_pending_works()
    check(x, total(size, 2))
    dist.destroy_process_group(group)


def torch_dumps_have_the_calls(rank, size):
    x = of(rank, 3)
    dist.all_reduce(x)
    last = pickle.loads(c10d._dump_fr_trace())["entries"][-1]
    assert last["profiling_name"].endswith(":all_reduce") and last["input_sizes"] == [[3]] and last["state"] == "completed", last
    assert "torch_dumps_have_the_calls" in str(last["frames"])
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(x, group=gloo)
    dist.barrier()
    names = [entry["profiling_name"] for entry in json.loads(c10d._dump_fr_trace_json())["entries"]]
    assert [name.partition(":")[2] for name in names[-2:]] == ["all_reduce", "barrier"], names
    dist.destroy_process_group(gloo)


def torch_dumps_have_each_call_once(rank, size):
    gloo = dist.new_group(backend="gloo")
    dldist.torch.install(as_gloo=True)
    in_its_place = dist.new_group(backend="gloo")
    dldist.torch.install(as_gloo=False)
    for count, group in ((7001, None), (7002, gloo), (7003, in_its_place)):
        dist.all_reduce(of(rank, count), group=group)
    counts = {"gloo": {7001: 1, 7002: 1, 7003: 1}, "dldist": {7001: 1, 7003: 1}, "other": {}}
    has_names = hasattr(c10d, "_dump_fr_trace_file")  # since PyTorch 2.15
    for backend, expected in counts.items() if has_names else [(None, counts["gloo"])]:
        named = {} if backend is None else {"backend": backend}
        # for stacks PyTorch imports its compiler, which may exceed a case's time limit
        assert sizes_of_7000(pickle.loads(c10d._dump_fr_trace(includeStackTraces=False, **named))) == expected, backend
        assert sizes_of_7000(json.loads(c10d._dump_fr_trace_json(**named))) == expected, backend
        if has_names and expected:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["DLDIST_FR_DUMP_FILE"] = f"{folder}/new/trace_"
                c10d._dump_fr_trace_file(rank, **named)
                del os.environ["DLDIST_FR_DUMP_FILE"]
                with open(f"{folder}/new/trace_{rank}", "rb") as file:
                    assert sizes_of_7000(pickle.load(file)) == expected, backend
                    assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
                assert os.listdir(f"{folder}/new") == [f"trace_{rank}"]
    if has_names:
        c10d._reset_fr_trace("other")
        assert sizes_of_7000(json.loads(c10d._dump_fr_trace_json())) == counts["gloo"]
        c10d._reset_fr_trace()
        assert sizes_of_7000(json.loads(c10d._dump_fr_trace_json())) == {}
    for group in (gloo, in_its_place):
        dist.destroy_process_group(group)


def sizes_of_7000(dump):
    """Return {number of elements: calls in the dump}, for 7000 to 7009 elements."""
    shapes = [tuple(shape) for entry in dump.get("entries", ()) for shape in entry["input_sizes"]]
    return dict(collections.Counter(size for (size,) in (shape for shape in shapes if len(shape) == 1) if 7000 <= size < 7010))


# ---- features built on groups


def timeouts_of_all_backends(rank, size):
    """Setting the timeouts of all backends must work without CUDA. A compiled program with a warm
    cache does the first call."""
    limit = datetime.timedelta(seconds=5)
    group = dist.group.WORLD
    kinds = {"cpu"} if torch.version.cuda is None else {"cpu", "cuda"}
    assert not torch.cuda.is_available() and {device.type for device in group._device_types} == kinds
    dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(limit)
    before = dldist.torch.world_of().timeout
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.distributed_c10d._set_pg_timeout(limit, group)
    assert dldist.torch.world_of().timeout == limit
    dist.distributed_c10d._set_pg_timeout(before)
    assert dldist.torch.world_of().timeout == group._get_backend(torch.device("cpu")).options._timeout == before
    with raises(RuntimeError, "CUDA"):  # a tensor on that device would fail
        runner_of(group).backend_for("cuda")


def functional(rank, size):
    import torch.distributed._functional_collectives as fc

    group = list(range(size))
    check(fc.all_reduce(of(rank, 2), "sum", group).wait(), total(size, 2))
    out = fc.all_gather_tensor(of(rank, 2), 0, group)
    check(fc.wait_tensor(out), torch.cat([of(other, 2) for other in group]))
    out = fc.reduce_scatter_tensor(of(rank, size), "sum", 0, group)
    check(out + 0, total(size, size)[rank : rank + 1])
    out = fc.all_to_all_single(torch.arange(size) + 10.0 * rank, None, None, group)
    check(out + 0, [10.0 * other + rank for other in group])
    check(fc.broadcast(of(rank, 2), 1, group) + 0, of(1, 2))
    check(fc.all_reduce_coalesced([of(rank, 2), of(rank, 1)], "avg", group)[1] + 0, total(size, 1) / size)
    check(fc.all_gather_into_tensor_coalesced([of(rank, 1)], group)[0][-1:] + 0, of(size - 1, 1))
    check(fc.reduce_scatter_tensor_coalesced([of(rank, size)], "sum", [0], group)[0] + 0, total(size, size)[rank : rank + 1])
    x = of(rank, 2).requires_grad_()
    fc.all_gather_tensor_autograd(x, 0, group).sum().backward()
    check(x.grad, [float(size)] * 2)
    x = of(rank, size).requires_grad_()
    fc.all_to_all_single_autograd(x, [1] * size, [1] * size, group).sum().backward()
    check(x.grad, [1.0] * size)


def compiled(rank, size):
    import torch.distributed._functional_collectives as fc

    def program(x):
        return fc.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    def with_calls_between_its_graphs(x):
        y = x * 2
        dist.broadcast(y, 0)
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, y, 1 - rank), dist.P2POp(dist.irecv, x, 1 - rank)]):
            work.wait()
        return x + y

    if size != 2:
        return "compiling takes long: only with two ranks"
    check(torch.compile(program, backend="aot_eager")(of(rank, 2)), program(of(rank, 2)))
    check(torch.compile(with_calls_between_its_graphs, backend="eager")(of(rank, 2)), 8 * of(0, 2))


def dtensor(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(4.0 * size * 3).reshape(4 * size, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert sharded.to_local().shape == (4, 3)
    check(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    check(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    product = sharded.t() @ sharded
    assert isinstance(product.placements[0], Partial)
    torch.testing.assert_close(product.full_tensor(), whole.t() @ whole)


def data_parallel(rank, size):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    whole = torch.randn(size * 2, 4)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    parallel(whole[2 * rank : 2 * rank + 2]).mean().backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(whole).mean().backward()
    for grad, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(grad, parameter.grad)


def bad_calls(rank, size):
    group = dist.group.WORLD
    with raises((RuntimeError, ValueError)):
        group.broadcast([torch.ones(1)], root_of(size)).wait()
    several = [torch.ones(1), torch.ones(1)]
    group.allreduce(several).wait()  # the sum over all tensors of all ranks, as with Gloo
    assert [each.item() for each in several] == [2.0 * size] * 2
    with raises(RuntimeError, "no tensor arguments" if IS_IN_CPP else "non-empty tensor list"):
        group.allreduce([])
    # in C++ the call reaches torch's own kernel for such tensors, which does nothing
    if not IS_IN_CPP:
        with raises((RuntimeError, TypeError), "meta"):
            group.allreduce([torch.ones(1, device="meta")])
    with raises(TypeError):
        group.allreduce([torch.ones(1)], op="text", opts=None, other=1)
    x = of(rank, 1)
    dist.all_reduce(x)
    check(x, total(size, 1))
