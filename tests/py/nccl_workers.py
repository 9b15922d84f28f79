"""What the ranks of the NCCL tests run, over the doubles of tests/stubs. No pytest here: the children start sooner."""

import datetime
import os
import signal
import time

LIMIT_S = 20.0


def tensor_type(stubs, device):
    """Tensors of a device that read like an array.array."""
    import nccl_stubs
    import numpy

    class Tensor(nccl_stubs.CudaArray):
        def __init__(self, values, dtype="float32", **options):
            super().__init__(stubs, numpy.asarray(values, dtype=dtype), device=device, **options)

        def tolist(self):
            return self.numpy().tolist()

        def __iter__(self):
            return iter(self.tolist())

        def __getitem__(self, index):
            return self.tolist()[index]

        def __eq__(self, other):
            return self is other or (isinstance(other, Tensor) and self.tolist() == other.tolist())

        __hash__ = None

    return Tensor


def cases(channel, how, port, rank, size):
    """Runs functions of a module of the c10d tests on NCCL until the parent names none. A name of this module comes first."""
    import importlib

    module_name, version, environment = how
    os.environ.update(environment)
    import dldist
    import nccl_stubs

    signal.signal(signal.SIGINT, signal.default_int_handler)
    stubs = nccl_stubs.build(version)
    Tensor = tensor_type(stubs, rank)
    module = importlib.import_module(module_name)
    module.make = lambda code, values: Tensor(values, {"f": "float32", "q": "int64", "i": "int32"}[code])
    module.to_the_end = (datetime.timedelta(seconds=LIMIT_S),)
    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    dldist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=LIMIT_S)
    channel.send("ready")
    while True:
        name = channel.recv(300)
        if name is None:
            dldist.destroy_process_group()
            return "closed"
        start = time.monotonic()
        reply = globals()[name](module, rank, size) if name in globals() else getattr(module, name)(rank, size)
        channel.send((reply, time.monotonic() - start))


# ---- in place of what is different here


def nccl_messages(module, rank, size):
    """Messages go one after the other between two ranks, so somebody has to send first; tags mean nothing."""
    dist, f = module.dist, module.f
    for group, order in _orders(dist, size):
        place = order.index(rank)
        x = f(0, 0)
        if place == 0:
            dist.send(module.values_of(rank), order[1], group=group, tag=3)
            assert dist.recv(x, order[1], group=group) == order[1]
            assert x.tolist() == module.values_of(order[1]).tolist()
        elif place == 1:
            work = dist.irecv(x, order[0], group=group)
            assert work.wait(*module.to_the_end) is True
            assert x.tolist() == module.values_of(order[0]).tolist()
            dist.isend(module.values_of(rank), order[0], group=group).wait()
        dist.barrier()
    with module.raises(NotImplementedError, "cannot receive from any rank"):
        dist.recv(f(0))


def _orders(dist, size):
    yield None, list(range(size))
    ranks = list(range(size))[::-1]
    group = dist.new_group(ranks, sort_ranks=False)
    yield group, ranks
    dist.destroy_process_group(group)


def nccl_works(module, rank, size):
    """Asynchronous calls, their results and futures."""
    dist, f = module.dist, module.f
    x = f(1, 2)
    work = dist.all_reduce(x, async_op=True)
    assert type(work).__name__ == "NcclWork"
    assert work.wait() is True and work.result()[0] is x
    assert work.get_future().wait()[0] is x and x.tolist() == [size, 2 * size]
    assert work.get_future_result().wait(LIMIT_S) == dist.c10d.options.WorkResult.SUCCESS
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work._get_op_type() == 1 and work._get_sequence_number() > 0
    seen = []
    done = dist.all_reduce(f(1), async_op=True).get_future().then(lambda future: seen.append(future.value()[0].tolist()))
    done.wait(LIMIT_S)
    assert seen == [[size]]
    assert dist.barrier(async_op=True).wait() is True


def nccl_coalescing_in_a_group(module, rank, size):
    """What is called with another group runs at once."""
    dist, f = module.dist, module.f
    ranks = list(range(size))[::-1]
    group = dist.new_group(ranks, sort_ranks=False)
    inside, outside = f(rank), f(rank)
    with dist._coalescing_manager(group):
        dist.all_reduce(inside, group=group)
        dist.all_reduce(outside)
        assert inside.tolist() == [rank] and outside.tolist() == [sum(range(size))]
    assert inside.tolist() == [sum(range(size))]
    dist.destroy_process_group(group)


def nccl_coalescing_by_the_backend(module, rank, size):
    """With a device any calls are one operation, whatever they are."""
    dist, f = module.dist, module.f
    x, out = f(rank), f(*[0] * size)
    with dist._coalescing_manager(device="cuda", async_ops=True) as manager:
        dist.all_reduce(x)
        dist.all_gather_single(out, f(10 * rank))
    assert len(manager.works) == 1
    manager.wait()
    assert x.tolist() == [sum(range(size))] and out.tolist() == [10.0 * other for other in range(size)]
    with module.raises(KeyError, "stop"), dist._coalescing_manager(device="cuda"):
        dist.all_reduce(x)
        raise KeyError("stop")
    dist.barrier()


def nccl_objects(module, rank, size):
    """Object collectives stage their bytes."""
    dist = module.dist
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * (rank + 1)})
    assert everybody == [{"rank": other, "text": "x" * (other + 1)} for other in range(size)]
    objects = [rank] if rank == 0 else [None]
    dist.broadcast_object_list(objects, 0)
    assert objects == [0]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {other}" for other in range(size)] if rank == 0 else None, 0)
    assert mine == [f"for {rank}"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    assert gathered is None or gathered == list(range(size))


def nccl_timeout(module, rank, size):
    """A rank that does not come: the others hear so in time, and the group has failed; others go on."""
    dist, f = module.dist, module.f
    group = dist.new_group(list(range(size)))
    dist.all_reduce(f(1), group=group)
    dist.barrier()
    if rank == 0:
        start = time.monotonic()
        with module.raises(TimeoutError, "all_reduce"):
            dist.all_reduce(f(1), group=group, timeout=0.3, async_op=True).wait(datetime.timedelta(seconds=10))
        assert time.monotonic() - start < 5
        with module.raises(RuntimeError, ""):
            dist.all_reduce(f(1), group=group)
    dist.barrier()
    dist.abort(group)


def nccl_settings(module, rank, size):
    dist = module.dist
    group = dist.new_group(list(range(size)), timeout=7, group_desc="mine")
    assert group.get_timeout() == datetime.timedelta(seconds=7)
    dist.set_timeout(datetime.timedelta(seconds=8), group)
    assert group.get_timeout() == datetime.timedelta(seconds=8)
    assert dist.get_backend(group) == "nccl" and dist.get_backend_config(group) == "cuda:nccl"
    assert dist.get_backend_impl(group, "cuda").name() == "nccl"
    with module.raises(ValueError, "is on cpu, and the group has no backend for that device (it has: cuda)"):
        dist.all_reduce(bytearray(8))
    with module.raises(NotImplementedError, "monitored_barrier"):
        dist.monitored_barrier()
    dist.destroy_process_group(group)
