"""Workers of the ranks of test_nccl_faults.py and test_nccl_abort.py, over the stubs of
tests/stubs.

Without pytest, so that the children start faster.
"""

import gc
import os
import signal
import threading
import time

import dldist
from dldist import _core, flight_recorder

LIMIT_S = 20.0
SOON_S = 1.0
"""The time in which other ranks get a rank's failure (docs/watchdog.md)."""
SLACK_S = 1.0
"""Extra time for a busy machine."""
LEAK_KINDS = ("comm", "stream", "event")


class Rank:
    """One rank of a team: its position, its control of the stubs, and a group for each case."""

    def __init__(self, port, rank, size, version):
        import nccl_stubs

        self.begin(port, rank, size, nccl_stubs.build(version), rank)

    def begin(self, port, rank, size, stubs, device):
        self.rank, self.size = rank, size
        self.device = device
        self.stubs = stubs
        self.store = dldist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
        self.name = ""
        self.nwaits = 0

    @property
    def is_faulty(self):
        return self.rank == 1

    def open(self, timeout=LIMIT_S, name="", **options):
        store = dldist.PrefixStore(self.name, self.store)
        return _core.NcclGroup(store, self.rank, self.size, timeout=timeout, device=self.device, name=self.name + name, **options)

    def array(self, *values):
        import numpy

        return self.stubs.Array(self.stubs, numpy.asarray(values or (1.0,), dtype="float32"), device=self.device)

    def wait_for_all(self):
        """Wait until all ranks have called this."""
        self.nwaits += 1
        key = f"meet/{self.name}/{self.nwaits}"
        if self.store.add(key, 1) == self.size:
            self.store.set(key + "/go", "")
        self.store.wait([key + "/go"], LIMIT_S)

    def live(self):
        gc.collect()
        return {kind: self.stubs.nccl.live(kind) if kind == "comm" else self.stubs.cuda.live(kind) for kind in LEAK_KINDS}

    def end_faults(self):
        self.stubs.nccl.release()
        self.stubs.nccl.reset()
        self.stubs.cuda.release()
        self.stubs.cuda.reset()


def member(channel, port, rank, size, version):
    """Run cases of this module until the parent sends None. After each, the stubs are reset and a
    new group must work."""
    ctx = Rank(port, rank, size, version)
    works_again(ctx, "first")
    channel.send("ready")
    while True:
        name = channel.recv(120)
        if name is None:
            return "closed"
        ctx.name, ctx.nwaits = name, 0
        before = ctx.live()
        reply = None
        try:
            reply = globals()[name](ctx)
            ctx.wait_for_all()
            ctx.end_faults()
            works_again(ctx, name)
            wait_until(lambda: ctx.live() == before, f"nothing is left: {ctx.live()}, before it was {before}")
            assert ctx.stubs.nccl.bad_uses() == 0 and ctx.stubs.cuda.bad_uses() == 0
        except BaseException as error:
            import traceback

            error.__traceback__ and traceback.print_exc()
            channel.send(("error", "".join(traceback.format_exception(error))))
        else:
            channel.send(("done", reply))


def works_again(ctx, name):
    """Check that a new group on the same device works."""
    ctx.name = f"{name}/again"
    with ctx.open() as group:
        x = ctx.array(ctx.rank)
        group.all_reduce(x)
        group.barrier()
        assert x.numpy().tolist() == [sum(range(ctx.size))]


def wait_until(condition, description, seconds=LIMIT_S):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, description
        time.sleep(0.002)


def start_works(ctx, group, count=3):
    """Start all_reduces with callbacks on their futures; return works and callback arguments."""
    works, called = [], []
    arrays = [ctx.array(1) for _ in range(count)]  # before anything blocks the device
    for number, array in enumerate(arrays):
        work = group.all_reduce(array, async_op=True)
        work.get_future().add_done_callback(lambda future, number=number: called.append((number, future)))
        works.append(work)
    return works, called


