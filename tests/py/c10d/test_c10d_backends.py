"""Backends: written in Python, one per device, the CPU backend under c10d's name, and their use by
process groups."""

import contextlib
import threading
import time
import weakref
from datetime import timedelta

import dldist
import pytest
from dldist import distributed_c10d as c10d
from dldist._backends import backend_base
from dldist._base.options import ErrorType, HookOpName, ReconfigureOptions
from dldist.rendezvous import Meeting
from thread_ranks import error_of, in_worlds, on_threads, total, vector

CPU, CUDA, XPU, METAL = 1, 2, 14, 8  # DLPack's


class Done(dldist.Work):
    """A completed work."""

    def __init__(self, tensors=()):
        super().__init__()
        self.tensors = list(tensors)

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def result(self):
        return self.tensors


class Recording(backend_base.Backend):
    """A backend that records its calls."""

    def __init__(self, rank, size, name="recording"):
        super().__init__(rank, size)
        self.label = name
        self.calls = []

    def getBackendName(self):
        return self.label

    def allreduce(self, tensors, opts):
        self.calls.append(("allreduce", opts.reduceOp, opts.timeout))
        tensors[0][0] += 100
        return Done(tensors)

    def barrier(self, opts):
        self.calls.append(("barrier", opts.timeout))
        return Done()

    def send(self, tensors, dst, tag):
        self.calls.append(("send", dst, tag))
        return Done()

    def shutdown(self):
        self.calls.append("shutdown")

    def abort(self):
        self.calls.append("abort")
        super().abort()


@pytest.fixture
def register():
    """Return a function that registers a backend until the end of the test."""
    kept = {
        name: type(value)(value)
        for name, value in vars(dldist.Backend).items()
        if isinstance(value, (dict, list)) and not name.startswith("__")
    }
    names = []

    def add(name, creator, **how):
        names.append(name)
        dldist.Backend.register_backend(name, creator, **{"devices": ["cpu"], **how})

    yield add
    for name, value in kept.items():
        setattr(dldist.Backend, name, value)
    for name in set(names):
        if name.upper() in vars(dldist.Backend):
            delattr(dldist.Backend, name.upper())


# ---- written in Python


def test_creator_of_a_backend_gets_store_rank_size_and_timeout(register):
    made = []

    def create(store, rank, size, timeout):
        store.set("k", "v")
        made.append((rank, size, timeout, Recording(rank, size)))
        return made[-1][-1]

    register("Recording", create)
    assert dldist.Backend.RECORDING == "recording" and dldist.is_backend_available("recording")

    def case(rank):
        x = vector(1)
        dldist.all_reduce(x, dldist.ReduceOp.MAX)
        work = dldist.all_reduce(x, async_op=True)
        assert isinstance(work, Done) and work.wait() and x[0] == 201
        dldist.barrier()
        group = dldist.new_group([0], timeout=timedelta(seconds=3))
        assert total(group) == 101
        assert (dldist.get_backend(), dldist.get_backend_config()) == ("recording", "cpu:recording")
        backend = dldist.get_backend_impl()
        assert backend is made[0][-1] and (backend.name(), dldist.group.WORLD.name()) == ("recording", "custom")
        for call in (dldist.broadcast, dldist.reduce):
            assert f"Backend recording does not support {call.__name__}" in str(error_of(call, vector(1), 0))
        assert isinstance(error_of(dldist.split_group, None, [[0]]), RuntimeError)
        assert dldist.default_world() is None
        assert dldist.group.WORLD.get_timeout() == timedelta(minutes=30)  # it has no such option
        return backend

    (backend,) = in_worlds(1, case, backend="recording", timeout=5)
    groups_timeout = timedelta(milliseconds=-1)
    assert backend.calls == [
        ("allreduce", dldist.ReduceOp.MAX, groups_timeout),
        ("allreduce", dldist.ReduceOp.SUM, groups_timeout),
        ("barrier", groups_timeout),
        "shutdown",
    ]
    assert [entry[:3] for entry in made] == [(0, 1, timedelta(seconds=5)), (0, 1, timedelta(seconds=3))]


