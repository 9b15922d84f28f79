"""Workers of the ranks of test_nccl_shutdown.py, over the stubs of tests/stubs: groups that end
while operations are pending.

Without pytest, so that the children start faster.
"""

import datetime
import itertools
import os
import threading
import time

import procs

LIMIT_S = 20.0
gates = itertools.count(200)


def end(channel, name, version, environment, port, rank, size):
    """Run the named function below on every rank, and send its reply."""
    os.environ.update(environment)
    import dldist as dist
    import nccl_stubs

    stubs = nccl_stubs.build(version)
    return globals()[name](Rank(dist, stubs, port, rank, size))


class Rank:
    def __init__(self, dist, stubs, port, rank, size):
        self.dist, self.stubs, self.rank, self.size = dist, stubs, rank, size
        self.store = dist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)

    def init(self):
        timeout = datetime.timedelta(seconds=LIMIT_S)
        self.dist.init_process_group("nccl", store=self.store, rank=self.rank, world_size=self.size, timeout=timeout, device_id=self.rank)

    def init_with_a_short_timeout(self):
        """Initialise with a short timeout for operations, but not for making the communicator."""
        self.init()
        self.dist.set_timeout(1.0)

    def open(self, **options):
        from dldist import nccl

        return nccl.NcclGroup(self.store, self.rank, self.size, device=self.rank, **options)

    def array(self, value, device=None):
        import nccl_stubs
        import numpy

        return nccl_stubs.CudaArray(self.stubs, numpy.full(4, value, "float32"), device=self.rank if device is None else device)

    def block_stream(self, x):
        """Block the stream of x until the returned gate opens; the stream then writes 5.0 to x."""
        gate = next(gates)
        with self.stubs.cuda.on_device(x.device):
            self.stubs.cuda.gate(x.stream, gate)
        x.slow_write([5.0] * 4, 0)
        return gate

    def reduce_after_a_gate(self, all_reduce):
        """Start an all_reduce behind a blocked stream; return its tensor and the gate after the
        call has returned."""
        from dldist import nccl

        x = self.array(1.0)
        gate = self.block_stream(x)
        with nccl.stream(x.stream):
            all_reduce(x)
        return x, gate

    def open_gate_when(self, gate, condition):
        def run():
            while not condition():
                time.sleep(0.01)
            self.stubs.cuda.open_gate(gate)

        threading.Thread(target=run, daemon=True).start()


