"""The code of the ranks of test_two_ranks.py: processes that share the first GPU, or in a rehearsal
the first stub GPU.

Do not import pytest here: it slows down the start of the children."""

import datetime
import functools
import gc
import signal
import time

import dldist
import group_workers
import nccl_fault_workers
import nccl_workers
import numpy
from cuda_driver import Graph
from dldist import nccl
from gpu_device import DEVICE, Gpu
from nccl_fault_workers import SLACK_S, SOON_S, check_error, raised_by, wait_until, works_again
from procs import under_load

LIMIT_S = 30.0
SHORT_S = 1.0
"""The timeout of operations that must not complete."""
LATE_S = 1.0
# 1, 2 and 4, as NumPy stores types that it lacks.
NARROW_FLOATS = {"bfloat16": (0x3F80, 0x4000, 0x4080), "float8_e4m3fn": (0x38, 0x40, 0x48), "float8_e5m2": (0x3C, 0x40, 0x44)}


# ---- the cases of the tests of groups


class GpuDevice(nccl_workers.Device):
    def part_to_fail(self, group):
        """Create the communicator first: the timeout of a message must not include that."""
        part, source = super().part_to_fail(group)
        part.barrier()
        return part, source


def member(channel, port, rank, size, options):
    """Run the cases of group_workers."""
    store = dldist.TCPStore(group_workers.LOOPBACK, port, timeout=LIMIT_S)
    place = GpuDevice(Gpu(), DEVICE, store)
    options = {"timeout": LIMIT_S, "device": DEVICE, **(options or {})}
    return nccl_workers.serve_group(channel, place, store, rank, size, options)


# ---- cases with their own groups


class Rank(nccl_fault_workers.Rank):
    """One rank, with a group for each case."""

    def __init__(self, port, rank, size, options):
        self.begin(port, rank, size, Gpu(), DEVICE)
        self.options = options or {}
        self.ncases = 0

    def open(self, timeout=LIMIT_S, name="", **options):
        return super().open(timeout, name, **{**self.options, **options})

    def open_connected(self):
        group = self.open()
        group.all_reduce(self.array(1))
        group.barrier()
        return group

    def stream(self):
        return self.stubs.cuda.make_stream(DEVICE)

    def array_on(self, stream, *values):
        array = self.array(*values)
        array.stream = stream
        return array

    def run(self, case):
        """Run the case; then a new group on the device must work."""
        self.ncases += 1
        self.name, self.nwaits = f"{case.__name__} {self.ncases}", 0
        reply = case(self)
        self.wait_for_all()
        works_again(self, self.name)
        return reply

    def close(self):
        """Close as a group does, after all cases."""


def case_runner(channel, port, rank, size, options=None):
    """Run the cases that the parent names."""
    cases = {name: functools.partial(Rank.run, case=each) for name, each in CASES.items()}
    return group_workers.serve(channel, Rank(port, rank, size, options), cases)


CASES = {}
"""Cases by name."""


def case(function):
    CASES[function.__name__] = function
    return function


case(nccl_fault_workers.a_rank_does_not_come)
case(nccl_fault_workers.rank_without_a_call)


def check_hung(ctx, *calls):
    """All calls, functions of an array, must time out as soon as docs/watchdog.md promises. The
    streams that wait for them must continue."""
    streams = [ctx.stream() for _ in calls]
    arrays = [ctx.array_on(stream, 1) for stream in streams]  # a hanging device may allocate slowly
    works = []
    since = time.monotonic()
    for stream, array, call in zip(streams, arrays, calls, strict=True):
        with nccl.stream(stream):
            works.append(call(array))
            assert works[-1].wait() is True and not works[-1].is_completed()
    errors = [raised_by(lambda work=work: work.wait(LIMIT_S)) for work in works]
    seconds = time.monotonic() - since
    for error in errors:
        check_error(error, dldist.DistTimeoutError, f"timed out after {SHORT_S:g} s")
    assert seconds < SHORT_S + SOON_S + under_load(SLACK_S), (seconds, str(errors[0]))
    for stream in streams:
        ctx.stubs.cuda.synchronize(stream, DEVICE)
        ctx.stubs.cuda.destroy_stream(stream)