def test_creator_with_the_extended_api_gets_the_backend_options(register):
    given = []

    def create(options, pg_options):
        given.append((options, pg_options))
        return Recording(options.group_rank, options.group_size)

    register("extended", create, extended_api=True)

    def case(rank):
        group = dldist.new_group([2, 1], backend="extended", pg_options="mine", timeout=4)
        assert total() == 3
        return None if rank == 0 else (total(group), group)

    groups = in_worlds(3, case)
    assert groups[0] is None
    for rank in (1, 2):
        assert groups[rank][0] == 101
        (options, pg_options) = next(entry for entry in given if entry[0].process_group is groups[rank][1])
        assert pg_options == "mine"
        assert (options.group_rank, options.group_size, options.group_id) == (rank - 1, 2, "1")
        assert options.global_ranks_in_group == [1, 2]
        assert options.timeout == timedelta(seconds=4)
        assert isinstance(options.store, dldist.PrefixStore)
        assert (options.split_from, options.enable_reconfigure) == (None, False)


class RecordingSplits(Recording):
    """Record the split sizes of calls that have them."""

    def reduce_scatter_single(self, output, input, opts):
        self.calls.append("reduce_scatter_single")
        return Done([output])

    def all_to_all_single(self, output, input, output_splits, input_splits, opts):
        self.calls.append((output_splits, input_splits))
        return Done([output])


@pytest.mark.parametrize("is_wrapped_in_block", [False, True])
def test_split_sizes_are_passed_to_other_backends(register, is_wrapped_in_block):
    """A low-level call without parameters for split sizes must not be called without them."""
    register("other", lambda store, rank, size, timeout: RecordingSplits(rank, size))

    def case(rank):
        calls = dldist.group.WORLD.operations
        with calls.coalesce() if is_wrapped_in_block else contextlib.nullcontext():
            calls.all_to_all_single(vector(0, 0), vector(1, 2), [2], [2])
            error = error_of(calls.reduce_scatter_single, vector(0, 0), vector(1, 2), split_sizes=[2])
        assert isinstance(error, RuntimeError) and "argument 'split_sizes': got " in str(error)
        calls.reduce_scatter_single(vector(0), vector(1))
        return dldist.get_backend_impl().calls

    assert in_worlds(1, case, backend="other") == [[([2], [2]), "reduce_scatter_single", "shutdown"]]


@pytest.mark.parametrize("is_hooked", [False, True])
def test_all_to_all_with_split_sizes_is_not_coalesced(is_hooked):
    """A call with split sizes must run separately, with its hooks as in the extension; the other
    calls become one."""

    def case(rank):
        hook_calls = []
        if is_hooked:
            dldist.group.WORLD.register_pre_hook(1, lambda args: hook_calls.append(len(args.output_tensors)))
        calls = dldist.group.WORLD.operations
        uneven, first, second = vector(*[0] * (rank + 1)), vector(0), vector(0)
        with calls.coalesce():
            calls.reduce_scatter_single(first, vector(1, 2))
            calls.reduce_scatter_single(uneven, vector(3, 4, 5), split_sizes=[1, 2])
            assert uneven == (vector(6) if rank == 0 else vector(8, 10))
            calls.reduce_scatter_single(second, vector(6, 7))
            assert second == vector(0)
        assert (first, second) == (vector(2 * (rank + 1)), vector(2 * (rank + 6)))
        assert hook_calls == ([1, 2] if is_hooked else [])

    in_worlds(2, case)


def test_backend_methods_with_deprecated_names_are_called(register):
    class Old(backend_base.Backend):
        """A backend written for c10d 2.6."""

        def _allgather_base(self, output, input, opts):
            output[0] = 7
            return Done([output])

        def _reduce_scatter_base(self, output, input, opts):
            output[0] = 8
            return Done([output])

        def alltoall_base(self, output, input, output_splits, input_splits, opts):
            output[0] = 9
            return Done([output])

    register("old", lambda store, rank, size, timeout: Old(rank, size))

    def case(rank):
        outputs = [vector(0) for _ in range(3)]
        dldist.all_gather_single(outputs[0], vector(1))
        dldist.reduce_scatter_single(outputs[1], vector(1))
        dldist.all_to_all_single(outputs[2], vector(1))
        return [output[0] for output in outputs]

    assert in_worlds(1, case, backend="old") == [[7, 8, 9]]


def test_creator_may_return_a_process_group(register):
    class Own(dldist.ProcessGroup):
        def getBackendName(self):
            return "own"

        def allreduce(self, tensors, opts):
            tensors[0][0] = 42
            return Done(tensors)

    register("own", lambda store, rank, size, timeout: Own(rank, size))

    def case(rank):
        world = dldist.group.WORLD
        assert isinstance(world, Own)
        assert (world.name(), world.group_name, world.group_desc) == ("own", "0", "default_pg")
        assert (dldist.get_backend(), dldist.get_backend_config()) == ("own", "cpu:own")
        assert isinstance(error_of(dldist.barrier), RuntimeError)
        assert isinstance(error_of(dldist.get_backend_impl), ValueError)
        assert c10d._resolve_process_group("0") is world
        return total()

    assert in_worlds(1, case, backend="own") == [42]


