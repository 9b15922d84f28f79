"""Workers of the NCCL tests' ranks, over the stubs of tests/stubs. Without pytest, so that the
children start faster."""

import datetime
import os
import time
import warnings

LIMIT_S = 20.0


DTYPES = {
    "b": "int8", "B": "uint8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32", "q": "int64", "Q": "uint64",
    "f": "float32", "d": "float64", "?": "bool",
}  # fmt: skip


def tensor_type(stubs, device):
    """Return a type of device tensors that read like an array.array.

    `stubs`: the stubs, or a device of the same interface (tests/gpu/gpu_device.py).
    """
    import dlpack_producer
    import nccl_stubs
    import numpy

    class Tensor(stubs.Array):
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

    class Part(Tensor):
        """A view of elements of another tensor."""

        def __init__(self, whole, start, shape, strides):
            self.whole = whole
            for name in ("cuda", "device", "stream", "honours_stream", "dtype", "held_as"):
                setattr(self, name, getattr(whole, name))
            self.asked_streams, self._exported = [], []
            self.shape, self.strides = tuple(shape), tuple(strides)
            self.address = self._base = whole.address + start * whole.held_as.itemsize
            self._first, self._nbytes = nccl_stubs._layout(self.shape, self.strides, self.held_as.itemsize)
            code, bits, _ = nccl_stubs.DTYPES[self.dtype]
            where = {"data": self.address, "device_type": dlpack_producer.CUDA, "device_id": device}
            dlpack_producer.Producer.__init__(self, None, self.shape, self.strides, dtype=(code, bits), **where)

        def _give_back(self):
            pass

    Tensor.Part = Part
    return Tensor