def raised_by(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def check_error(error, kind, *texts):
    assert isinstance(error, kind) and isinstance(error, dldist.DistError), repr(error)
    for text in texts:
        assert text in str(error), (text, str(error))


def check_ends(ctx, group, works, called, since, within, kind, *texts):
    """Check that pending works end in time, by every interface, and later calls immediately."""
    errors = [raised_by(lambda work=work: work.wait(LIMIT_S)) for work in works]
    seconds = time.monotonic() - since
    for error in errors:
        check_error(error, kind, "all_reduce #", *texts)
    assert seconds < within + SLACK_S, (seconds, str(errors[0]))
    wait_until(lambda: len(called) == len(works), "callbacks of futures")
    for _, future in called:
        check_error(raised_by(future.value), kind, *texts)
    for work in works:
        assert work.is_completed() and not work.is_success()
        check_error(work.exception(), kind, *texts)
    begun = time.monotonic()
    check_error(raised_by(lambda: group.all_reduce(ctx.array(1))), kind, "has failed", *texts)
    check_error(raised_by(group.barrier), kind, *texts)
    assert time.monotonic() - begun < SLACK_S
    return seconds


def kind_of_error(group):
    from dldist._backends.nccl import NCCLOptions, ProcessGroupNCCL

    return ProcessGroupNCCL._from_group(group, NCCLOptions()).get_error().name


def check_cause(ctx, group, *texts):
    """Check the group's error: NCCL's on the rank where it occurred, and that rank's reason on the
    other ranks."""
    check_error(group.error, dldist.DistBackendError, *texts)
    if ctx.is_faulty:
        assert group.error.rank is None and kind_of_error(group) == "COMM_ERROR"
    else:
        check_error(group.error, dldist.DistBackendError, "rank 1 failed: ")
        assert group.error.rank == 1 and kind_of_error(group) == "REMOTE_ERROR"


REASON = ("ncclRemoteError (6)", "remote process exited or there was a network error", "no route to host")


# ---- errors of NCCL


def error_during_collectives(ctx):
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    if ctx.is_faulty:
        ctx.stubs.nccl.hang_kernel(1)
    works, called = start_works(ctx, group)
    ctx.wait_for_all()
    since = time.monotonic()
    if ctx.is_faulty:
        ctx.stubs.nccl.async_error(1, 6, text="no route to host")
    seconds = check_ends(ctx, group, works, called, since, SOON_S, dldist.DistBackendError, *REASON)
    check_cause(ctx, group, *REASON)
    group.close()
    return seconds


def error_while_idle(ctx):
    """The error must be detected within a second, and reach the other ranks within another."""
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    group.barrier()
    ctx.wait_for_all()
    since = time.monotonic()
    if ctx.is_faulty:
        ctx.stubs.nccl.async_error(1, 6, text="no route to host")
    wait_until(lambda: group.error is not None, "the error")
    assert time.monotonic() - since < 1 + SOON_S + SLACK_S
    check_error(raised_by(lambda: group.all_reduce(ctx.array(1))), dldist.DistBackendError, *REASON)
    check_cause(ctx, group, *REASON)
    group.close()


def launch_fails(ctx):
    group = ctx.open(config={"blocking": 0})
    group.all_reduce(ctx.array(1))
    ctx.wait_for_all()
    if ctx.is_faulty:
        ctx.stubs.nccl.fail("(launch)", result=6, text="no route to host")
    since = time.monotonic()
    error = raised_by(lambda: group.all_reduce(ctx.array(1), async_op=True).wait(LIMIT_S))
    assert time.monotonic() - since < SOON_S + SLACK_S
    check_error(error, dldist.DistBackendError, *REASON)
    check_cause(ctx, group, *REASON)
    group.close()


def call_fails(ctx):
    """NCCL rejects a call on one rank after other ranks have enqueued theirs."""
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    works, called = ([], []) if ctx.is_faulty else start_works(ctx, group, 2)
    ctx.wait_for_all()
    if ctx.is_faulty:
        ctx.stubs.nccl.fail("ncclAllReduce", result=6, text="no route to host")
        check_error(raised_by(lambda: group.all_reduce(ctx.array(1))), dldist.DistBackendError, *REASON)
    else:
        since = time.monotonic()
        check_ends(ctx, group, works, called, since, SOON_S, dldist.DistBackendError, *REASON)
    check_cause(ctx, group, *REASON)
    group.close()


# ---- making communicators


def check_init(ctx, group, *texts):
    since = time.monotonic()
    error = raised_by(lambda: group.all_reduce(ctx.array(1)))
    seconds = time.monotonic() - since
    assert seconds < SOON_S + SLACK_S, (seconds, str(error))
    check_error(error, dldist.DistBackendError, *texts)
    check_error(raised_by(group.barrier), dldist.DistBackendError, *texts)
    group.close()
    return str(error)


def init_fails(ctx):
    group = ctx.open()
    ctx.wait_for_all()
    if ctx.is_faulty:
        ctx.stubs.nccl.fail("ncclCommInitRankConfig", result=6, text="no route to host")
    return check_init(ctx, group, *REASON)


def init_fails_later(ctx):
    """A nonblocking communicator fails in the background."""
    group = ctx.open(config={"blocking": 0})
    ctx.wait_for_all()
    if ctx.is_faulty:
        ctx.stubs.nccl.fail("(init)", result=6, text="no route to host")
    return check_init(ctx, group, *REASON)


def unique_id_fails(ctx):
    group = ctx.open()
    ctx.wait_for_all()
    if ctx.rank == 0:
        ctx.stubs.nccl.fail("ncclGetUniqueId", result=6, text="no route to host")
    return check_init(ctx, group, *REASON)


def a_rank_does_not_come(ctx):
    group = ctx.open(timeout=0.5)
    if not ctx.is_faulty:
        since = time.monotonic()
        error = raised_by(lambda: group.all_reduce(ctx.array(1)))
        assert time.monotonic() - since < 1.5 + SOON_S + SLACK_S
        check_error(error, dldist.DistTimeoutError, "creating a communicator")
    group.close()


# ---- timeouts


def hung_kernel(ctx):
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    group.timeout = 0.5
    ctx.wait_for_all()
    if ctx.is_faulty:
        ctx.stubs.nccl.hang_kernel(1)
    since = time.monotonic()
    works, called = start_works(ctx, group)
    check_ends(ctx, group, works, called, since, 0.5 + SOON_S, dldist.DistTimeoutError, "timed out after 0.5 s")
    assert kind_of_error(group) in ("TIMEOUT", "REMOTE_ERROR")
    group.close()


def rank_without_a_call(ctx):
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    group.timeout = 0.7
    ctx.wait_for_all()
    since = time.monotonic()
    if not ctx.is_faulty:
        works, called = start_works(ctx, group, 2)
        check_ends(ctx, group, works, called, since, 0.7 + SOON_S, dldist.DistTimeoutError, "timed out after 0.7 s")
        assert kind_of_error(group) in ("TIMEOUT", "REMOTE_ERROR")
    wait_until(lambda: group.error is not None, "the timeout of other ranks")
    assert time.monotonic() - since < 0.7 + SOON_S + SLACK_S
    if ctx.is_faulty:
        check_error(group.error, dldist.DistTimeoutError, "failed: all_reduce #", "timed out after 0.7 s")
        assert kind_of_error(group) == "REMOTE_ERROR"
    group.close()


def slow_kernels(ctx):
    """Slow kernels must not cause an error."""
    group = ctx.open()
    ctx.stubs.nccl.slow_kernels(-1, 150)
    works, called = start_works(ctx, group)
    for work in works:
        assert work.wait(LIMIT_S)
    assert group.error is None and kind_of_error(group) == "SUCCESS"
    group.close()


# ---- aborts, and calls that hang


def one_rank_aborts(ctx):
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    if ctx.is_faulty:
        ctx.stubs.nccl.hang_kernel(1)
    works, called = start_works(ctx, group)
    ctx.wait_for_all()
    since = time.monotonic()
    if ctx.is_faulty:
        group.abort("enough of it")
        assert time.monotonic() - since < 2
    check_ends(ctx, group, works, called, since, SOON_S, dldist.DistAbortedError, "enough of it")
    group.close()


def an_abort_hangs(ctx):
    """Works must end even if NCCL's abort hangs, and close() must wait at most a second."""
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    if ctx.is_faulty:
        ctx.stubs.nccl.hang_kernel(1)
        ctx.stubs.nccl.hang("ncclCommAbort")
    works, called = start_works(ctx, group)
    ctx.wait_for_all()
    since = time.monotonic()
    if ctx.is_faulty:
        ctx.stubs.nccl.async_error(1, 6, text="no route to host")
    check_ends(ctx, group, works, called, since, SOON_S, dldist.DistBackendError, *REASON)
    since = time.monotonic()
    group.close()
    assert time.monotonic() - since < 1 + SLACK_S
    if ctx.is_faulty:
        wait_until(lambda: ctx.stubs.nccl.hanging() == 1, "the abort that hangs")
        ctx.stubs.nccl.release()


def open_family(ctx):
    """Open a group, a part of it with all ranks, and a part of that; close one more of each."""
    group = ctx.open()
    everybody = list(range(ctx.size))
    part, closed = group.split(everybody, "part"), group.split(everybody, "closed")
    grandchild, orphan = part.split(everybody, "grandchild"), closed.split(everybody, "orphan")
    for each in (group, part, closed, grandchild, orphan):
        each.all_reduce(ctx.array(1))
        each.barrier()
    closed.close()
    return group, part, grandchild, orphan


def an_abort_reaches_split_groups(ctx):
    """An abort must end pending works and later calls in groups split from the aborted one, with
    its reason."""
    group, *parts = open_family(ctx)
    if ctx.is_faulty:
        ctx.wait_for_all()  # this rank never makes the call
    else:
        under_way = [start_works(ctx, part, 1) for part in parts]
        ctx.wait_for_all()
    since = time.monotonic()
    group.abort("enough of it")
    if ctx.is_faulty:
        under_way = [([], [])] * len(parts)
    texts = ("the communicator that it was split from was aborted", 'group "an_abort_reaches_split_groups"', "enough of it")
    for part, (works, called) in zip(parts, under_way, strict=True):
        wait_until(lambda part=part: part.error is not None, "the abort")
        check_ends(ctx, part, works, called, since, SOON_S, dldist.DistAbortedError, *texts)
        part.close()
    group.close()


def abort_of_a_split_keeps_the_parent(ctx):
    """An abort must not reach the parent, nor dropping a group without close() affect its parts."""
    group, part, grandchild, orphan = open_family(ctx)
    part.abort("enough of it")
    check_error(raised_by(lambda: grandchild.all_reduce(ctx.array(1))), dldist.DistAbortedError, "enough of it")
    for _ in range(2):
        for each in filter(None, (group, orphan)):
            x = ctx.array(1)
            each.all_reduce(x)
            assert x.numpy().tolist() == [ctx.size]
        ctx.wait_for_all()
        group = None
        gc.collect()
    for each in (part, grandchild, orphan):
        each.close()


def memory_runs_out(ctx):
    """Failed allocations must be errors of the call on all ranks, and the group stay usable."""
    group = ctx.open()
    x = ctx.array(*[1.0] * 1000)
    parts = [ctx.array(*[0.0] * 1000) for _ in range(ctx.size)]
    group.all_reduce(x)
    group.barrier()
    ctx.stubs.cuda.limit_memory(0)
    ctx.stubs.nccl.fail("ncclMemAlloc", result=1, text="out of memory")
    check_error(raised_by(lambda: group.empty(1000)), (dldist.DistBackendError, MemoryError), "ncclMemAlloc", "out of memory")
    error = raised_by(lambda: group.all_gather(parts, x))  # noqa: F821  deleted below
    assert isinstance(error, MemoryError | dldist.DistError) and " bytes" in str(error), repr(error)
    ctx.stubs.cuda.limit_memory(-1)
    ctx.wait_for_all()
    if group.error is None:
        group.all_gather(parts, x)
    del parts, x
    group.close()
    return str(error)


# ---- separate processes


def killed(channel, port, rank, size, version):
    """The last rank is killed during calls; the other ranks must get an error in time."""
    ctx = Rank(port, rank, size, version)
    ctx.name = "killed"
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    group.timeout = 1.0
    ctx.wait_for_all()
    if rank == size - 1:
        channel.send("ready")
        signal.pause()
    since = time.monotonic()
    works, called = start_works(ctx, group)
    check_ends(ctx, group, works, called, since, 1.0 + SOON_S, dldist.DistTimeoutError, "timed out after 1 s")
    channel.send(report_with("never called"))
    group.close()
    return None


def report_with(text):
    wait_until(lambda: text in flight_recorder.report(), f"{text!r} in the report")
    return flight_recorder.report()


def mismatched(channel, port, rank, size, version):
    ctx = Rank(port, rank, size, version)
    ctx.name = "mismatched"
    group = ctx.open()
    error = raised_by(lambda: group.all_reduce(ctx.array(1)))
    channel.send((type(error).__name__, str(error)))
    group.close()
    return None


def torn_down(channel, port, rank, size, version):
    """The error handling mode ends the processes."""
    ctx = Rank(port, rank, size, version)
    ctx.name = "torn down"
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    ctx.wait_for_all()
    channel.send("ready")
    if ctx.is_faulty:
        ctx.stubs.nccl.async_error(1, 6, text="no route to host")
    time.sleep(10 * LIMIT_S)  # the process is ended during this


def watchdog_hangs(channel, port, rank, size, version):
    """The watchdog of rank 1 hangs in cuEventQuery."""
    ctx = Rank(port, rank, size, version)
    ctx.name = "watchdog hangs"
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    ctx.wait_for_all()
    if ctx.is_faulty:
        ctx.stubs.nccl.hang_kernel(1)
    works, called = start_works(ctx, group)
    ctx.wait_for_all()
    since = time.monotonic()
    if ctx.is_faulty:
        ctx.stubs.cuda.hang("cuEventQuery")
    # querying the works would query the device
    wait_until(lambda: len(called) == len(works), "callbacks of futures")
    seconds = time.monotonic() - since
    for _, future in called:
        check_error(raised_by(future.value), dldist.DistBackendError, "NCCL groups has made no progress for", "in cuEventQuery")
    assert seconds < 1 + SOON_S + SLACK_S, seconds
    if ctx.is_faulty:
        assert "has made no progress" in report_with("has made no progress")
        ctx.stubs.cuda.release()
    ctx.wait_for_all()
    group.close()
    works_again(ctx, "watchdog hangs")
    channel.send(seconds)
    return None


def driver_is_unloaded(channel, port, rank, size, version):
    """The driver shuts down before the process exits, with works pending."""
    ctx = Rank(port, rank, size, version)
    ctx.name = "driver goes"
    group = ctx.open()
    group.all_reduce(ctx.array(1))
    ctx.wait_for_all()
    ctx.stubs.nccl.hang_kernel(-1)
    work = group.all_reduce(ctx.array(1), async_op=True)
    ctx.wait_for_all()
    ctx.stubs.cuda.shut_down()
    wait_until(work.is_completed, "the work")
    channel.send(os.getpid())
    return None


def wait_times_out(channel, port, rank, size, version):
    """wait(timeout) must time out without ending the operation; with blocking waits the group's own
    timeout must end it."""
    ctx = Rank(port, rank, size, version)
    ctx.name = "wait times out"
    from dldist import nccl
    from dldist.nccl import library

    group_blocks = library.group_settings()["is_blocking_wait"]
    group = ctx.open(is_blocking_wait=group_blocks)
    group.all_reduce(ctx.array(1))
    ctx.wait_for_all()
    ctx.stubs.nccl.slow_kernels(-1, 2500)
    work = group.all_reduce(ctx.array(1), async_op=True)
    error = raised_by(lambda: work.wait(0.1))
    check_error(error, dldist.DistTimeoutError, "all_reduce #2", "has not ended after 0.1")
    assert work.wait(LIMIT_S) and group.error is None
    ctx.stubs.nccl.slow_kernels(-1, 0)
    ctx.wait_for_all()
    if ctx.is_faulty:
        ctx.stubs.nccl.hang_kernel(1)
    group.timeout = 1.5
    x = ctx.array(1)
    with nccl.stream(ctx.stubs.cuda.make_stream(ctx.device)):
        work = group.all_reduce(x, async_op=True)
        if not group_blocks:
            assert work.wait() is True
            assert not work.is_completed()
    if group_blocks:
        check_error(raised_by(work.wait), dldist.DistTimeoutError, "timed out after 1.5 s")
    else:
        check_error(raised_by(lambda: work.wait(LIMIT_S)), dldist.DistTimeoutError, "timed out after 1.5 s")
    group.close()
    return None


# ---- aborts from another thread (test_nccl_abort.py), during a call that only rank 0 makes


def abort_during(ctx, call, is_under_way, warm=True, **options):
    """An abort must end the call in two seconds with DistAbortedError and reach the other ranks."""
    group = ctx.open(**options)
    if warm:
        group.all_reduce(ctx.array(1))
    ctx.wait_for_all()
    if ctx.rank > 0:
        wait_until(lambda: group.error is not None, "rank 0's abort")
        check_error(group.error, dldist.DistAbortedError, "rank 0 failed: ", "from another thread")
        group.close()
        return
    raised = []
    thread = threading.Thread(target=lambda: raised.append(raised_by(lambda: call(group))))
    before = is_under_way(group)
    thread.start()
    wait_until(lambda: is_under_way(group) != before, "the call is under way")
    since = time.monotonic()
    group.abort("from another thread")
    thread.join(LIMIT_S)
    seconds = time.monotonic() - since
    assert raised and seconds < 2, (raised, seconds)
    check_error(raised[0], dldist.DistAbortedError, "from another thread")
    check_error(raised_by(group.barrier), dldist.DistAbortedError, "from another thread")
    ctx.stubs.nccl.release()
    group.close()


def launched(ctx, *functions):
    """Return a function that returns the call counts of NCCL functions, to compare."""
    return lambda group: [ctx.stubs.nccl.calls(name) for name in functions]


def four_parts(ctx):
    return [ctx.array(0) for _ in range(ctx.size)]


COLLECTIVES = {
    "all_reduce": lambda ctx, group: group.all_reduce(ctx.array(1)),
    "broadcast": lambda ctx, group: group.broadcast(ctx.array(1), 1),
    "reduce": lambda ctx, group: group.reduce(ctx.array(1), 0),
    "all_gather": lambda ctx, group: group.all_gather(four_parts(ctx), ctx.array(1)),
    "gather": lambda ctx, group: group.gather(ctx.array(1), four_parts(ctx), 0),
    "scatter": lambda ctx, group: group.scatter(ctx.array(0), None, 1),
    "reduce_scatter": lambda ctx, group: group.reduce_scatter(ctx.array(0), four_parts(ctx)),
    "all_to_all": lambda ctx, group: group.all_to_all(four_parts(ctx), four_parts(ctx)),
    "barrier": lambda ctx, group: group.barrier(),
    # more than can be sent without a receiver
    "send": lambda ctx, group: group.send(ctx.array(*[1.0] * (1 << 21)), 1),
    "recv": lambda ctx, group: group.recv(ctx.array(1), 1),
    "wait": lambda ctx, group: group.all_reduce(ctx.array(1), async_op=True).wait(),
    "wait with a timeout": lambda ctx, group: group.all_reduce(ctx.array(1), async_op=True).wait(LIMIT_S),
}
FUNCTIONS = ("ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclAllGather", "ncclReduceScatter", "ncclSend", "ncclRecv")
FUNCTIONS += ("ncclGather", "ncclScatter", "ncclAlltoAll", "ncclAlltoall")


def abort_collectives(ctx):
    for name, call in COLLECTIVES.items():
        ctx.name = f"abort/{name}"
        abort_during(ctx, lambda group, call=call: call(ctx, group), launched(ctx, *FUNCTIONS))


def abort_a_batch(ctx):
    def call(group):
        group.start_coalescing()
        group.all_reduce(ctx.array(1))
        group.all_reduce(ctx.array(2))
        group.end_coalescing(async_op=False)

    abort_during(ctx, call, launched(ctx, "ncclAllReduce"))


def abort_during_the_rendezvous(ctx):
    """No other rank joins."""
    abort_during(ctx, lambda group: group.all_reduce(ctx.array(1)), launched(ctx, "ncclGetUniqueId"), warm=False)


def abort_an_init(ctx):
    if ctx.rank == 0:
        ctx.stubs.nccl.hang("ncclCommInitRankConfig")
    group = ctx.open()
    raised = []
    thread = threading.Thread(target=lambda: raised.append(raised_by(lambda: group.all_reduce(ctx.array(1)))))
    thread.start()
    if ctx.rank == 0:
        wait_until(lambda: ctx.stubs.nccl.hanging() == 1, "the call that hangs")
        group.abort("from another thread")
    since = time.monotonic()
    thread.join(LIMIT_S)
    assert raised and time.monotonic() - since < 2 + LIMIT_S * (ctx.rank > 0), raised
    check_error(raised[0], dldist.DistAbortedError, "from another thread")
    if ctx.rank == 0:
        ctx.stubs.nccl.release()
    group.close()


def abort_a_nonblocking_init(ctx):
    group = ctx.open(config={"blocking": 0})
    if ctx.rank == 0:
        ctx.stubs.nccl.hang("(init)")
    raised = []
    thread = threading.Thread(target=lambda: raised.append(raised_by(lambda: group.all_reduce(ctx.array(1)))))
    thread.start()
    if ctx.rank == 0:
        wait_until(lambda: ctx.stubs.nccl.hanging() == 1, "the call that hangs")
        ctx.wait_for_all()
        group.abort("from another thread", timeout=0.1)
        ctx.stubs.nccl.release()
    else:
        ctx.wait_for_all()
    since = time.monotonic()
    thread.join(LIMIT_S)
    assert raised and time.monotonic() - since < SOON_S + SLACK_S, raised
    check_error(raised[0], dldist.DistAbortedError, "from another thread")
    group.close()


def abort_a_split(ctx):
    abort_during(ctx, lambda group: group.split(list(range(ctx.size))), launched(ctx, "ncclCommSplit"))


def abort_a_close(ctx):
    """Abort the close() of a group with a collective that does not end."""
    closing = threading.Event()

    def call(group):
        work = group.all_reduce(ctx.array(1), async_op=True)
        closing.set()
        group.close(LIMIT_S)
        work.wait(LIMIT_S)

    abort_during(ctx, call, lambda group: closing.is_set())