@pytest.mark.parametrize("end", [dldist.destroy_process_group, dldist.abort])
def test_returned_process_group_is_ended_by_its_own_methods(register, monkeypatch, end):
    ended = []

    class Own(dldist.ProcessGroup):
        def shutdown(self):
            ended.append("shutdown")

        def abort(self):
            ended.append("abort")

    monkeypatch.setattr(Meeting, "close", lambda self: ended.append("meeting"))
    register("own", lambda store, rank, size, timeout: Own(rank, size))
    dldist.init_process_group("own")
    part = dldist.new_group([0])
    end(part)
    end()
    word = "abort" if end is dldist.abort else "shutdown"
    assert ended == [word, word, "meeting"]
    c10d._register_process_group("0", part)
    assert "already registered" in str(error_of(dldist.init_process_group, "own"))
    assert ended[3:] == ["abort", "meeting"]


def test_creator_that_returns_none_is_an_error_of_init(register):
    register("nothing", lambda store, rank, size, timeout: None)
    error = error_of(dldist.init_process_group, "nothing")
    assert isinstance(error, RuntimeError) and "nothing" in str(error)
    assert not dldist.is_initialized()
    dldist.init_process_group()
    assert dldist.new_group([0], backend="nothing") == dldist.GroupMember.NON_GROUP_MEMBER
    dldist.destroy_process_group()


def test_creator_must_return_a_backend(register):
    register("strange", lambda store, rank, size, timeout: object())
    error = error_of(dldist.init_process_group, "strange")
    assert isinstance(error, TypeError) and "'strange': its creator returned an object of another type: got object, expected a subclass" in str(error)
    assert not dldist.is_initialized()


def test_error_of_a_creator_is_raised(register):
    def create(store, rank, size, timeout):
        raise LookupError("no such card")

    before = []
    register("failing", create, devices=["cuda"])
    register("first", lambda store, rank, size, timeout: before.append(Recording(rank, size)) or before[0])
    assert isinstance(error_of(dldist.init_process_group, "cpu:first,cuda:failing"), LookupError)
    assert before[0].calls == ["abort"]
    assert isinstance(error_of(dldist.init_process_group, "cpu:gloo,cuda:failing"), LookupError)
    assert not dldist.is_initialized()
    dldist.init_process_group()
    assert isinstance(error_of(dldist.new_group, [0], backend="failing"), LookupError)
    assert total() == 1
    dldist.destroy_process_group()


def test_failed_shutdown_of_a_backend_does_not_prevent_that_of_others(register):
    class FailingShutdown(Recording):
        def shutdown(self):
            raise OSError("busy")

    register("stubborn", lambda store, rank, size, timeout: FailingShutdown(rank, size))
    dldist.init_process_group()
    world = dldist.default_world()
    dldist.new_group([0], backend="stubborn")
    assert isinstance(error_of(dldist.destroy_process_group), OSError)
    assert world.is_closed and not dldist.is_initialized()


def test_backend_that_supports_splitting_is_split(register):
    class Splitting(Recording):
        supports_splitting = True

        @property
        def options(self):
            return backend_base.BackendOptions("splitting")

        def split(self, store, ranks, opts):
            part = Splitting(ranks.index(self.rank()), len(ranks))
            part.calls.append((ranks, opts._timeout, opts.group_name))
            return part

    register("splitting", lambda store, rank, size, timeout: Splitting(rank, size))

    def case(rank):
        part = dldist.split_group(None, [[1, 0]], timeout=timedelta(seconds=9), group_desc="part")
        assert total(part) == 101
        assert (dldist.get_process_group_ranks(part), part.group_desc) == ([1, 0], "part")
        assert dldist.get_backend_impl(part).calls[0] == ([1, 0], timedelta(seconds=9), part.group_name)

    in_worlds(2, case, backend="splitting")


# ---- one per device


class OnDevice:
    """An array of one number on a device."""

    def __init__(self, device, value=0):
        self.device = device
        self.value = value

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **_):
        raise BufferError("out of reach")

    def __getitem__(self, index):
        return self.value

    def __setitem__(self, index, value):
        self.value = value


