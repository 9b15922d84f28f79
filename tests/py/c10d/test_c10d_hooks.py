"""Hooks of a process group, and the hook that checks for NaN."""

import array
import datetime
import inspect
import json
import sys

import dldist
import dldist._backends.backend_base
import numpy as np
import pytest
from dldist import control, flight_recorder
from dldist._backends import health_check, hooks
from dldist._backends.hook_args import CompletionHookArgs
from dldist._backends.low_level import LowLevelCalls
from dldist._base.options import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from test_c10d_backends import register  # noqa: F401
from thread_ranks import in_worlds

X, Y, Z = (np.zeros(1) for _ in range(3))


def run(registry, method, *arguments):
    return registry.run_call(method, arguments, lambda: f"work of {method}")


def test_hooks_are_called_for_every_operation():
    registry, hook_arguments = hooks.Hooks(), []
    registry.register_pre(1, lambda args: hook_arguments.append(args))
    registry.register_post(1, lambda args: hook_arguments.append(args))
    opts = BroadcastOptions()
    opts.rootRank, opts.asyncOp = 2, False
    assert run(registry, "broadcast", [X], opts) == "work of broadcast"
    run(registry, "send", [X], 1, 0)
    run(registry, "allgather", [[Y, Z]], [X], AllgatherOptions())
    before, after = hook_arguments[0::2], hook_arguments[1::2]
    assert [args.name.name for args in before] == [args.name.name for args in after] == ["BROADCAST", "SEND", "ALLGATHER"]
    assert [args.op_id for args in before] == [args.op_id for args in after] == [0, 1, 2]
    assert [args.async_op for args in before] == [False, True, True]
    assert [args.root for args in before] == [2, 1, -1]
    assert [(len(args.input_tensors), len(args.output_tensors)) for args in before] == [(1, 0), (1, 0), (1, 2)]
    assert before[2].input_tensors[0] is X and before[2].output_tensors[1] is Z
    assert after[0].work == "work of broadcast"


@pytest.mark.parametrize(
    ("method", "arguments", "name", "counts", "root"),
    [
        ("allreduce", ([X], AllreduceOptions()), "ALLREDUCE", (1, 0), -1),
        ("allreduce_coalesced", ([X, Y], AllreduceCoalescedOptions()), "ALLREDUCE_COALESCED", (2, 0), -1),
        ("allreduce_sparse", ([X], AllreduceOptions()), "ALLREDUCE", (1, 0), -1),
        ("reduce", ([X], ReduceOptions()), "REDUCE", (1, 0), 0),
        ("all_gather_single", (Y, X, AllgatherOptions()), "ALLGATHER_BASE", (1, 1), -1),
        ("allgather_coalesced", ([[Y], [Z]], [X], AllgatherOptions()), "ALLGATHER_COALESCED", (1, 2), -1),
        ("all_gather_single_coalesced", ([Y], [X], AllgatherOptions()), "ALLGATHER_INTO_TENSOR_COALESCED", (1, 1), -1),
        ("gather", ([], [X], GatherOptions()), "GATHER", (1, 0), 0),
        ("gather_single", (None, X, GatherOptions()), "GATHER", (1, 0), 0),
        ("scatter", ([X], [[Y, Z]], ScatterOptions()), "SCATTER", (2, 1), 0),
        ("reduce_scatter", ([X], [[Y, Z]], ReduceScatterOptions()), "REDUCE_SCATTER", (2, 1), -1),
        ("reduce_scatter_single", (X, Y, ReduceScatterOptions()), "REDUCE_SCATTER_BASE", (1, 1), -1),
        ("reduce_scatter_single_coalesced", ([X], [Y], ReduceScatterOptions()), "REDUCE_SCATTER_TENSOR_COALESCED", (1, 1), -1),
        ("alltoall", ([X], [Y], AllToAllOptions()), "ALLTOALL", (1, 1), -1),
        ("all_to_all_single", (X, Y, [], [], AllToAllOptions()), "ALLTOALL_BASE", (1, 1), -1),
        ("barrier", (BarrierOptions(),), "BARRIER", (0, 0), -1),
        ("recv", ([X], 2, 0), "RECV", (0, 1), 2),
        ("recv_anysource", ([X], 0), "RECV", (0, 1), -1),
        ("something_new", (), "UNKNOWN", (0, 0), -1),
    ],
)
def test_pre_hook_gets_the_arguments_of_the_operation(method, arguments, name, counts, root):
    registry, hook_arguments = hooks.Hooks(), []
    registry.register_pre(1, hook_arguments.append)
    run(registry, method, *arguments)
    [args] = hook_arguments
    assert (args.name.name, (len(args.input_tensors), len(args.output_tensors)), args.root) == (name, counts, root)


