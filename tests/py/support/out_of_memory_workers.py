"""Calls that run out of memory at every allocation; test_out_of_memory.py runs them in dedicated
processes.

A case is a generator of calls. Each call is repeated with a later allocation failing, until it
succeeds without reaching the failure. Return values of calls are dropped.
"""

import array
import contextlib
import functools
import gc
import importlib.machinery
import importlib.util
import os
import signal
import sys
import tempfile
import threading
import traceback
import weakref

import dldist
from dldist import _core

MOST = 3000  # an upper bound on the allocations of one call


def numbers(count=4):
    return array.array("d", range(count))


@contextlib.contextmanager
def group_of_one():
    group = dldist.Group(None, 0, 1, timeout=10.0)
    try:
        yield group
    finally:
        group.close()


def collectives():
    with group_of_one() as group:
        x, y, z = numbers(), numbers(), numbers()
        strided = memoryview(bytearray(64))[::2]
        yield lambda: group.all_reduce(x)
        yield lambda: group.all_gather([y], x)
        yield lambda: group.all_gather_single(y, x)
        yield lambda: group.all_gather_coalesced([[y, z]], [x, x])
        yield lambda: group.all_reduce_coalesced([x, y, z])
        yield lambda: group.reduce_scatter_single(y, x, dldist.ReduceOp("max"))
        yield lambda: group.all_to_all_single(y, x, [4], [4])
        yield lambda: group.all_to_all([strided], [strided])
        yield lambda: group.broadcast(memoryview(bytearray(64))[::3], 0)
        yield lambda: group.barrier()


def many_operands():
    with group_of_one() as group:
        tensors = [numbers() for _ in range(30)]
        tensors[3], tensors[20] = tensors[20], tensors[3]
        backwards = tensors[::-1]
        yield lambda: group.all_reduce_coalesced(backwards)
        yield lambda: group.all_gather_coalesced([tensors], tensors)


def refusals():
    with group_of_one() as group:
        x = numbers()
        yield refused(ValueError, lambda: group.all_gather([x, x], x))
        yield refused(ValueError, lambda: group.all_reduce_coalesced([x, x]))
        yield refused(TypeError, lambda: group.all_reduce("no tensor"))
        yield refused(TypeError, lambda: group.all_reduce(x, nothing=1))
        yield refused(TypeError, lambda: group.all_gather([x], array.array("i", [1])))
        yield refused(ValueError, lambda: group.broadcast(x, 7))
        yield refused(ValueError, lambda: group.send(x, 7))
        yield refused(ValueError, lambda: group.all_reduce(b"1234"))
        yield refused(ValueError, lambda: dldist.ReduceOp("unknown"))


def refused(kind, call):
    def run():
        try:
            call()
        except kind as error:
            str(error)
        else:
            raise AssertionError("not refused")

    run.is_refused = True
    return run


def works():
    with group_of_one() as group:
        x = numbers()
        callback_results = []

        def watched():
            work = group.all_reduce(x, async_op=True)
            work.get_future().add_done_callback(callback_results.append)
            work.wait()
            work.result()
            repr(work)
            callback_results.clear()

        yield lambda: group.all_reduce(x, async_op=True).wait()
        yield lambda: group.all_gather([numbers()], x, async_op=True).result()
        yield watched
        done = group.barrier(async_op=True)
        yield lambda: (done.is_completed(), done.exception(), done.result(), repr(done), done.op)


def messages():
    with group_of_one() as group:
        x, y = numbers(), numbers()

        def to_oneself():
            work = group.irecv(y, 0, 1)
            try:
                group.send(x, 0, 1)
            except MemoryError:
                group.send(x, 0, 1)
            finally:
                work.wait()

        yield to_oneself
        yield lambda: group.isend(x, 0, 2)
        yield lambda: group.recv(y, 0, 2)  # each call receives one of these messages
        for _ in range(MOST):
            group.isend(x, 0, 3)
        yield lambda: group.irecv(y, None, 3).source_rank()