class Device:
    """A rank's device, for the cases of group_workers."""

    wait_timed_out = "has not ended after 0.0"

    def __init__(self, stubs, device, store):
        self.Tensor = tensor_type(stubs, device)
        self.to_the_end = (LIMIT_S,)
        self._store = store
        self._ngates = 0

    def hold(self, group):
        """Wait for rank 0 by the store. A message would wait for earlier collectives."""
        self._ngates += 1
        self._store.wait([f"gate{self._ngates}"])

    def let_go(self, group):
        self._ngates += 1
        self._store.set(f"gate{self._ngates}", b"")

    def make(self, code, values):
        return self.Tensor(values, DTYPES.get(code, code))

    def of(self, values):
        strides = tuple(stride // values.itemsize for stride in values.strides)
        return self.Tensor(values, values.dtype.name, strides=strides)

    def part(self, tensor, start, stop, step=1):
        return self.Tensor.Part(tensor, start, [len(range(start, stop, step))], [step])

    def shaped(self, tensor, shape):
        return self.Tensor.Part(tensor, 0, shape, [shape[1], 1])

    def sends_first(self, rank):
        """A receive would never end if its message were sent later on the same stream."""
        return rank % 2 == 0

    def ops_of_batch(self, ops):
        """A batch is one operation."""
        return ["coalesced"] * len(ops)

    def part_to_fail(self, group):
        """Return a connected group and a source other than this rank.

        A timeout ends the group, and NCCL ranks cannot send to themselves. Without a connection, a
        first message would wait in its call.
        """
        import dldist

        part = group.split(list(range(group.size)), "to fail")
        after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        greeting = [("isend", self.make("i", [0]), before), ("irecv", self.make("i", [0]), after)]
        for work in part.batch_isend_irecv([dldist.P2POp(*words) for words in greeting]):
            work.wait()
        return part, after

    def failed(self, part):
        try:
            part.barrier()
        except RuntimeError as error:
            assert "recv" in str(error), error
        else:
            raise AssertionError("the group goes on")
        part.abort()

    def too_early(self, work):
        """Check that the result is available early, because a stream may wait for it."""
        assert len(work.result()) == 1
        return (work.source_rank,)

    def check_duration(self, work):
        """Works are timed only if enabled."""
        try:
            assert 0 <= work.duration < LIMIT_S
        except RuntimeError as error:
            assert "was not timed" in str(error), error

    lacks = frozenset({"scan", "exscan"})

    def refusal(self, name, op):
        """Return the error of every call with a reduction that NCCL lacks, or None."""
        if name in ("h", "H"):
            return "NotImplementedError", f"NCCL cannot reduce {DTYPES[name]}: it has no such dtype"
        if name == "?" and op in ("AVG", "BXOR"):
            return "DistArgumentError", f"Cannot use ReduceOp.{op} with bool on NCCL"
        if name != "?" and op in ("BAND", "BOR", "BXOR"):
            return "DistArgumentError", f"Cannot use ReduceOp.{op} with NCCL"
        if name.startswith("complex") and op not in ("SUM", "AVG"):
            return "DistArgumentError", f"Cannot use ReduceOp.{op} on {name} with NCCL, which has no complex numbers"
        return None


def memory_on(device):
    """Return a type like the oracle's memories, on the device."""
    import numpy
    import oracle

    class Memory(oracle.Memory):
        def __init__(self, code, before, after=None, allocate=None):
            super().__init__(code, before, after)
            self.tensor = device.make(code, numpy.frombuffer(self.before, DTYPES[code]))

        def check(self, description):
            self.data = self.tensor.numpy().tobytes()
            super().check(description)

    return Memory


def member(channel, port, rank, size, how):
    """Run the cases of group_workers in an NcclGroup."""
    version, environment, options = how
    os.environ.update(environment)
    import dldist
    import group_workers
    import nccl_stubs
    from dldist import nccl

    assert nccl.is_available(), nccl.why_not_available()
    assert ".".join(map(str, nccl.get_version())) == version
    store = dldist.TCPStore(group_workers.LOOPBACK, port, timeout=30.0)
    place = Device(nccl_stubs.build(version), rank, store)
    return serve_group(channel, place, store, rank, size, {"timeout": LIMIT_S, "device": rank, **options})


def serve_group(channel, place, store, rank, size, options):
    """Run the cases of group_workers with tensors of `place`, in an NcclGroup with options."""
    import group_workers
    import oracle
    from dldist import _core

    group_workers.place = place
    oracle.Memory = memory_on(place)
    group = _core.NcclGroup(store, rank, size, **options)
    return group_workers.serve(channel, group, vars(group_workers))


class Nccl:
    """The backend, for the cases of c10d_cases."""

    name = "nccl"
    config = "cuda:nccl"
    device = "cuda"
    to_the_end = (datetime.timedelta(seconds=LIMIT_S),)
    has_scan = False
    tells_others = False

    def __init__(self, dist, store, tensor_type, rank):
        self._dist, self._store, self._type, self._rank = dist, store, tensor_type, rank
        self._nmade = 0

    def make(self, code, values):
        return self._type(values, DTYPES[code])

    def sends_first(self, place):
        """A receive would never end if its message were sent later on the same stream."""
        return place % 2 == 0

    def worlds(self, ranks):
        """A World is for the CPU; these groups are independent of it."""
        from dldist.nccl import NcclGroup

        self._nmade += 1
        store = self._dist.PrefixStore(f"own {self._nmade}", self._store)
        world = NcclGroup(store, self._rank, len(ranks), timeout=LIMIT_S, device=self._rank)
        return world, world.split(ranks)

    def settle(self, call, *args, **named):
        assert call(*args, async_op=True, **named).wait(*self.to_the_end) is True

    def names_the_missing(self, call, rank):
        """NCCL does not know the missing rank; the flight recorder does."""
        return call

    def end_failed(self, group):
        self._dist.abort(group)


def cases(channel, how, port, rank, size):
    """Run functions of a c10d test module on NCCL until the parent sends None. Functions of this
    module take precedence."""
    import importlib

    module_name, version, environment = how
    os.environ.update(environment)
    import dldist
    import nccl_stubs

    stubs = nccl_stubs.build(version)
    Tensor = tensor_type(stubs, rank)
    module = importlib.import_module(module_name)
    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    module.backend = Nccl(dldist, store, Tensor, rank)
    # Groups use the device of their rank, as these tests expect.
    warnings.filterwarnings("ignore", "this group does not know its device")
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


# ---- replacements for cases that differ over NCCL


def nccl_any_source(module, rank, size):
    """A receive without a source must raise immediately, in every group and form."""
    dist, f = module.dist, module.f
    group = dist.new_group(list(range(size))[::-1], sort_ranks=False)
    for each in (None, group):
        for call in (dist.recv, dist.irecv):
            with module.raises(NotImplementedError, "cannot receive from any rank: give 'src'"):
                call(f(0), group=each)
    with module.watched(dist.group.WORLD), module.raises(RuntimeError, "NCCL cannot receive from any rank"):
        dist.recv(f(0))
    with module.raises(NotImplementedError, "cannot receive from any rank"):
        dist.recv_object_list([None])
    dist.destroy_process_group(group)


def nccl_message_sizes(module, rank, size):
    """A receiver that expects more than was sent must wait for the rest until its timeout."""
    dist, f = module.dist, module.f
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.isend(f(1), 1, group=group)
    elif rank == 1:
        with module.raises(dist.DistTimeoutError, "recv message"):
            dist.irecv(f(0, 0), 0, group=group, timeout=module.SHORT_S).wait(*module.backend.to_the_end)
    dist.barrier()
    if rank in (0, 1):
        dist.abort(group)


def nccl_message_tags_and_dtypes(module, rank, size):
    """NCCL transmits neither tags nor dtypes: the next message matches any tag, and the receiver's
    dtype interprets its bytes."""
    dist, f = module.dist, module.f
    if rank == 0:
        dist.send(f(5, 6), 1, tag=1)
        dist.isend(f(7), 1, tag=1).wait(*module.backend.to_the_end)
        dist.send(f(1), 1)
    elif rank == 1:
        x, y, number = f(0, 0), f(0), module.backend.make("i", [0])
        assert dist.recv(x, 0, tag=2) == 0 and x.tolist() == [5, 6]
        dist.irecv(y, 0, tag=3).wait(*module.backend.to_the_end)
        dist.recv(number, 0)
        assert y.tolist() == [7] and number.tolist() == [1065353216]  # 0x3F800000
    dist.barrier()


def nccl_message_timeouts(module, rank, size):
    """A receive without a sender must time out, and the group must fail."""
    dist, f = module.dist, module.f
    for seconds in (module.SHORT_S, datetime.timedelta(seconds=module.SHORT_S)):
        # the first timeout fails the whole group
        pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
        group = pairs[rank // 2]
        start = time.monotonic()
        with module.raises(dist.DistTimeoutError, "recv message"):
            dist.irecv(f(0), rank ^ 1, group=group, timeout=seconds).wait(*module.backend.to_the_end)
        assert module.SHORT_S * 0.9 < time.monotonic() - start < 10
        with module.raises(RuntimeError, "recv message"):
            dist.all_reduce(f(1), group=group)
        dist.abort(group)
    dist.barrier()


def nccl_monitored_barrier(module, rank, size):
    dist = module.dist
    for wait_all in (False, True):
        with module.raises(NotImplementedError, "monitored_barrier"):
            dist.monitored_barrier(wait_all_ranks=wait_all)
    with module.raises(NotImplementedError, "monitored_barrier"):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))