def test_device_of_the_tensor_selects_the_backend(register):
    register("two", lambda store, rank, size, timeout: Recording(rank, size, "two"), devices=["cuda"])
    register("three", lambda store, rank, size, timeout: Recording(rank, size, "three"), devices=["xpu"])

    def case(rank):
        world = dldist.group.WORLD
        assert world._device_types == ["cpu", "cuda", "xpu"]
        two, three = world._get_backend("cuda:1"), dldist.get_backend_impl(device="xpu")
        assert (two.name(), three.name(), world.name()) == ("two", "three", "gloo")
        for device in (CUDA, CUDA, XPU):
            dldist.all_reduce(OnDevice(device))
        dldist.send(OnDevice(XPU), 1 - rank, tag=5) if rank == 0 else None
        assert total() == 2
        dldist.barrier()
        assert [call[0] for call in two.calls] == ["allreduce"] * 2
        assert [call[0] for call in three.calls] == ["allreduce"] + ["send"] * (1 - rank)
        for call in (lambda: dldist.all_reduce(OnDevice(METAL)), lambda: world._get_backend("mps")):
            error = error_of(call)
            assert isinstance(error, RuntimeError)
            assert "No backend type associated with device type" in str(error)
        assert "3 backends" in str(error_of(dldist.get_backend_impl))
        assert isinstance(error_of(world._get_backend, 3), TypeError)
        objects = [None, None]
        dldist.all_gather_object(objects, rank)
        assert objects == [0, 1]
        return dldist.get_backend_config(), dldist.default_world() is not None

    config = "cpu:gloo,cuda:two,xpu:three"
    assert in_worlds(2, case, backend=config) == [(config, True)] * 2


@pytest.mark.parametrize(("name", "found"), [("cpu", "gloo"), ("CPU", "gloo"), ("cpu:cpu", "cpu:gloo"), ("cuda:fake,cpu:cpu", "cuda:fake,cpu:gloo")])
def test_backend_name_cpu_means_gloo(name, found):
    dldist.init_process_group(name, store=dldist.HashStore(), rank=0, world_size=1)
    group = dldist.new_group([0], backend=name)
    assert dldist.get_backend() == dldist.get_backend(group) == found
    assert isinstance(group._get_backend("cpu"), dldist.ProcessGroupGloo)
    assert dldist.is_backend_available("cpu") and dldist.Backend("cpu") == dldist.Backend.GLOO
    dldist.destroy_process_group()


def test_devices_with_the_same_backend_name_share_one_backend():
    def case(rank):
        world = dldist.group.WORLD
        return world._get_backend("cpu") is world._get_backend("cuda"), world._device_types

    assert in_worlds(1, case, backend="gloo") == [(True, ["cpu", "cuda"])]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((), TypeError),
        ((1,), TypeError),
        ((3, 0, 1), TypeError),
        (("0", 1), TypeError),
        ((1, 1), ValueError),
        ((0, 0), ValueError),
    ],
)
def test_process_group_rejects_wrong_arguments(arguments, kind):
    assert isinstance(error_of(dldist.ProcessGroup, *arguments), kind)


# ---- hooks


def test_hooks_are_called_in_module_level_calls():
    def case(rank):
        world, hook_calls = dldist.group.WORLD, []
        world.register_pre_hook(1, lambda args: hook_calls.append(("pre", args.name, args.root, args.op_id)))
        world.register_post_hook(1, lambda args: hook_calls.append(("post", args.name, args.op_id)))
        assert world._has_hooks()
        total()
        dldist.broadcast(vector(1), 1, async_op=True).wait()
        dldist.send(vector(1), 1) if rank == 0 else dldist.recv(vector(0), 0)
        name = HookOpName.SEND if rank == 0 else HookOpName.RECV
        assert hook_calls == [
            ("pre", HookOpName.ALLREDUCE, -1, 0),
            ("post", HookOpName.ALLREDUCE, 0),
            ("pre", HookOpName.BROADCAST, 1, 1),
            ("post", HookOpName.BROADCAST, 1),
            ("pre", name, 1 - rank, 2),
            ("post", name, 2),
        ]
        world.unregister_pre_hook(1)
        world.unregister_post_hook(1)
        assert total() == 2 and len(hook_calls) == 6

    in_worlds(2, case)