def plans():
    with group_of_one() as group:
        x, y = numbers(), numbers()
        yield lambda: group.plan.all_reduce(x)
        plan = group.plan.all_gather([y], x)

        def run():
            plan.start()
            plan.wait()
            repr(plan)

        yield run


def arrays():
    with group_of_one() as group:
        yield lambda: group.empty((3, 4))
        yield lambda: group.empty(5, "int16")
        a = group.empty((2, 3), "float64")
        yield lambda: (repr(a), a.shape, a.dtype, memoryview(a))
        yield lambda: a.__dlpack__()
        yield lambda: _core._describe_tensor(a, True)


def groups():
    yield lambda: dldist.Group(None, 0, 1).close()
    with group_of_one() as group:
        yield lambda: group.split([0], "part").close()
        yield lambda: (repr(group), group.members, group.name, group.timeout)
        yield refused(ValueError, lambda: group.split([0, 0]))
        yield lambda: (group.suspend(), group.memory_stats(), group.resume())
        recorded = _core._add_recorded_group("oom", "of a test", 0, [0])

        def record():
            number = _core._begin_record(recorded, "send", True, 0, 10, [("float32", (2, 3))], [])
            _core._end_record(recorded, number, "lost")

        yield record
        yield lambda: _core._add_recorded_group("oom", "of a test", 0, [0])
        yield lambda: group.revoke("enough")


def blank_module():
    """Return an uninitialised copy of the extension."""
    loader = importlib.machinery.ExtensionFileLoader("dldist._core", _core.__file__)
    return importlib.util.module_from_spec(importlib.util.spec_from_loader("dldist._core", loader))


def in_new_module(use):
    """Return a call that repeats one-time initialisation, each time in a new copy of _core."""
    copies = []

    def prepare():
        copies[:] = [blank_module()]
        copies[0].__spec__.loader.exec_module(copies[0])

    def run():
        use(copies.pop())

    run.prepare = prepare
    return run


MONITOR = (1000, 1000, 600, 0, True, False, False, False, True, False, "/nowhere/dump_", "", False, False)


def one_time_initialisation():
    yield in_new_module(lambda core: core._recorder_capacity())
    yield in_new_module(lambda core: core._reset_recorder())
    yield in_new_module(lambda core: core._dump_recorder(False, True, True, False))
    yield in_new_module(lambda core: core._monitor_open(*MONITOR))
    yield in_new_module(lambda core: core._swap_stream(None))
    x, y = numbers(), numbers()
    yield in_new_module(lambda core: core._copy_tensor(x, y))
    _core._monitor_open(*MONITOR)  # unused address
    yield lambda: _core._monitor_report()
    unused = list(range(signal.SIGRTMIN, signal.SIGRTMAX))

    def set_signal():
        _core._monitor_on_signal(unused[-1], False)
        if len(unused) > 1:
            unused.pop()

    yield set_signal
    _core._monitor_stop(0)


def programs_of_xla():
    with group_of_one() as group:
        x = numbers()
        address, length = x.buffer_info()
        memory = (address, length * x.itemsize)
        plan = group.plan.all_reduce(x)
        yield lambda: _core._ffi_program(1, group, [memory], [memory], 0, [])
        yield lambda: _core._ffi_program(1, group, [memory], [memory], 0, [plan])
        yield lambda: _core._ffi_program(1, group, [memory], [], 0, [(True, memory, 0, 1), (False, memory, 0, 1, 2.0)])
        yield refused(TypeError, lambda: _core._ffi_program(1, group, [], [], 0, [(True, 3, 0, 1)]))


def windows():
    def make():  # a failure inside aborts the group
        with group_of_one() as group:
            _core.Window(group, numbers()).close()

    yield make
    with group_of_one() as group:
        a = group.empty(16, "float64")
        window = _core.Window(group, a, pad_size=64)
        x = numbers()
        yield lambda: window.put(x, 0)
        yield lambda: window.get(x, 0)
        yield lambda: window.put(x, 0, 2, async_op=True).wait()
        yield refused(ValueError, lambda: window.put(x, 3))
        window.close()