# ---- values


@case
def narrow_floats(ctx):
    """Types that NumPy lacks: transfers of bits, and exact sums."""
    with ctx.open() as group:
        for dtype, (one, two, four) in NARROW_FLOATS.items():
            make = functools.partial(ctx.stubs.Array, ctx.stubs, dtype=dtype)
            held_as = make([0]).held_as
            everybody = make(numpy.zeros(2, held_as))
            group.all_gather_single(everybody, make(numpy.full(1, (one, two)[ctx.rank], held_as)))
            assert everybody.numpy().tolist() == [one, two], dtype
            if "float8" in dtype and nccl.get_version() < (2, 24):
                continue
            x = make(numpy.asarray([one, two], held_as))
            group.all_reduce(x)
            assert x.numpy().tolist() == [two, four], dtype
            part = make(numpy.zeros(1, held_as))
            group.reduce_scatter_single(part, make(numpy.asarray([one, two], held_as)))
            assert part.numpy().tolist() == [(two, four)[ctx.rank]], dtype


@case
def large_arrays(ctx):
    """16 MiB, more than the buffers of NCCL hold."""
    count = 1 << 22
    given = [numpy.random.default_rng(rank).integers(0, 1000, count).astype("float32") for rank in range(ctx.size)]
    with ctx.open() as group:
        x = ctx.stubs.Array(ctx.stubs, given[ctx.rank])
        out = ctx.stubs.Array(ctx.stubs, numpy.zeros(count, "float32"))
        group.all_to_all_single(out, x)
        half = count // 2
        assert (out.numpy() == numpy.concatenate([each[half * ctx.rank :][:half] for each in given])).all()
        group.all_reduce(x)
        assert (x.numpy() == given[0] + given[1]).all()


@case
def pairs_then_batches(ctx):
    """Two ranks form a pair for a single message; batches and collectives use the communicator of
    all ranks."""
    with ctx.open() as group:
        other = 1 - ctx.rank
        taken = ctx.array(0)

        def exchange(value):
            group.start_coalescing()
            group.isend(ctx.array(value + ctx.rank), other)
            group.irecv(taken, other)
            assert group.end_coalescing().wait(LIMIT_S)
            assert taken.numpy().tolist() == [value + other]

        def message(value):
            if ctx.rank == 0:
                group.send(ctx.array(value), 1)
            else:
                group.recv(taken, 0)
                assert taken.numpy().tolist() == [value]

        message(10)
        group.start_coalescing()
        if ctx.rank == 0:  # three messages, two of them to itself; the other rank has one
            group.isend(ctx.array(20), 1)
            group.isend(ctx.array(21), 0)
            group.irecv(taken, 0)
        else:
            group.irecv(taken, 0)
        assert group.end_coalescing().wait(LIMIT_S)
        assert taken.numpy().tolist() == [(21, 20)[ctx.rank]]
        exchange(30)
        x = ctx.array(1)
        group.all_reduce(x)
        assert x.numpy().tolist() == [2]
        message(40)
        exchange(50)


@case
def registered_memory(ctx):
    """Use NCCL's memory, registered for a communicator and as a window, and the driver's memory."""
    with ctx.open_connected() as group:
        own, foreign = group.empty((1024,), "float32"), ctx.array(*[0.0] * 1024)
        kinds = [(own.ptr, own, False), (foreign.address, foreign, False)]
        if nccl.get_version() >= (2, 27):
            kinds.append((own.ptr, own, True))
        for number, (address, memory, is_window) in enumerate(kinds):
            registration = group.register(memory, is_window=is_window)
            values = numpy.full(1024, 10 * number + ctx.rank, "float32")
            ctx.stubs.cuda.write(address, values.tobytes())
            out = ctx.array(*[0.0] * 2048)
            group.all_gather_single(out, memory)
            group.all_reduce(memory)
            group.deregister(registration, is_window=is_window)
            assert out.numpy().tolist() == [10.0 * number] * 1024 + [10.0 * number + 1] * 1024
            assert ctx.stubs.cuda.read(address, 4096) == numpy.full(1024, 20 * number + 1, "float32").tobytes()