def test_wrong_timeouts_are_rejected_in_calls_with_hooks():
    dldist.init_process_group()
    dldist.group.WORLD.register_pre_hook(1, lambda args: None)
    assert total(timeout=float("inf")) == total(timeout=1e300) == total(timeout=5) == 1
    for wrong, kind in ((-1, ValueError), (float("nan"), ValueError), ("soon", TypeError)):
        error = error_of(total, timeout=wrong)
        assert isinstance(error, kind) and "'timeout'" in str(error)
    dldist.destroy_process_group()


def test_exception_of_a_pre_hook_is_raised_by_the_call():
    def refuse(args):
        raise LookupError("not this one")

    dldist.init_process_group()
    world = dldist.group.WORLD
    world.register_pre_hook(1, refuse)
    assert isinstance(error_of(total), LookupError)
    world.unregister_pre_hook(1)
    assert total() == 1
    aborted = []
    world.register_abort_hook(1, lambda: aborted.append(1))
    dldist.abort()
    assert aborted


# ---- ProcessGroupGloo


def gloo_pair(case, **how):
    store = dldist.HashStore()

    def rank_of(rank):
        group = dldist.ProcessGroupGloo(store, rank, 2, **{"timeout": timedelta(seconds=10), **how})
        try:
            return case(rank, group)
        finally:
            group.shutdown()

    return on_threads(2, rank_of)


def wait(work):
    assert work.wait()


def with_options(kind, **fields):
    opts = kind()
    for name, value in fields.items():
        setattr(opts, name, value)
    return opts


def test_backend_calls_accept_lists_and_options():
    def case(rank, group):
        x = vector(rank + 2)
        wait(group.allreduce([x], with_options(dldist.AllreduceOptions, reduceOp=dldist.ReduceOp.PRODUCT)))
        assert x[0] == 6
        wait(group.broadcast([y := vector(rank)], with_options(dldist.BroadcastOptions, rootRank=1)))
        assert y[0] == 1
        wait(group.reduce([z := vector(rank + 1)], with_options(dldist.ReduceOptions, rootRank=1)))
        assert rank == 0 or z[0] == 3
        wait(group.allgather([outputs := [vector(0), vector(0)]], [vector(rank)], dldist.AllgatherOptions()))
        assert outputs == [vector(0), vector(1)]
        lists = [[vector(0), vector(0)]] if rank == 0 else []
        wait(group.gather(lists, [vector(rank + 5)], dldist.GatherOptions()))
        assert lists == ([[vector(5), vector(6)]] if rank == 0 else [])
        inputs = [[vector(1), vector(2)]] if rank == 1 else []
        wait(group.scatter([out := vector(0)], inputs, with_options(dldist.ScatterOptions, rootRank=1)))
        assert out[0] == rank + 1
        wait(group.reduce_scatter([out], [[vector(1), vector(2)]], dldist.ReduceScatterOptions()))
        assert out[0] == 2 * (rank + 1)
        wait(group.alltoall(outputs, [vector(rank), vector(rank + 10)], dldist.AllToAllOptions()))
        assert outputs == [vector(10 * rank), vector(10 * rank + 1)]
        wait(group.barrier(dldist.BarrierOptions()))
        wait(group.allreduce_coalesced([a := vector(1), b := vector(2)], dldist.AllreduceCoalescedOptions()))
        assert (a[0], b[0]) == (2, 4)

    gloo_pair(case)