def nccl_names(module, rank, size):
    """c10d's names for NCCL, and the queries of its groups, must work."""
    from dldist import distributed_c10d as c10d
    from dldist._backends.nccl import ProcessGroupNCCL

    dist = module.dist
    world = dist.group.WORLD
    assert c10d._NCCL_AVAILABLE is True
    assert dist.ProcessGroupNCCL is c10d.ProcessGroupNCCL is ProcessGroupNCCL
    backend = world._get_backend("cuda")
    assert isinstance(backend, dist.ProcessGroupNCCL)
    assert c10d._get_process_group_uid(world) == backend.uid
    assert c10d._get_split_source(world) is backend
    assert c10d._get_object_coll_device() == ("cpu" if "cpu" in world._device_types else "cuda")
    assert c10d._get_object_coll_device(backend) == "cuda"


def nccl_barriers(module, rank, size):
    """barrier must accept devices; an empty list means none."""
    dist = module.dist
    for ids in (None, [], [rank]):
        assert dist.barrier(device_ids=ids) is None
        assert dist.barrier(async_op=True, device_ids=ids).wait() is True
    world, _ = module.backend.worlds(list(range(size)))
    for ids in (None, [], [rank]):
        assert world.barrier(device_ids=ids) is None
    with module.raises(TypeError, "device_ids"):
        dist.barrier(device_ids=rank)
    world.close()