@case
def memory_is_given_back(ctx):
    """A suspended communicator must work again after it is resumed."""
    if nccl.get_version() < (2, 29, 7):
        return "needs NCCL 2.29.7"
    with ctx.open_connected() as group:
        group.memory_stats()
        group.suspend()
        group.resume()
        x = ctx.array(ctx.rank)
        group.all_reduce(x)
        assert x.numpy().tolist() == [1]
    return None


@case
def default_group(ctx):
    """Use c10d's functions, with tensors, objects and subgroups."""
    limit = datetime.timedelta(seconds=LIMIT_S)
    store = dldist.PrefixStore(ctx.name, ctx.store)
    dldist.init_process_group("nccl", store=store, rank=ctx.rank, world_size=ctx.size, timeout=limit, device_id=DEVICE)
    x = ctx.array(ctx.rank + 1)
    dldist.all_reduce(x)
    assert x.numpy().tolist() == [3]
    objects = [None] * ctx.size
    dldist.all_gather_object(objects, {"rank": ctx.rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    part = dldist.new_group([0, 1])
    y = ctx.array(ctx.rank)
    assert dldist.all_reduce(y, group=part, async_op=True).wait(limit)
    assert y.numpy().tolist() == [1]
    assert part._get_backend("cuda").options.split_from is not None
    dldist.barrier()
    dldist.destroy_process_group()


@case
def arrays_end_while_a_kernel_waits(ctx):
    """Freeing memory must not wait for a kernel: here the kernel waits for a rank that waits for
    this one. The next array reuses the memory."""
    with ctx.open_connected() as group:
        if ctx.is_faulty:
            ctx.wait_for_all()
            group.all_reduce(ctx.array(1))
            return
        work = group.all_reduce(ctx.array(1), async_op=True)
        ends = ctx.array(*range(1001))
        address = ends.address
        del ends
        gc.collect()
        assert ctx.array(*range(1001)).address == address
        ctx.wait_for_all()
        work.wait(LIMIT_S)


# ---- graphs


def captured(ctx, group, stream, x, mode):
    with nccl.stream(stream), Graph(ctx.stubs.cuda, stream, mode) as graph:
        group.all_reduce(x)
    return graph


@case
def graphs(ctx):
    """Capture, replay and delete graphs, then close the group. Captures forbid unsafe calls of all
    threads, of this thread, or of none."""
    stream = ctx.stream()
    with ctx.open_connected() as group, ctx.stubs.cuda.on_device(DEVICE):
        for mode in range(3):
            x = ctx.array_on(stream, 0, 0)
            graph = captured(ctx, group, stream, x, mode)
            for turn in range(3):
                x.write([turn + ctx.rank, 100])
                graph.launch()
                assert x.numpy().tolist() == [2 * turn + 1, 200]
            graph.destroy()
    ctx.stubs.cuda.destroy_stream(stream)


@case
def a_graph_outlives_its_group(ctx):
    """NCCL keeps the communicator: close() must report that after its wait, and the device's memory
    must be free again after the graph is deleted."""
    stream = ctx.stream()
    group = ctx.open_connected()
    with ctx.stubs.cuda.on_device(DEVICE):
        x = ctx.array_on(stream, 0)
        graph = captured(ctx, group, stream, x, 1)
        x.write([ctx.rank])
        graph.launch()
        assert x.numpy().tolist() == [1]
        said = "nothing"
        try:
            group.close(SHORT_S)
        except dldist.DistTimeoutError as error:
            said = str(error)
        graph.destroy()
    assert "a CUDA graph" in said, said
    return said


# ---- late and missing ranks


@case
def late_to_the_meeting(ctx):
    """A rank creates its communicator later than the other."""
    with ctx.open() as group:
        check_late(ctx, group)


@case
def late_to_the_first_collective(ctx):
    """The communicator exists; NCCL connects the ranks in the first collective."""
    with ctx.open() as group:
        group.connect()
        check_late(ctx, group)


def check_late(ctx, group):
    key = f"{ctx.name}/calling"
    if ctx.is_faulty:
        ctx.store.wait([key], LIMIT_S)
        time.sleep(LATE_S)  # the delay
    else:
        ctx.store.set(key, "")
    x = ctx.array(ctx.rank + 1)
    assert group.all_reduce(x, async_op=True).wait(LIMIT_S)
    assert x.numpy().tolist() == [3]


@case
def nobody_comes_to_the_first_collective(ctx):
    """The operation's timeout must hold wherever NCCL waits."""
    group = ctx.open()
    group.connect()
    group.timeout = SHORT_S
    ctx.wait_for_all()
    if not ctx.is_faulty:
        since = time.monotonic()
        error = raised_by(lambda: group.all_reduce(ctx.array(1), async_op=True).wait(LIMIT_S))
        seconds = time.monotonic() - since
        check_error(error, dldist.DistTimeoutError)
        assert seconds < SHORT_S + SOON_S + under_load(SLACK_S), (seconds, str(error))
    wait_until(lambda: group.error is not None, "the timeout")
    group.close()


@case
def hung_on_two_channels(ctx):
    """A kernel of the pair's communicator and a kernel of all ranks' communicator wait for a rank
    that makes no call; both must be aborted."""
    group = ctx.open()
    x = ctx.array(1)
    for source in range(2):  # the first message in a direction would wait in its call
        group.send(x, 1 - source) if ctx.rank == source else group.recv(x, source)
    group.all_reduce(x)
    group.barrier()
    group.timeout = SHORT_S
    ctx.wait_for_all()
    if not ctx.is_faulty:
        check_hung(ctx, lambda x: group.irecv(x, 1), lambda x: group.all_reduce(x, async_op=True))
    wait_until(lambda: group.error is not None, "the other rank's timeout")
    group.close()


@case
def hung_in_two_groups(ctx):
    """Same as hung_on_two_channels, with communicators of two groups."""
    groups = [ctx.open(name=f"/{number}") for number in range(2)]
    for group in groups:
        group.all_reduce(ctx.array(1))
        group.barrier()
        group.timeout = SHORT_S
    ctx.wait_for_all()
    if not ctx.is_faulty:
        check_hung(ctx, *(functools.partial(group.all_reduce, async_op=True) for group in groups))
    for group in groups:
        wait_until(lambda: group.error is not None, "the other rank's timeout")
        group.close()


@case
def one_rank_aborts(ctx):
    """Abort while a kernel waits for the aborting rank."""
    group = ctx.open_connected()
    arrays = [ctx.array(1) for _ in range(2)]
    works = [] if ctx.is_faulty else [group.all_reduce(array, async_op=True) for array in arrays]
    ctx.wait_for_all()
    since = time.monotonic()
    if ctx.is_faulty:
        group.abort("enough of it")
    else:
        for work in works:
            check_error(raised_by(lambda: work.wait(LIMIT_S)), dldist.DistAbortedError, "enough of it")
        assert time.monotonic() - since < SOON_S + under_load(SLACK_S)
    group.close()


# ---- separate processes


def killed(channel, port, rank, size):
    """Rank 1 is killed. Rank 0, whose kernel waits for it, must fail at its timeout and then work
    alone as a new group."""
    ctx = Rank(port, rank, size, None)
    ctx.name = "killed"
    group = ctx.open_connected()
    group.timeout = SHORT_S
    ctx.wait_for_all()
    if ctx.is_faulty:
        channel.send("ready")
        signal.pause()
    channel.recv()
    since = time.monotonic()
    error = raised_by(lambda: group.all_reduce(ctx.array(1), async_op=True).wait(LIMIT_S))
    check_error(error, dldist.DistError)  # NCCL may detect it before the timeout
    assert time.monotonic() - since < SHORT_S + SOON_S + under_load(SLACK_S)
    group.close()
    with nccl.NcclGroup(None, 0, 1, device=DEVICE) as alone:
        x = ctx.array(5)
        alone.all_reduce(x)
        assert x.numpy().tolist() == [5]