def test_backend_calls_accept_single_tensors():
    second = timedelta(seconds=5)

    def case(rank, group):
        x = vector(rank + 1)
        wait(group.allreduce(x, dldist.ReduceOp.MAX, second))
        assert x[0] == 2
        wait(group.allreduce(tensors=[x], op=dldist.ReduceOp.SUM, timeout=second))
        assert x[0] == 4
        wait(group.broadcast(y := vector(rank), root=1, timeout=second))
        assert y[0] == 1
        wait(group.reduce(z := vector(rank + 1), 1, op=dldist.ReduceOp.SUM))
        assert rank == 0 or z[0] == 3
        wait(group.allgather(outputs := [vector(0), vector(0)], vector(rank), timeout=second))
        assert outputs == [vector(0), vector(1)]
        gathered = [vector(0), vector(0)] if rank == 0 else []
        wait(group.gather(gathered, vector(rank), root=0))
        assert rank == 1 or gathered == [vector(0), vector(1)]
        wait(group.scatter(out := vector(0), [vector(1), vector(2)] if rank == 0 else [], root=0))
        assert out[0] == rank + 1
        wait(group.reduce_scatter(out, [vector(1), vector(2)], dldist.ReduceOp.SUM))
        assert out[0] == 2 * (rank + 1)
        wait(group._allgather_base(both := vector(0, 0), vector(rank + 1)))
        assert both == vector(1, 2)
        wait(group._reduce_scatter_base(out, vector(1, 2)))
        assert out[0] == 2 * (rank + 1)
        wait(group.alltoall_base(both, vector(rank, rank + 10), [], []))
        assert both == vector(10 * rank, 10 * rank + 1)
        wait(group.barrier(timeout=second))
        group.monitored_barrier(second)
        if rank == 0:
            wait(group.send([vector(9)], 1, 3))
        else:
            wait(work := group.recv_anysource([x], 3))
            assert (x[0], work._source_rank()) == (9, 0)
        assert group._get_sequence_number_for_group() > 0

    gloo_pair(case)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda group: group.allreduce([]), "requires non-empty tensor list"),
        (lambda group: group.broadcast([vector(1)], with_options(dldist.BroadcastOptions, rootTensor=1)), "invalid root tensor"),
        (lambda group: group.send([vector(1), vector(2)], 1 - group.rank(), 0), "takes a single tensor"),
        (lambda group: group.gather([] if group.rank() == 0 else [[vector(0)]], [vector(1)]), "output"),
        (lambda group: group.allreduce_sparse([vector(1)]), "got a dense tensor, expected a sparse one"),
        (lambda group: group._start_coalescing(), "Backend gloo does not implement startCoalescing"),
        (lambda group: group.shrink([1]), "Backend gloo does not support shrink"),
        (lambda group: group.get_reconfigure_handle(), "Backend gloo does not support get_reconfigure_handle"),
    ],
)
def test_process_group_gloo_calls_reject_wrong_arguments(call, text):
    def case(rank, group):
        error = error_of(call, group)
        assert isinstance(error, RuntimeError) and text in str(error)
        wait(group.barrier())

    gloo_pair(case)


def test_process_group_gloo_can_be_split_and_has_timeouts():
    def case(rank, group):
        assert group.supports_splitting and not group.supports_shrinking and not group.supports_coalescing
        part = group.split(None, [1, 0])
        wait(part.allreduce(x := vector(1)))
        assert (x[0], part.rank()) == (2, 1 - rank)
        assert (group.split(None, [0]) is None) == (rank == 1)
        group.set_timeout(timedelta(seconds=0.1))
        assert group.options._timeout == timedelta(seconds=0.1)
        if rank == 0:
            assert isinstance(error_of(group.barrier().wait), dldist.DistTimeoutError)
            assert group.get_error() == ErrorType.TIMEOUT
            wait(part.send([x], 0, 0))
        else:
            wait(part.recv([x], 1, 0))

    gloo_pair(case)


def test_process_group_gloo_reports_why_it_failed():
    both_looked = threading.Barrier(2)

    def case(rank, group):
        assert group.get_error() == ErrorType.SUCCESS
        both_looked.wait(10)
        if rank == 0:
            group.abort("out of coffee")
        assert "out of coffee" in str(error_of(lambda: group.barrier().wait()))
        assert group.get_error() == ErrorType.COMM_ERROR

    gloo_pair(case)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((None, 0, 1), TypeError),
        (("hash", 1, 1), ValueError),
        (("hash", 0, 0), ValueError),
        (("hash", 0, 1, 3), TypeError),
        (("hash", 0, 1, "soon"), TypeError),
        ((), TypeError),
    ],
)
def test_process_group_gloo_constructor_rejects_wrong_arguments(arguments, kind):
    given = [dldist.HashStore() if argument == "hash" else argument for argument in arguments]
    assert isinstance(error_of(dldist.ProcessGroupGloo, *given), kind)


def test_process_group_gloo_accepts_options():
    opts = dldist.ProcessGroupGloo._Options()
    opts._timeout = timedelta(seconds=3)
    group = dldist.ProcessGroupGloo(dldist.HashStore(), 0, 1, opts)
    assert group.options is opts and group.group.timeout == timedelta(seconds=3)
    assert (opts.backend, opts._devices, opts._threads) == ("gloo", [], 2)
    assert isinstance(error_of(dldist.ProcessGroupGloo.create_device), ValueError)
    opts._devices = [dldist.ProcessGroupGloo.create_device(interface="lo"), dldist.ProcessGroupGloo.create_default_device()]
    group.shutdown()