def nccl_works(module, rank, size):
    """Asynchronous calls must return works with results and futures."""
    dist, f = module.dist, module.f
    x = f(1, 2)
    work = dist.all_reduce(x, async_op=True)
    assert type(work).__name__ == "NcclWork"
    assert work.wait() is True and work.result()[0] is x
    assert work.get_future().wait()[0] is x and x.tolist() == [size, 2 * size]
    assert work.get_future_result().wait(LIMIT_S) == dist.distributed_c10d.WorkResult.SUCCESS
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work._get_op_type() == 1 and work._get_sequence_number() > 0
    seen = []
    done = dist.all_reduce(f(1), async_op=True).get_future().then(lambda future: seen.append(future.value()[0].tolist()))
    done.wait(LIMIT_S)
    assert seen == [[size]]
    assert dist.barrier(async_op=True).wait() is True


def nccl_coalescing_in_a_group(module, rank, size):
    """Calls with another group must run immediately."""
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
    """With a device, calls of any kind must be one operation."""
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


def nccl_estimates(module, rank, size):
    """Estimates must return a time and make no call."""
    dist, f = module.dist, module.f
    x = f(rank)
    dist.all_reduce(f(0))
    with dist._time_estimator(device="cuda") as estimator:
        dist.all_reduce(x)
        assert dist.all_reduce(x, async_op=True).wait() is True
        with dist._coalescing_manager(device="cuda"):
            dist.all_reduce(x)
            dist.broadcast(x, 0)
        dist.barrier()
    assert estimator.estimated_time == 5.0
    with module.raises(KeyError, "stop"), dist._time_estimator() as estimator:
        dist.all_reduce(x)
        raise KeyError("stop")
    assert estimator.estimated_time is None and dist.group.WORLD.supports_time_estimate is True
    with dist._time_estimator() as estimator, module.raises(NotImplementedError, "cannot estimate messages"):
        dist.all_to_all_single(f(*[0] * size), f(*[0] * size))
    assert estimator.estimated_time == -1.0 and x.tolist() == [rank]
    with dist._time_estimator(), module.raises(NotImplementedError, "NCCL has no scan"):
        dist.scan(x)
    with module.raises(NotImplementedError, "NCCL has no scan"):
        dist.scan(x)
    dist.all_reduce(x)
    assert x.tolist() == [sum(range(size))]