def raised_by(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def destroy_after_long_work(ctx):
    """destroy_process_group() must wait over ten seconds, up to the operation's own timeout."""
    ctx.init()
    x, gate = ctx.reduce_after_a_gate(ctx.dist.all_reduce)
    begun = time.monotonic()
    ctx.open_gate_when(gate, lambda: time.monotonic() > begun + 10.5)
    ctx.dist.destroy_process_group()
    return x.numpy().tolist()


def destroy_during_a_timeout(ctx):
    ctx.init_with_a_short_timeout()
    x, gate = ctx.reduce_after_a_gate(ctx.dist.all_reduce)
    error = raised_by(ctx.dist.destroy_process_group)
    ctx.stubs.cuda.open_gate(gate)
    return error


def with_block_during_a_timeout(ctx):
    def run():
        with ctx.open(timeout=1.0, init_timeout=LIMIT_S) as group:
            gates.append(ctx.reduce_after_a_gate(group.all_reduce)[1])

    gates = []
    error = raised_by(run)
    ctx.stubs.cuda.open_gate(gates[0])
    return error


def destroy_after_a_timeout(ctx):
    """The timeout was not reported to any caller before, so the end must raise it."""
    ctx.init_with_a_short_timeout()
    x, gate = ctx.reduce_after_a_gate(ctx.dist.all_reduce)
    while ctx.stubs.nccl.calls("ncclCommAbort") == 0:
        time.sleep(0.01)
    error = raised_by(ctx.dist.destroy_process_group)
    ctx.stubs.cuda.open_gate(gate)
    return error


def destroy_after_a_reported_error(ctx):
    """wait() has already raised the error, so the end must not raise it again."""
    ctx.init_with_a_short_timeout()
    x = ctx.array(1.0)
    gate = ctx.block_stream(x)
    work = ctx.dist.all_reduce(x, async_op=True)
    assert "timed out after 1 s" in raised_by(lambda: work.wait(datetime.timedelta(seconds=LIMIT_S)))
    error = raised_by(ctx.dist.destroy_process_group)
    ctx.stubs.cuda.open_gate(gate)
    return error


def close_with_a_limit(ctx):
    group = ctx.open()
    x, gate = ctx.reduce_after_a_gate(group.all_reduce)
    error = raised_by(lambda: group.close(0.5))
    ctx.stubs.cuda.open_gate(gate)
    return error


def close_after_a_graph(ctx):
    """NCCL keeps communicators that CUDA graphs refer to, so closing one takes as long as the
    graph."""
    group = ctx.open()
    x = ctx.array(1.0)
    group.all_reduce(x)
    x.synchronize()
    ctx.stubs.nccl.hang("ncclCommFinalize")
    error = raised_by(lambda: group.close(0.5))
    ctx.stubs.nccl.release()
    return error


def end_after_a_live_graph(ctx):
    """End groups with close() and destroy_process_group() concurrently, because both take long.

    Return for each the error raised and the seconds since the operations ended.
    """
    from dldist import nccl
    from dldist._backends import registry

    ctx.init()
    groups = [ctx.open(name="mine"), registry._world.default_pg._backend_of_device("cuda").group]
    held = [captured(ctx, group) for group in groups]
    arrays = [ctx.array(1.0) for _ in groups]
    gate = ctx.block_stream(arrays[0])
    arrays[1].slow_write([5.0] * 4, 0)
    with nccl.stream(arrays[0].stream):
        for group, x in zip(groups, arrays):
            group.all_reduce(x)
    opened = []

    def open_gate():
        time.sleep(1.0)
        opened.append(time.monotonic())
        ctx.stubs.cuda.open_gate(gate)

    results = [None, None]

    def end(number, call):
        error = raised_by(call)
        results[number] = error, time.monotonic() - opened[0]

    threads = [
        threading.Thread(target=open_gate),
        threading.Thread(target=end, args=(0, groups[0].close)),
        threading.Thread(target=end, args=(1, ctx.dist.destroy_process_group)),
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(1.5 * LIMIT_S)
    for _, graph in held:
        graph.destroy()
    return results, [x.numpy().tolist() for x in arrays]


def captured(ctx, group):
    """Return a CUDA graph with an all_reduce of the group, and its tensor."""
    from cuda_driver import Graph
    from dldist import nccl

    x = ctx.array(1.0)
    group.all_reduce(x)
    stream = ctx.stubs.cuda.make_stream(ctx.rank)
    with ctx.stubs.cuda.on_device(ctx.rank), nccl.stream(stream), Graph(ctx.stubs.cuda, stream) as graph:
        group.all_reduce(x)
    return x, graph


def shrink_after_work(ctx):
    """The old group must end cleanly."""
    ctx.init()
    x, gate = ctx.reduce_after_a_gate(ctx.dist.all_reduce)
    if ctx.rank == 1:
        ctx.store.wait(["shrunk"])
        ctx.stubs.cuda.open_gate(gate)
        ctx.dist.destroy_process_group()
        return x.numpy().tolist()
    finalized = ctx.stubs.nccl.calls("ncclCommShrink")
    opened = threading.Event()

    def run():
        while ctx.stubs.nccl.calls("ncclCommShrink") == finalized:
            time.sleep(0.01)
        ctx.store.set("shrunk", b"")
        opened.set()
        ctx.stubs.cuda.open_gate(gate)

    threading.Thread(target=run, daemon=True).start()
    ctx.dist.shrink_group([1])
    assert opened.is_set()
    values = x.numpy().tolist()
    ctx.dist.destroy_process_group()
    return values


def leave(ctx):
    """Exit the process. The reply is its stderr and the time when the exit began."""
    ctx.init()
    ctx.reduce_after_a_gate(ctx.dist.all_reduce)
    return time.monotonic()


def close_comms(ctx):
    """close() of NcclComms, for one process, must also wait."""
    from dldist import nccl

    comms = nccl.NcclComms([0, 1])
    arrays = [ctx.array(1.0, device=0), ctx.array(1.0, device=1)]
    opened = [ctx.block_stream(x) for x in arrays]
    comms.all_reduce(arrays, streams=[x.stream for x in arrays])
    closing = threading.Event()

    def run():
        closing.wait()
        time.sleep(0.2)  # NCCL is most likely waiting by now; if not, the test still passes
        for gate in opened:
            ctx.stubs.cuda.open_gate(gate)

    threading.Thread(target=run, daemon=True).start()
    closing.set()
    comms.close()
    return [x.numpy().tolist() for x in arrays]


def end_many(ctx, end, n=50):
    """End `n` groups with a communicator each that takes half a second to end.

    Return the error, the seconds, and the number of threads used.
    """
    ctx.init()
    parts = [ctx.dist.new_group(list(range(ctx.size)), group_desc=f"part {i}") for i in range(n - 1)]
    for part in (None, *parts):
        ctx.dist.all_reduce(ctx.array(1.0), group=part)
    ctx.dist.barrier()
    ctx.stubs.nccl.slow_ends(500)
    if end == "fail":
        for _ in range(2):
            ctx.stubs.nccl.fail("ncclCommDestroy", result=3, text="it does not end")
    before, most, ended = procs.thread_count(), [0], threading.Event()

    def count():
        while not ended.wait(0.005):
            most[0] = max(most[0], procs.thread_count())

    counter = threading.Thread(target=count)
    counter.start()
    error, began = None, time.monotonic()
    try:
        ctx.dist.abort() if end == "abort" else ctx.dist.destroy_process_group()
    except ctx.dist.DistError as raised:
        error = "\n".join([str(raised), *raised.__notes__])
    seconds = time.monotonic() - began
    ended.set()
    counter.join()
    ctx.stubs.nccl.slow_ends(0)
    return error, seconds, most[0] - before, ctx.stubs.nccl.live("comm")


def destroy_many(ctx):
    return end_many(ctx, "destroy")


def abort_many(ctx):
    return end_many(ctx, "abort")


def destroy_some_that_fail(ctx):
    return end_many(ctx, "fail", 8)