class HookedCalls(LowLevelCalls):
    """Low-level calls that run every call through hooks."""

    def __init__(self):
        self.hooks = hooks.Hooks()

    def _perform(self, method, *arguments):
        return self.hooks.run_call(method, arguments, lambda: method)


def test_every_process_group_call_has_an_operation_name_for_hooks():
    hook_arguments = []
    group = HookedCalls()
    group.hooks.register_pre(1, hook_arguments.append)
    calls = [
        (name, call)
        for name, call in inspect.getmembers(group, inspect.ismethod)
        if not name.startswith("__") and name != "_perform"
    ]
    arguments = {"barrier": (), "monitored_barrier": (), "recv_anysource": ([X], 0), "send": ([X], 0, 0), "recv": ([X], 0, 0)}
    arguments |= dict.fromkeys(("allreduce", "allreduce_coalesced", "allreduce_sparse", "broadcast", "exscan", "reduce", "scan"), ([X],))
    for name, call in calls:
        call(*arguments.get(name, ([X], [Y])))
    assert len(hook_arguments) == len(calls) > 25
    assert [name for (name, _), args in zip(calls, hook_arguments, strict=True) if args.name.name == "UNKNOWN"] == ["exscan", "scan"]  # not in torch


def test_hooks_are_registered_and_removed():
    registry, called = hooks.Hooks(), []
    assert not registry
    registry.register_pre(1, lambda _: called.append("replaced"))
    registry.register_pre(2, lambda _: called.append("second"))
    registry.register_pre(1, lambda _: called.append("first"))
    assert registry
    run(registry, "barrier", BarrierOptions())
    assert called == ["first", "second"]
    registry.unregister_pre(1)
    registry.unregister_pre(2)
    registry.unregister_pre(2)
    registry.unregister_post(5)
    assert not registry
    with pytest.raises(TypeError, match="must be callable"):
        registry.register_post(1, None)


def test_pre_hook_that_raises_stops_the_operation():
    registry = hooks.Hooks()
    registry.register_pre(1, lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        registry.run_call("barrier", (BarrierOptions(),), lambda: pytest.fail("the operation was run"))


def test_hooks_get_the_names_of_module_level_calls(slow):
    hook_arguments = []
    dldist.group.WORLD.register_pre_hook(1, hook_arguments.append)
    dldist.all_reduce_coalesced([np.zeros(1), np.zeros(1)], async_op=True)
    dldist.all_gather_single(np.zeros(1), np.zeros(1), async_op=True)
    assert [args.name.name for args in hook_arguments] == ["ALLREDUCE_COALESCED", "ALLGATHER_BASE"]


# ---- completion hooks


def test_completion_hook_is_called_once_for_each_operation():
    """The hook must get the op_id of the pre and post hooks and the time that the work measured."""

    def case(rank):
        group, started, completed = dldist.group.WORLD, [], []
        assert group.supports_completion_hooks is True and group._has_hooks() is False
        group.register_post_hook(1, lambda args: started.append(args))
        group.register_completion_hook(1, completed.append)
        assert group._has_hooks() is True
        x = np.zeros(4)
        dldist.all_reduce(x)
        group.allgather([[np.zeros(4), np.zeros(4)]], [x]).wait()
        dldist.isend(x, 1 - rank)
        dldist.recv(x, 1 - rank)
        dldist.barrier()
        group._wait_for_pending_works()
        measured = {args.op_id: args.work._get_duration() for args in started}
        assert {args.completion_key: args.duration_ms for args in completed} == measured
        return sorted(args.completion_key for args in completed), all(time > 0 for time in measured.values())

    assert in_worlds(2, case) == [(list(range(5)), True)] * 2


def test_completion_hook_is_not_called_for_a_failed_operation(slow):
    completed = []
    group = dldist.group.WORLD
    group.register_completion_hook(7, completed.append)
    for _ in range(3):
        dldist.all_reduce(np.zeros(1), async_op=True)
    assert completed == []
    slow.works[2].future.set_result(None)
    slow.works[0].future.set_exception(ValueError("a cable is loose"))
    slow.works[1].future.set_exception(TimeoutError())
    with pytest.raises(RuntimeError, match="no barriers"):
        dldist.barrier()
    assert completed == [CompletionHookArgs(2, None)], "this backend measures no time"


def test_completion_hook_is_not_called_for_a_work_without_a_future(slow):
    completed = []
    group = dldist.group.WORLD
    group.register_completion_hook(7, completed.append)
    assert group.send([np.zeros(1)], 0, 0) is not None
    assert completed == []


def test_new_completion_hook_replaces_the_old_one_and_can_be_removed(slow):
    called = []
    group = dldist.group.WORLD
    group.register_completion_hook(1, lambda _: called.append("replaced"))
    group.register_completion_hook(1, lambda _: called.append("first"))
    group.register_completion_hook(2, lambda _: called.append("second"))
    x = np.zeros(1)
    for _ in range(3):
        dldist.all_reduce(x, async_op=True)
    slow.works[0].future.set_result(None)
    assert called == ["first", "second"]
    group.unregister_completion_hook(1)
    group.unregister_completion_hook(99)
    slow.works[1].future.set_result(None)
    assert called == ["first", "second", "second"], "operations under way no longer call an unregistered hook"
    group.unregister_completion_hook(2)
    assert not group._has_hooks()
    slow.works[2].future.set_result(None)
    assert len(called) == 3
    with pytest.raises(TypeError, match="register_completion_hook.*must be callable, not int"):
        group.register_completion_hook(1, 3)


def test_failing_completion_hook_does_not_stop_others(slow, monkeypatch):
    raised, completed = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: raised.append(report.exc_value))
    group = dldist.group.WORLD
    group.register_completion_hook(1, lambda _: 1 / 0)
    group.register_completion_hook(2, completed.append)
    group._register_on_completion_hook(lambda info: completed.append(info.op_type.name))
    work = dldist.all_reduce(np.zeros(1), async_op=True)
    work.future.set_result(None)
    assert completed == [CompletionHookArgs(0, None), "UNKNOWN"]
    assert [type(error) for error in raised] == [ZeroDivisionError]
    group._wait_for_completion_hooks()