def nccl_objects(module, rank, size):
    """Object collectives must stage their bytes."""
    dist = module.dist
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * (rank + 1)})
    assert everybody == [{"rank": other, "text": "x" * (other + 1)} for other in range(size)]
    objects = [rank] if rank == 0 else [None]
    dist.broadcast_object_list(objects, 0)
    assert objects == [0]
    own_value = [None]
    dist.scatter_object_list(own_value, [f"for {other}" for other in range(size)] if rank == 0 else None, 0)
    assert own_value == [f"for {rank}"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    assert gathered is None or gathered == list(range(size))
    pair = [None, None]
    if rank == 0:
        dist.send_object_list(["a" * 10000, {"n": 1}], 1)
    elif rank == 1:
        assert dist.recv_object_list(pair, 0) == 0 and pair == ["a" * 10000, {"n": 1}]
    group, _ = module.backend.worlds(list(range(size)))
    gathered = [None] * size
    dist.all_gather_object(gathered, (rank, "own"), group=group)
    assert gathered == [(other, "own") for other in range(size)]
    group.close()


def nccl_settings(module, rank, size):
    dist = module.dist
    group = dist.new_group(list(range(size)), timeout=7, group_desc="mine")
    assert group.get_timeout() == datetime.timedelta(seconds=7)
    dist.set_timeout(datetime.timedelta(seconds=8), group)
    assert group.get_timeout() == datetime.timedelta(seconds=8)
    assert dist.get_backend(group) == "nccl" and dist.get_backend_config(group) == "cuda:nccl"
    assert dist.get_backend_impl(group, "cuda").name() == "nccl"
    with module.raises(ValueError, "is on a device without a backend: got cpu, expected cuda"):
        dist.all_reduce(bytearray(8))
    with module.raises(NotImplementedError, "monitored_barrier"):
        dist.monitored_barrier()
    dist.destroy_process_group(group)


def nccl_deadlines(module, rank, size):
    """The default timeout must be ten minutes."""
    dist = module.dist
    group = dist.new_group(list(range(size)))
    assert group.get_timeout() == datetime.timedelta(minutes=10)
    own = dist.new_group(list(range(size)), backend="gloo")
    assert own.get_timeout() == datetime.timedelta(minutes=30)
    dist.destroy_process_group(own)
    dist.destroy_process_group(group)


def nccl_with_gloo(module, rank, size):
    """In a group of both backends, each tensor must use the backend of its device."""
    import array

    dist = module.dist
    group = dist.new_group(list(range(size)), backend="cpu:gloo,cuda:nccl")
    assert dist.get_backend_config(group) == "cpu:gloo,cuda:nccl"
    assert type(group.operations) is dist.World and type(group.operations._device_group) is dist._core.NcclGroup
    here, there = array.array("f", [rank]), module.f(rank)
    works = [dist.all_reduce(x, group=group, async_op=True) for x in (here, there)]
    for work in works:
        assert work.wait() is True
    assert here.tolist() == there.tolist() == [sum(range(size))]
    for make in (lambda *values: array.array("f", values), module.f):
        x = make(0)
        messages = [dist.P2POp(dist.isend, make(rank), (rank + 1) % size, group=group)]
        messages.append(dist.P2POp(dist.irecv, x, (rank - 1) % size, group=group))
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        assert x.tolist() == [(rank - 1) % size]
        parts = [make(0) for _ in range(size)]
        dist.all_gather(parts, make(rank), group=group)  # a tensor in a list selects the backend
        assert [part.tolist() for part in parts] == [[each] for each in range(size)]
        y, z = make(rank), make(1)
        with dist._coalescing_manager(group):
            dist.all_reduce(y, group=group)
            dist.all_reduce(z, group=group)
        assert y.tolist() + z.tolist() == [sum(range(size)), size]
    with module.raises(NotImplementedError, "plan.all_reduce"):
        group.operations.plan.all_reduce(module.f(1))
    gathered = [None] * size
    dist.all_gather_object(gathered, rank, group=group)
    assert gathered == list(range(size))
    dist.barrier(group)
    dist.barrier(group, device_ids=[rank])
    hook_arguments = []
    group.register_pre_hook(1, hook_arguments.append)
    assert type(group.operations) is not dist.World  # hooks are called on the slow path
    there = module.f(rank)
    dist.all_reduce(there, group=group)
    group.unregister_pre_hook(1)
    assert len(hook_arguments) == 1 and there.tolist() == [sum(range(size))]
    assert type(group.operations) is dist.World
    dist.destroy_process_group(group)


def nccl_sequences(module, rank, size):
    """Every group must count its own operations."""
    dist, f = module.dist, module.f
    group = dist.new_group(list(range(size)))
    before = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(f(1), group=group)
    assert group._get_sequence_number_for_group() == before + 3
    dist.destroy_process_group(group)


def nccl_subgroups(module, rank, size):
    dist, f = module.dist, module.f
    own_value, groups = dist.new_subgroups(2)
    assert len(groups) == size // 2
    x = f(rank)
    dist.all_reduce(x, group=own_value)
    assert x.tolist() == [rank // 2 * 4 + 1]
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)


def nccl_in_detail(module, rank, size):
    """DETAIL must compare the calls of all ranks before NCCL gets them, and change nothing else."""
    dist, f = module.dist, module.f
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group(list(range(size)))
    finally:
        dist.set_debug_level(before)
    module.run_collectives(list(range(size)), rank, group, is_world_rank=True)
    x, out = f(rank), f(*[0] * size)
    with dist._coalescing_manager(group, device="cuda"):
        dist.all_reduce(x, group=group)
        dist.all_gather_single(out, f(rank), group=group)
    assert x.tolist() == [sum(range(size))] and out.tolist() == list(range(size))
    with module.raises(KeyError, "stop"), dist._coalescing_manager(group, device="cuda"):
        raise KeyError("stop")
    x = f(0)
    messages = [dist.P2POp(dist.isend, f(rank), (rank + 1) % size, group=group)]
    messages.append(dist.P2POp(dist.irecv, x, (rank - 1) % size, group=group))
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    assert x.tolist() == [(rank - 1) % size]
    gathered = [None] * size
    dist.all_gather_object(gathered, rank, group=group)
    assert gathered == list(range(size))
    with module.raises(RuntimeError, "Detected mismatch between collectives on ranks"):
        dist.all_reduce(f(1) if rank == 0 else f(1, 2), group=group)
    dist.destroy_process_group(group)