def stores_of(store):
    key = "k" * 40
    yield lambda: store.set(key, "v" * 100)
    store.set(key, "v")
    yield lambda: store.get(key)
    yield lambda: store.add("count", 1)
    yield lambda: store.multi_set(["a", "b"], ["1", "2"])
    store.multi_set(["a", "b"], ["1", "2"])
    yield lambda: store.multi_get(["a", "b"])
    yield lambda: store.check(["a", "b"])
    yield lambda: store.wait(["a"])
    yield lambda: store.compare_set("a", "1", "1")
    yield lambda: store.num_keys()
    yield lambda: store.delete_key("nothing")
    yield lambda: repr(store)
    yield refused(ValueError, lambda: store.multi_set(["a"], []))
    yield refused(TypeError, lambda: store.set(1, 2))


def hash_store():
    yield dldist.HashStore
    yield from stores_of(dldist.HashStore())
    store = dldist.HashStore()
    yield lambda: store.append("log", "line")
    yield lambda: store.list_keys()
    yield lambda: store.clone()


def prefix_store():
    inner = dldist.HashStore()
    yield lambda: dldist.PrefixStore("p", inner)
    yield from stores_of(dldist.PrefixStore("p", inner))


class Dictionary(dldist.Store):
    def __init__(self):
        super().__init__()
        self.data = {}

    def set(self, key, value):
        self.data[key] = value

    def get(self, key):
        return self.data[key]


def python_store():
    yield lambda: dldist.PrefixStore("p", Dictionary())
    store = dldist.PrefixStore("p", Dictionary())
    yield lambda: store.set("k", "v")
    store.set("k", "v")
    yield lambda: store.get("k")


def file_store():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        yield lambda: dldist.FileStore(path, 1)
        store = dldist.FileStore(path, 1)
        store.set("k", "v")
        yield lambda: store.get("k")  # noqa: F821  deleted below
        yield lambda: store.check(["k"])  # noqa: F821
        del store


def tensors():
    x = numbers(12)
    for tensor in (x, memoryview(x).cast("B").cast("d", (3, 4)), bytearray(8), Exporter(x)):
        yield lambda tensor=tensor: _core._describe_tensor(tensor, False)
    yield refused(TypeError, lambda: _core._describe_tensor(3, False))


def tcp_store():
    port = int(os.environ["OUT_OF_MEMORY_PORT"])  # a server with enough memory
    yield lambda: dldist.TCPStore("127.0.0.1", port)
    yield from stores_of(dldist.TCPStore("127.0.0.1", port))


def nccl_group():
    group = _core.NcclGroup(None, 0, 1, device=0, timeout=10.0)
    x, y, z = (group.empty(4) for _ in range(3))
    yield lambda: group.all_reduce(x)
    yield lambda: group.all_gather([y], x)
    yield lambda: group.all_gather([y], x, async_op=True).wait()
    yield lambda: group.all_reduce_coalesced([x, y, z])
    yield lambda: group.barrier()
    yield lambda: group.empty(4)
    yield refused(ValueError, lambda: group.all_reduce_coalesced([x, y, x]))
    yield refused(ValueError, lambda: group.all_reduce(numbers()))
    yield lambda: repr(group)

    def estimated():
        group._start_time_estimate()
        try:
            group.all_reduce(x)
            group.all_reduce_coalesced([x, y, z], async_op=True)
            group._end_time_estimate()
        finally:
            group._drop_time_estimate()

    yield estimated

    def coalesce():
        group.start_coalescing()
        try:
            group.all_reduce(x)
            group.all_reduce(y)
            group.end_coalescing().wait()
        finally:
            group.drop_coalesced()

    yield coalesce
    yield lambda: group.split([0]).close()
    yield lambda: _core.NcclGroup(None, 0, 1, device=0, config={"min_ctas": 1}).close()
    yield lambda: group._host_view()
    yield lambda: _core._nccl_coll_config({"max_ctas": 4})
    yield lambda: (_core._nccl_config_fields(), _core._nccl_info())

    def on_all_devices():
        with _core.NcclComms([0]) as comms:
            comms.all_reduce([x])
            repr(comms)

    def by_an_id():
        with _core.NcclRankComm.init_rank(0, 1, _core.NcclUniqueId(), device=0) as comm:
            comm.all_reduce([x])
            comm.abort_handle()

    yield on_all_devices
    yield by_an_id
    group.close()