def test_backend_options_return_their_timeout_as_a_timedelta():
    opts = dldist.ProcessGroupGloo._Options()
    opts._timeout = 50.0
    assert opts._timeout == timedelta(seconds=50)
    for wrong in (50, "50", None):
        with pytest.raises(TypeError, match="_timeout"):
            opts._timeout = wrong
    assert dldist.ProcessGroupGloo(dldist.HashStore(), 0, 1, opts).group.timeout == timedelta(seconds=50)


def test_backend_can_be_used_as_a_group():
    def case(rank, backend):
        dldist.barrier(group=backend)
        x = vector(rank + 1)
        dldist.all_reduce(x, group=backend)
        work = dldist.broadcast(y := vector(rank), group_src=1, group=backend, async_op=True)
        wait(work)
        gathered = [vector(0), vector(0)]
        dldist.all_gather(gathered, vector(rank), group=backend)
        with dldist._coalescing_manager(group=backend):
            dldist.all_reduce(first := vector(rank), group=backend)
            dldist.all_reduce(second := vector(1), group=backend)
        sent = dldist.isend(vector(rank + 5), group=backend, group_dst=1 - rank)
        dldist.recv(received := vector(0), group=backend, group_src=1 - rank)
        wait(sent)
        objects = [None, None]
        dldist.all_gather_object(objects, {"rank": rank}, group=backend)
        with pytest.raises(ValueError, match="group_src"):  # its rank is not in the default world
            dldist.broadcast(y, src=0, group=backend)
        assert dldist.get_world_size(backend) == 2 and objects == [{"rank": 0}, {"rank": 1}]
        return [item[0] for item in (x, y, *gathered, first, second, received)]

    assert gloo_pair(case) == [[3, 1, 0, 1, 1, 2, 6], [3, 1, 0, 1, 1, 2, 5]]


def test_backend_used_as_a_group_is_freed_with_its_last_reference():
    backend = Recording(0, 1, "foreign")
    dldist.barrier(group=backend)
    alive = weakref.ref(backend)
    del backend
    assert alive() is None


def test_python_backend_can_be_used_as_a_group():
    backend = Recording(0, 1, "foreign")
    dldist.barrier(group=backend)
    dldist.all_reduce(x := vector(1), group=backend)
    assert [call[0] for call in backend.calls] == ["barrier", "allreduce"] and x[0] == 101
    with pytest.raises(dldist.DistTypeError, match="got object, expected a group"):
        dldist.barrier(group=object())


def test_process_group_has_the_properties_of_its_backends(register):
    register("two", lambda store, rank, size, timeout: Recording(rank, size, "two"), devices=["cuda"])
    dldist.init_process_group("cpu:gloo,cuda:two")
    mixed = dldist.group.WORLD
    plain = dldist.new_group([0], backend="cpu:gloo")
    assert plain.supports_splitting and plain.supports_reconfigure and not mixed.supports_splitting
    assert plain.supports_window and not mixed.supports_window
    for name in ("coalescing", "time_estimate", "shrinking"):
        assert getattr(plain, f"supports_{name}") is False
    assert plain.options.backend == "gloo" and plain.get_error() == ErrorType.SUCCESS
    error = error_of(plain.get_reconfigure_handle)
    assert isinstance(error, RuntimeError) and "Backend gloo does not support get_reconfigure_handle" in str(error)
    for name in ("revoke", "suspend", "resume", "memory_stats"):
        error = error_of(getattr(mixed._get_backend("cuda"), name))
        assert isinstance(error, RuntimeError) and f"Backend two does not support {name}" in str(error)
    assert isinstance(error_of(plain.shrink, [1]), RuntimeError)
    assert isinstance(error_of(plain.allocate_tensor, 1, dtype="b", device="cpu"), RuntimeError)
    assert isinstance(error_of(lambda: plain.mem_allocator), RuntimeError)
    assert not plain.supports_tensor_alloc("cpu")
    assert "has no backend; register one" in str(error_of(dldist.ProcessGroup(0, 1)._get_sequence_number_for_group))
    dldist.destroy_process_group()


# ---- groups made from groups