def test_completion_hook_is_called_once_for_a_coalesced_operation():
    def case(rank):
        completed = []
        group = dldist.group.WORLD
        group.register_completion_hook(1, completed.append)
        with dldist.coalescing():
            for _ in range(3):
                dldist.all_reduce(np.zeros(1))
        group._wait_for_pending_works()
        return [args.completion_key for args in completed]

    assert in_worlds(2, case) == [[0], [0]]


def test_backend_may_call_completion_hooks_itself(register):  # noqa: F811
    given = []

    class Own(Slow):
        supports_completion_hooks = True

        def register_completion_hook(self, hook_id, hook):
            given.append((hook_id, hook))

        def unregister_completion_hook(self, hook_id):
            given.append(hook_id)

    register("own_completion", lambda store, rank, size, timeout: Own(rank, size))
    dldist.init_process_group("own_completion")
    group = dldist.group.WORLD
    group.register_completion_hook(1, print)
    group.unregister_completion_hook(1)
    assert given == [(1, print), 1] and not group._has_hooks()
    dldist.destroy_process_group()


def test_backend_without_completion_hooks_rejects_them(slow):
    assert slow.supports_completion_hooks is False
    for call in (lambda: slow.register_completion_hook(1, print), lambda: slow.unregister_completion_hook(1)):
        with pytest.raises(RuntimeError, match="Backend slow does not support (un)?register_completion_hook"):
            call()


# ---- abort hooks and health


def test_unsupported_abort_hooks_are_rejected(register):  # noqa: F811
    class Own(Slow):
        supports_abort_hooks = False

    register("no_abort_hooks", lambda store, rank, size, timeout: Own(rank, size))
    dldist.init_process_group("no_abort_hooks")
    group = dldist.group.WORLD
    assert group.supports_abort_hooks is False
    with pytest.raises(RuntimeError, match="Backend slow does not support register_abort_hook"):
        group.register_abort_hook(1, print)
    group.unregister_abort_hook(1)
    dldist.destroy_process_group()


def test_abort_of_a_group_calls_its_abort_hooks():
    called = []
    dldist.init_process_group()
    group = dldist.group.WORLD
    assert group.supports_abort_hooks is True
    group.register_abort_hook(1, lambda: called.append("kept"))
    group.register_abort_hook(2, lambda: called.append("gone"))
    group.unregister_abort_hook(2)
    dldist.abort()
    assert called == ["kept"]


@pytest.fixture
def reset_health(monkeypatch):
    monkeypatch.setattr(health_check, "_aborted", set())