class Exporter:
    """An object with only DLPack."""

    def __init__(self, x):
        with group_of_one() as group:
            self.array = group.empty(4)

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


CASES = (
    collectives, many_operands, refusals, works, messages, plans, arrays, groups, one_time_initialisation, programs_of_xla, windows,
    hash_store, prefix_store, python_store, file_store, tcp_store, tensors, nccl_group,
)


def lose_memory(channel):
    """Leak memory, for leak_check to find."""
    import ctypes

    with group_of_one() as group:
        capsule = group.empty(4).__dlpack__()
        set_destructor = ctypes.pythonapi.PyCapsule_SetDestructor
        set_destructor.argtypes = [ctypes.py_object, ctypes.c_void_p]
        set_destructor(capsule, None)


def of_the_core(number):
    _core._fail_allocation(number)


def of_python(number):
    import _testcapi

    _testcapi.set_nomemory(number, number + 1)


def from_then_on(number):
    """Fail 16 allocations in a row, so that the cleanup after the first also fails."""
    import _testcapi

    _testcapi.set_nomemory(number, number + 15)


def disarm_core():
    return _core._fail_allocation(-1)


def disarm_python():
    import _testcapi

    _testcapi.remove_mem_hooks()
    return None


ALLOCATORS = {"core": (of_the_core, disarm_core), "python": (of_python, disarm_python), "burst": (from_then_on, disarm_python)}


def prepare(call):
    getattr(call, "prepare", lambda: None)()


def attempt(call, number, arm, disarm):
    """Return the error, and the number of allocations if it is known."""
    error = None
    prepare(call)
    arm(number)
    try:
        call()
    except BaseException as raised:  # noqa: BLE001
        error = raised
    finally:
        count = disarm()
    return error, count


def is_allowed(call, error):
    """Return True if a call may end with the error. Includes other exceptions that Python raises
    for failed allocations."""
    if isinstance(error, MemoryError):
        return True
    place = traceback.extract_tb(error.__traceback__)[-1]
    is_of_python = place.filename != __file__ or getattr(call, "is_refused", False)
    return is_of_python and (type(error), str(error)) in (
        (SystemError, "error return without exception set"),
        (RuntimeError, "can't allocate lock"),
    )


def sweep(call, arm, disarm):
    """Return how often memory ran out."""
    prepare(call)
    call()  # makes objects that are created only once
    nfailed = nclean = 0
    for number in range(MOST):
        error, count = attempt(call, number, arm, disarm)
        if error is not None:
            if not is_allowed(call, error):
                raise AssertionError(f"allocation {number} failed, and the call ended in {error!r}") from error
            nfailed += 1
        nclean = 0 if error is not None else nclean + 1
        error = None
        if count is not None and count <= number:
            break
        if count is None and nclean > 40:  # a succeeding call allocates no more
            break
    else:
        raise AssertionError(f"more than {MOST} allocations in one call")
    prepare(call)
    call()  # must succeed again
    return nfailed


def run_case(channel, name, allocator):
    """Return the numbers of allocation failures, call by call."""
    arm, disarm = ALLOCATORS[allocator]
    case = next(case for case in CASES if case.__name__ == name)
    # drops exceptions that cannot be raised, such as those due to lack of memory
    sys.unraisablehook = lambda unraisable: None
    counts = [sweep(call, arm, disarm) for call in case()]
    gc.collect()
    return counts


STRIDES = {"core": 1, "python": 3, "burst": 11}  # Python makes over a thousand allocations for it


def fill(module):
    module.__spec__.loader.exec_module(module)