def test_process_groups_can_be_split():
    def case(rank):
        world = dldist.group.WORLD
        part = world.split_group([1, 0], timeout=timedelta(seconds=5), group_name="n", group_desc="d")
        wait(part.allreduce([x := vector(1)]))
        assert (x[0], part.rank(), part.group_name, part.group_desc) == (2, 1 - rank, "n", "d")
        assert part.get_timeout() == timedelta(seconds=5)
        assert world.split_group([1 - rank]) is None
        for ranks in ([], [0, 0], [2]):
            assert isinstance(error_of(world.split_group, ranks), ValueError)
        part.shutdown()

    in_worlds(2, case)


def test_process_groups_can_be_merged():
    common = dldist.HashStore()
    homes = [dldist.HashStore(), dldist.HashStore()]

    def place_of(place):
        half = dldist.ProcessGroup(homes[place // 2], place % 2, 2)
        half._register_backend("cpu", half.BackendType.GLOO, dldist.ProcessGroupGloo(homes[place // 2], place % 2, 2))
        merged = half.merge_remote_group(common, 4, timedelta(seconds=10), group_name="merged")
        wait(merged.allreduce([x := vector(1)]))
        # Ranks of one group stay adjacent.
        assert merged.rank() % 2 == place % 2 and merged.group_name == "merged"
        merged.shutdown()
        half.shutdown()
        return x[0]

    assert on_threads(4, place_of) == [4] * 4


def test_reconfigure_replaces_the_members_of_a_group():
    handles = dldist.HashStore()

    def case(rank):
        world = dldist.group.WORLD
        error = error_of(dldist.barrier)
        assert isinstance(error, RuntimeError) and "Call reconfigure() before issuing collectives" in str(error)
        assert dldist.default_world() is None and c10d._supports_reconfigure()
        handles.set(str(rank), world.get_reconfigure_handle())
        members = [handles.get(str(index), 10).decode() for index in range(3)]
        wait(world.reconfigure(1, members, timedelta(seconds=10)))
        assert (dldist.get_rank(), dldist.get_world_size(), total()) == (rank, 3, 3)
        if rank == 0:
            return None
        for bad, kind in [(["x"], ValueError), ([members[rank]] * 2, ValueError), (3, TypeError), ([3], TypeError)]:
            assert isinstance(error_of(world.reconfigure, 2, bad), kind)
        # The other ranks continue without rank 0, in reverse order.
        opts = with_options(ReconfigureOptions, uuid=2, handles=[members[2], members[1]], timeout=timedelta(seconds=10))
        wait(world.reconfigure(opts=opts))
        assert dldist.get_rank() == 2 - rank
        assert dldist.get_process_group_ranks(None) == [0, 1]
        assert total() == total(dldist.new_group([0, 1])) == 2
        wait(c10d._reconfigure(3, set(members[1:]), None, timedelta(seconds=10)))
        result = total()
        if rank == 1:
            late = error_of(world.reconfigure, 4, members, timedelta(seconds=0.1))
            assert isinstance(late, dldist.DistTimeoutError)
            assert "Call reconfigure()" in str(error_of(dldist.barrier))
        return result

    assert in_worlds(3, case, backend="gloo", enable_reconfigure=True) == [None, 2, 2]


# ---- DETAIL


@pytest.fixture
def detail():
    dldist.set_debug_level(dldist.DebugLevel.DETAIL)
    yield
    dldist.set_debug_level(dldist.DebugLevel.OFF)


@pytest.mark.usefixtures("detail")
def test_debug_level_detail_reports_calls_that_differ_between_ranks():
    def case(rank):
        assert total() == 2
        group = dldist.new_group([0, 1])
        assert total(group) == 2
        errors = [
            error_of(dldist.all_reduce, vector(1)) if rank == 0 else error_of(dldist.broadcast, vector(1), 0),
            error_of(dldist.all_reduce, vector(1) if rank == 0 else vector(1, 2), group=group),
        ]
        for error in errors:
            assert isinstance(error, RuntimeError)
            assert "Detected mismatch between collectives on ranks" in str(error)
        assert (dldist.group.WORLD.name(), type(dldist.get_backend_impl()).__name__) == ("gloo", "_ProcessGroupWrapper")
        return total(), dldist.default_world().size

    assert in_worlds(2, case) == [(2, 2)] * 2


@pytest.mark.usefixtures("detail")
def test_debug_level_detail_reports_the_reason_of_an_abort():
    def case(rank):
        world = dldist.default_world()
        if rank == 0:
            dldist.abort(reason="out of coffee")
            return None
        began = time.monotonic()
        text = str(error_of(world.barrier))
        assert time.monotonic() - began < 5
        return text

    assert "out of coffee" in in_worlds(2, case)[1]