def test_aborted_backend_is_reported_as_unhealthy_forever(reset_health, slow):
    assert health_check.unhealthy_backends() == []
    dldist.group.WORLD.abort()
    assert health_check.unhealthy_backends() == ["slow"]
    dldist.destroy_process_group()
    dldist.init_process_group()
    assert health_check.unhealthy_backends() == ["slow"]


def test_failed_group_is_reported_as_unhealthy(reset_health):
    def case(rank):
        alone = dldist.new_group([0, 1], timeout=datetime.timedelta(seconds=0.2))
        before = health_check.unhealthy_backends()
        if rank == 0:
            with pytest.raises(dldist.DistError):
                dldist.all_reduce(np.zeros(1), group=alone)
            assert health_check.unhealthy_backends() == ["gloo"]
        return before

    assert in_worlds(2, case) == [[], []]


def test_health_check_works_for_groups_made_without_init_process_group(reset_health):
    group = dldist.ProcessGroup(0, 1)
    group._register_backend("cpu", dldist.ProcessGroup.BackendType.CUSTOM, Slow(0, 1))
    for _ in range(2):
        health_check.HealthCheckHook.attach(group)
    group.abort()
    assert health_check.unhealthy_backends() == ["slow"]


def test_worker_server_reports_the_health_of_groups(reset_health, slow):
    class Answer:
        def set_content(self, content, kind):
            self.content, self.kind = json.loads(content), kind

    answer = Answer()
    control.get_handler("c10d_health_check")(None, answer)
    assert (answer.content, answer.kind) == ({"healthy": True, "unhealthy_backends": []}, "application/json")
    dldist.group.WORLD.abort()
    control.get_handler("c10d_health_check")(None, answer)
    assert answer.content == {"healthy": False, "unhealthy_backends": ["slow"]}


# ---- NaN

NAN = float("nan")


class HookedGroup:
    """The part of a process group that hooks use."""

    def __init__(self):
        self.hooks = hooks.Hooks()
        self.register_pre_hook = self.hooks.register_pre
        self.unregister_pre_hook = self.hooks.unregister_pre


def test_nan_check_hook_rejects_nan_until_the_hook_is_removed():
    group = HookedGroup()
    handle = hooks.NanCheckHook.attach(group)
    another = hooks.NanCheckHook.attach(group)
    run(group.hooks, "allreduce", [np.array([1.0])], AllreduceOptions())
    with pytest.raises(RuntimeError, match=r"NaN found in input tensor 1 of ALLREDUCE_COALESCED \(op_id 1\)"):
        run(group.hooks, "allreduce_coalesced", [np.array([1.0]), np.array([0, NAN])], AllreduceOptions())
    run(group.hooks, "recv", [np.array([NAN])], 0, 0)  # an output may hold anything before the call
    run(group.hooks, "allgather", [[np.array([NAN])]], [np.array([1.0])], AllgatherOptions())
    handle.remove()
    assert group.hooks
    another.remove()
    assert not group.hooks
    run(group.hooks, "allreduce", [np.array([NAN])], AllreduceOptions())


@pytest.mark.parametrize("value", ["1", "0"])
def test_nan_check_environment_variable_applies_to_every_group(value, monkeypatch):
    monkeypatch.setenv("TORCH_DIST_NAN_CHECK", value)

    def case(rank):
        x = np.array([NAN if rank == 1 else 1.0])
        dldist.broadcast(x, src=0)  # rank 1 does not send its values
        assert x[0] == 1
        pair = dldist.new_group([0, 1])
        refusals = []
        for group in (None, pair):
            try:
                dldist.all_reduce(np.array([NAN]), group=group)
            except RuntimeError as error:
                refusals.append(str(error).split(" (")[0])
        return refusals

    expected = ["NaN found in input tensor 0 of ALLREDUCE"] * 2 if value == "1" else []
    assert in_worlds(2, case) == [expected] * 2


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (np.array([1.0, NAN], "f4"), True),
        (np.array([1.0, np.inf], "f2"), False),
        (np.array([complex(0, NAN)]), True),
        (np.arange(3), False),
        (np.array(NAN), True),
        (np.empty((0, 3)), False),
        (array.array("d", [1, NAN]), True),
        (array.array("f", [1, 2]), False),
        (memoryview(np.array([[1.0, NAN]])), True),
        (bytearray(b"\xff" * 8), False),
    ],
)
def test_has_nan_is_true_only_for_arrays_with_a_nan(tensor, expected):
    assert hooks.has_nan(tensor) is expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_nan_check_finds_nan_in_shared_arrays(dtype):
    with dldist.World(dldist.HashStore(), 0, 1) as world:
        x = world.empty((2, 2), dtype)
        assert hooks.has_nan(x) is False
        x[1, 0] = NAN
        assert hooks.has_nan(x) is True