def make_modules_of_python(channel):
    """Do the same for one of Python's own modules, to show whether Python itself survives."""
    import _asyncio

    arm, disarm = ALLOCATORS["python"]
    sys.unraisablehook = lambda unraisable: None
    for number in range(MOST // 2):
        loader = importlib.machinery.ExtensionFileLoader("_asyncio", _asyncio.__file__)
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("_asyncio", loader))
        attempt(functools.partial(fill, module), number, arm, disarm)


def make_modules(channel, allocator):
    """Return how often memory ran out for a copy of the extension.

    A failed copy must be freed, unless it already had all of its types: ReduceOp's class attributes
    are instances of the class and keep it alive.
    """
    arm, disarm = ALLOCATORS[allocator]
    gone, nclean = [], 0
    for number in range(0, 2 * MOST, STRIDES[allocator]):
        module = blank_module()
        error, count = attempt(functools.partial(fill, module), number, arm, disarm)
        if error is not None:
            # Python's type creation does not always report the failed allocation; nor, since 3.13,
            # a type's setattr().
            is_of_python = any(text in str(error) for text in ("without setting an exception", "'dldist.ReduceOp' has no attribute"))
            if not isinstance(error, MemoryError) and not is_of_python:
                raise AssertionError(f"allocation {number} failed, and the making of a module ended in {error!r}") from error
            if not hasattr(module, "NcclAbortHandle"):
                gone.append(weakref.ref(module))
            # Since 3.12, Python's preallocated MemoryError is immortal and would keep the frames,
            # and they the module.
            error.__traceback__ = None
        nclean = nclean + 1 if error is None else 0
        del error
        if nclean > 20 or (count is not None and count <= number):
            break
    gc.collect()
    assert [reference() for reference in gone] == [None] * len(gone)
    store = module.HashStore()
    store.set("k", "v")
    assert store.get("k") == b"v"
    return len(gone)


# ---- two ranks, which notify each other


def exchange_of(count):
    def exchange(group):
        other = 1 - group.rank
        work = group.isend(numbers(count), other, timeout=0.4)
        group.recv(numbers(count), other, timeout=0.4)
        work.wait()

    return exchange


PAIRED = {
    "all_reduce": lambda group: group.all_reduce(numbers(), timeout=0.4),
    "strided": lambda group: group.all_reduce(memoryview(numbers(6))[::2], timeout=0.4, async_op=True).wait(),
    "large": lambda group: group.all_reduce(numbers(300_000), timeout=0.4),
    "gather": lambda group: group.all_gather([numbers(), numbers()], numbers(), timeout=0.4),
    "empty": lambda group: group.all_reduce(group.empty(3000, "float64"), timeout=0.4),
    "message": exchange_of(4),
    "large message": exchange_of(300_000),
    "split": lambda group: group.split([1, 0], timeout=0.4).close(),
    "window": lambda group: _core.Window(group, numbers(), timeout=0.4).close(),
}


def of_a_pair(number, call):
    """Return the errors of two ranks that make a call while that allocation fails, and the number
    of allocations."""
    store, errors, count = dldist.HashStore(), [], None
    ready, begin = threading.Barrier(3), threading.Event()

    def run(rank):
        group = dldist.Group(store, rank, 2, timeout=10.0)
        try:
            group.barrier()
            ready.wait(10)
            begin.wait(10)
            call(group)
        except Exception as error:
            errors.append(error)
        ready.wait(20)
        with contextlib.suppress(dldist.DistError):
            group.close(timeout=0.4)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    _core._fail_allocation(number)
    begin.set()
    ready.wait(20)
    count = _core._fail_allocation(-1)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), f"allocation {number} failed, and a rank hangs"
    return errors, count


def run_pair(channel, name):
    """Return how often memory ran out, and the total number of calls."""
    nfailed = 0
    for number in range(MOST):
        errors, count = of_a_pair(number, PAIRED[name])
        for error in errors:
            if not isinstance(error, (MemoryError, dldist.DistError)):
                raise AssertionError(f"allocation {number} failed, and the call ended in {error!r}") from error
        nfailed += 1 if errors else 0
        if count <= number:
            return nfailed
    raise AssertionError(f"more than {MOST} allocations in one call")