def test_nan_check_finds_nan_in_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is not there")
    assert hooks.has_nan(torch.tensor([1.0, NAN]).bfloat16()) is True
    assert hooks.has_nan(torch.tensor([NAN], requires_grad=True)) is True
    assert hooks.has_nan(torch.zeros(2, device="meta")) is False


class Slow(dldist._backends.backend_base.Backend):
    """A backend in Python whose works end when the test ends them."""

    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.works = []

    def getBackendName(self):
        return "slow"

    def allreduce(self, tensors, opts):
        self.works.append(SlowWork())
        return self.works[-1]

    allreduce_coalesced = allreduce

    def all_gather_single(self, output, input, opts):
        return self.allreduce([input], opts)

    def barrier(self, opts):
        raise RuntimeError("there are no barriers here")

    def send(self, tensors, dst, tag):
        return object()  # a work that cannot be watched


class SlowWork(dldist._Work):
    def __init__(self):
        super().__init__()
        self.future = dldist.Future()

    def get_future(self):
        return self.future


@pytest.fixture
def slow(register):  # noqa: F811
    """Return the backend of the default world."""
    register("slow", lambda store, rank, size, timeout: Slow(rank, size))
    dldist.init_process_group("slow")
    yield dldist.get_backend_impl()
    if dldist.is_initialized():
        dldist.destroy_process_group()


def test_flight_recorder_hook_records_other_backends(slow):
    group = dldist.group.WORLD
    hook = hooks.FlightRecorderHook.attach(group)
    flight_recorder.reset()
    for x in (np.zeros((2, 3), "float32"), np.zeros(5)):
        dldist.all_reduce(x, async_op=True)
    first, second = flight_recorder.entries()
    assert (first["profiling_name"], first["input_sizes"], first["state"]) == ("gloo:all_reduce", [[2, 3]], "started")
    assert (first["collective_seq_id"], second["collective_seq_id"]) == (first["collective_seq_id"], first["collective_seq_id"] + 1)
    assert second["input_dtypes"] == ["Double"] and "test_c10d_hooks.py" in str(second["frames"])
    slow.works[0].future.set_result(None)
    slow.works[1].future.set_exception(ValueError("a cable is loose"))
    dldist.all_reduce_coalesced([np.zeros(1)], async_op=True)
    assert flight_recorder.entries().pop()["profiling_name"] == "gloo:allreduce_coalesced"
    first, second, *_ = flight_recorder.entries()
    assert first["state"] == "completed" and "a cable is loose" in second["error"]
    group.send([np.zeros(1)], 0, 0)
    assert flight_recorder.entries()[-1]["is_p2p"] and flight_recorder.entries()[-1]["state"] == "completed"
    with pytest.raises(RuntimeError, match="no barriers"):
        dldist.barrier()
    hook.remove()
    count = len(flight_recorder.entries())
    dldist.all_reduce(np.zeros(1), async_op=True)
    assert len(flight_recorder.entries()) == count and not group._has_hooks()


def test_flight_recorder_hook_has_the_ranks_of_a_subgroup(slow):
    group = dldist.group.WORLD
    with pytest.raises(ValueError, match="'global_ranks' has another length: got 2, expected 1"):
        hooks.FlightRecorderHook.attach(group, [3, 4])
    hook = hooks.FlightRecorderHook.attach(group, [5])
    flight_recorder.reset()
    dldist.all_reduce(np.zeros(1), async_op=True)
    found = json.loads(flight_recorder.dump_json())["pg_config"][group.group_name]
    assert found == {"name": group.group_name, "desc": "default_pg", "ranks": "[5]"}
    hook.remove()


def test_flight_recorder_hook_does_not_record_calls_of_dldist_twice():
    dldist.init_process_group()
    hook = hooks.FlightRecorderHook.attach(dldist.group.WORLD)
    flight_recorder.reset()
    dldist.all_reduce(np.zeros(3))
    assert [entry["profiling_name"] for entry in flight_recorder.entries()] == ["gloo:all_reduce"]
    hook.remove()
    dldist.destroy_process_group()


def test_flight_recorder_hook_does_not_record_unknown_operations():
    assert hooks.HookOpName.UNKNOWN not in hooks._RECORDED
