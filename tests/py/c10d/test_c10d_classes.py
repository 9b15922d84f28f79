"""c10d's small types: options, enums, the debug level, the base class of backends, works made in
Python, hooks."""

import copy
import inspect
import pickle
import subprocess
import sys
from datetime import timedelta

import dldist
import numpy as np
import pytest
from dldist._backends import backend_base
from dldist._backends.backend_base import Backend
from dldist._base import options, works
from dldist._base.options import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

SUM, MAX = dldist.ReduceOp.SUM, dldist.ReduceOp.MAX
UNSET = timedelta(milliseconds=-1)
THREE = timedelta(seconds=3)

ALL_OPTIONS = {
    options.AllToAllOptions: {},
    options.AllgatherOptions: {},
    options.AllreduceCoalescedOptions: {"reduceOp": SUM},
    options.AllreduceOptions: {"reduceOp": SUM},
    options.BarrierOptions: {"device_ids": [], "device": None},
    options.BroadcastOptions: {"rootRank": 0, "rootTensor": 0},
    options.GatherOptions: {"rootRank": 0},
    options.ReconfigureOptions: {"uuid": 0, "handles": [], "hints": {}},
    options.ReduceOptions: {"reduceOp": SUM, "rootRank": 0, "rootTensor": 0},
    options.ReduceScatterOptions: {"reduceOp": SUM},
    options.ScatterOptions: {"rootRank": 0},
}


# --- options ---


@pytest.mark.parametrize("kind", ALL_OPTIONS, ids=lambda kind: kind.__name__)
def test_option_objects_have_the_default_values_of_torch(kind):
    opts = kind()
    expected = {"timeout": UNSET, "asyncOp": True, **ALL_OPTIONS[kind]}
    assert {name: getattr(opts, name) for name in expected} == expected
    assert options.timeout_of(opts) is None
    assert repr(opts).startswith(f"{kind.__name__}(") and "asyncOp=True" in repr(opts)


@pytest.mark.parametrize("kind", ALL_OPTIONS, ids=lambda kind: kind.__name__)
def test_option_objects_accept_no_arguments_and_no_other_attributes(kind):
    with pytest.raises(AttributeError):
        kind().rootrank = 1
    with pytest.raises(TypeError):
        kind(timeout=THREE)


def test_option_objects_are_independent_and_can_be_copied():
    first = BarrierOptions()
    first.device_ids.append(1)
    assert BarrierOptions().device_ids == []
    first.timeout = THREE
    for copied in (copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert (copied.timeout, copied.device_ids) == (THREE, [1])
    assert options.timeout_of(copied) == THREE


@pytest.mark.parametrize(
    ("kind", "name", "value", "reads_back"),
    [
        (AllreduceOptions, "timeout", 2.5, timedelta(seconds=2.5)),
        (AllreduceOptions, "timeout", 3, TypeError),
        (AllreduceOptions, "timeout", None, TypeError),
        (AllreduceOptions, "reduceOp", MAX, MAX),
        (AllreduceOptions, "reduceOp", "sum", TypeError),
        (AllreduceOptions, "reduceOp", 0, TypeError),
        (AllreduceOptions, "asyncOp", 0, False),
        (BroadcastOptions, "rootRank", True, 1),
        (BroadcastOptions, "rootRank", 1.0, TypeError),
        (BroadcastOptions, "rootRank", "1", TypeError),
        (BarrierOptions, "device_ids", (0, 1), [0, 1]),
        (BarrierOptions, "device_ids", 1, TypeError),
        (BarrierOptions, "device_ids", ["a"], TypeError),
        (BarrierOptions, "device", "cpu", "cpu"),
    ],
)
def test_option_objects_convert_or_reject_values_by_type(kind, name, value, reads_back):
    opts = kind()
    if reads_back is TypeError:
        with pytest.raises(TypeError, match=rf"{kind.__name__}\.{name}"):
            setattr(opts, name, value)
        return
    setattr(opts, name, value)
    assert getattr(opts, name) == reads_back
    assert type(getattr(opts, name)) is type(reads_back)


# --- enums ---


NO_NUMBERS = ("OFF", None, 1.5, b"0")


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (options.WorkResult, {"SUCCESS": 0, "TIMEOUT": 1, "COMM_ERROR": 2, "UNKNOWN": 100}),
        (options.ErrorType, {"SUCCESS": 0, "TIMEOUT": 1, "COMM_ERROR": 2, "REMOTE_ERROR": 3}),
        (options.DebugLevel, {"OFF": 0, "INFO": 1, "DETAIL": 2}),
        (options.BuiltinCommHookType, {"ALLREDUCE": 1, "FP16_COMPRESS": 2}),
        (
            options.BackendType,
            {"UNDEFINED": 0, "GLOO": 1, "NCCL": 2, "UCC": 3, "MPI": 4, "XCCL": 5, "CUSTOM": 6},
        ),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_enums_have_their_members_and_reject_other_values(kind, members):
    assert {name: int(member) for name, member in kind.__members__.items()} == members
    for name, value in members.items():
        member = getattr(kind, name)
        assert (member.name, member.value, hash(member)) == (name, value, value)
        assert kind(value) is member
        assert repr(member) == f"<{kind.__name__}.{name}: {value}>" and str(member) == f"{kind.__name__}.{name}"
        assert pickle.loads(pickle.dumps(member)) is member and copy.deepcopy(member) is member
        assert (member == value) is (kind is options.BackendType)
        assert [other for other in kind.__members__.values() if other == member] == [member]
        with pytest.raises(AttributeError):
            member.value = 3
    assert kind(np.int64(value)) is member
    with pytest.raises(ValueError, match=f"77 is not a valid {kind.__name__}"):
        kind(77)
    for wrong in NO_NUMBERS:
        with pytest.raises(TypeError, match=rf"{kind.__name__}\(\): argument 'value' must be int, not {type(wrong).__name__}"):
            kind(wrong)


def test_enums_have_the_members_and_values_of_torchs():
    c10d = pytest.importorskip("torch._C._distributed_c10d", reason="torch is not there to compare with")
    for name in ("OpType", "WorkResult", "ErrorType", "DebugLevel", "BuiltinCommHookType"):
        dldist_members = {key: int(member) for key, member in getattr(options, name).__members__.items()}
        torch_members = {key: int(member) for key, member in getattr(c10d, name).__members__.items()}
        assert torch_members.items() <= dldist_members.items()
        for wrong in NO_NUMBERS:
            with pytest.raises(TypeError):
                getattr(c10d, name)(wrong)


def test_members_of_different_enums_are_not_equal():
    assert options.WorkResult.SUCCESS != options.ErrorType.SUCCESS
    assert len({options.WorkResult.SUCCESS, options.ErrorType.SUCCESS}) == 2


# --- the debug level ---


@pytest.mark.parametrize(
    ("value", "level"),
    [(None, "OFF"), ("", "OFF"), ("off", "OFF"), ("Info", "INFO"), ("DETAIL", "DETAIL"), ("2", None), ("debug", None)],
)
def test_debug_level_is_read_once_from_the_environment(monkeypatch, value, level):
    monkeypatch.setattr(options, "_debug_level", None)
    if value is None:
        monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    else:
        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", value)
    if level is None:
        with pytest.raises(ValueError, match=r"TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL\."):
            options.get_debug_level()
        return
    assert options.get_debug_level() is options.DebugLevel.__members__[level]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "unknown")  # read once
    assert options.get_debug_level().name == level


def test_debug_level_can_be_set(monkeypatch):
    monkeypatch.setattr(options, "_debug_level", None)
    options.set_debug_level(options.DebugLevel.DETAIL)
    assert options.get_debug_level() is options.DebugLevel.DETAIL
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "info")
    options.set_debug_level_from_env()
    assert options.get_debug_level() is options.DebugLevel.INFO
    with pytest.raises(TypeError):
        options.set_debug_level(2)


# --- the two forms of every call ---


class Recorder(Backend):
    """A backend that returns its arguments."""

    def _perform(self, method, *arguments):
        *tensors, opts = arguments
        fields = {name: getattr(opts, name) for name in ("reduceOp", "rootRank") if hasattr(opts, name)}
        return method, tensors, type(opts), fields, opts.timeout


X, Y, Z = (np.zeros(1) for _ in range(3))


def same(seen, expected):
    """Compare nested lists by the identity of their arrays."""
    if isinstance(expected, (list, tuple)):
        return isinstance(seen, (list, tuple)) and len(seen) == len(expected) and all(map(same, seen, expected))
    return seen is expected if isinstance(expected, np.ndarray) else seen == expected


FORMS = [
    ("allreduce", ([X],), {}, [[X]], AllreduceOptions, {"reduceOp": SUM}, UNSET),
    ("allreduce", (X,), {}, [[X]], AllreduceOptions, {"reduceOp": SUM}, UNSET),
    ("allreduce", (X, MAX, THREE), {}, [[X]], AllreduceOptions, {"reduceOp": MAX}, THREE),
    ("allreduce", ([X, Y], MAX), {}, [[X, Y]], AllreduceOptions, {"reduceOp": MAX}, UNSET),
    ("allreduce", (), {"tensor": X, "op": MAX}, [[X]], AllreduceOptions, {"reduceOp": MAX}, UNSET),
    ("allreduce", (), {"tensors": [X], "timeout": 3.0}, [[X]], AllreduceOptions, {"reduceOp": SUM}, THREE),
    ("broadcast", ([X],), {}, [[X]], BroadcastOptions, {"rootRank": 0}, UNSET),
    ("broadcast", (X, 2), {}, [[X]], BroadcastOptions, {"rootRank": 2}, UNSET),
    ("broadcast", (), {"tensor": X, "root": 2, "timeout": THREE}, [[X]], BroadcastOptions, {"rootRank": 2}, THREE),
    ("reduce", (X, 2, MAX, THREE), {}, [[X]], ReduceOptions, {"rootRank": 2, "reduceOp": MAX}, THREE),
    ("reduce", (), {"tensor": X, "root": 1}, [[X]], ReduceOptions, {"rootRank": 1, "reduceOp": SUM}, UNSET),
    ("allgather", ([[Y, Z]], [X]), {}, [[[Y, Z]], [X]], AllgatherOptions, {}, UNSET),
    ("allgather", ([Y, Z], X, THREE), {}, [[[Y, Z]], [X]], AllgatherOptions, {}, THREE),
    ("allgather", ([Y, Z],), {"input_tensor": X}, [[[Y, Z]], [X]], AllgatherOptions, {}, UNSET),
    ("gather", ([Y, Z], X, 1), {}, [[[Y, Z]], [X]], GatherOptions, {"rootRank": 1}, UNSET),
    ("gather", ([], X, 1, THREE), {}, [[], [X]], GatherOptions, {"rootRank": 1}, THREE),
    ("gather", ([],), {"input_tensor": X, "root": 1}, [[], [X]], GatherOptions, {"rootRank": 1}, UNSET),
    ("scatter", (X, [Y, Z], 1), {}, [[X], [[Y, Z]]], ScatterOptions, {"rootRank": 1}, UNSET),
    ("scatter", (), {"output_tensor": X, "input_tensors": [], "root": 1}, [[X], []], ScatterOptions, {"rootRank": 1}, UNSET),
    ("reduce_scatter", (X, [Y, Z], MAX), {}, [[X], [[Y, Z]]], ReduceScatterOptions, {"reduceOp": MAX}, UNSET),
    ("reduce_scatter", (), {"output": X, "input": [Y, Z]}, [[X], [[Y, Z]]], ReduceScatterOptions, {"reduceOp": SUM}, UNSET),
    ("alltoall_base", (X, Y, [1], [1], THREE), {}, [X, Y, [1], [1]], AllToAllOptions, {}, THREE),
    ("alltoall_base", (), {"output": X, "input": Y}, [X, Y, [], []], AllToAllOptions, {}, UNSET),
    ("alltoall", ([X], [Y]), {}, [[X], [Y]], AllToAllOptions, {}, UNSET),
    ("_allgather_base", (X, Y), {}, [X, Y], AllgatherOptions, {}, UNSET),
    ("_reduce_scatter_base", (X, Y), {"op": MAX}, [X, Y], ReduceScatterOptions, {"reduceOp": MAX}, UNSET),
    ("gather_into_tensor", (X, Y, 1), {}, [X, Y], GatherOptions, {"rootRank": 1}, UNSET),
    ("barrier", (), {}, [], BarrierOptions, {}, UNSET),
    ("barrier", (), {"timeout": THREE}, [], BarrierOptions, {}, THREE),
]
CANONICAL = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "gather_into_tensor": "gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}


@pytest.mark.parametrize(("method", "args", "kwargs", "tensors", "kind", "fields", "timeout"), FORMS)
def test_all_argument_forms_of_a_backend_call_are_equivalent(method, args, kwargs, tensors, kind, fields, timeout):
    done = getattr(Recorder(0, 3), method)(*args, **kwargs)
    assert (done[0], done[2], done[4]) == (CANONICAL.get(method, method), kind, timeout)
    assert same(done[1], tensors)
    assert {name: value for name, value in done[3].items() if name in fields} == fields


@pytest.mark.parametrize(
    ("method", "args", "kwargs", "text"),
    [
        ("allreduce", (), {}, "expected one of tensors, tensor, got none"),
        ("allreduce", ([X],), {"tensor": X}, "got tensors and tensor"),
        ("allreduce", (X, "sum"), {}, "'op'.*must be ReduceOp, not str"),
        ("allreduce", (X, AllgatherOptions()), {}, "'op'.*not AllgatherOptions"),
        ("allreduce", ([X], AllreduceOptions()), {"op": MAX}, "got both op and AllreduceOptions"),
        ("allreduce", (X, MAX), {"op": MAX}, "'op': got 2 values, expected 1"),
        ("broadcast", (X, 1.5), {}, "'root'.*must be int, not float"),
        ("broadcast", (X, 1, 5), {}, "'timeout'.*must be timedelta, not int"),
        ("allgather", (Y, X), {}, "'output_tensors' must be a list, not ndarray"),
        ("barrier", (AllreduceOptions(),), {}, "'timeout'.*not AllreduceOptions"),
    ],
)
def test_arguments_that_match_no_form_of_a_backend_call_are_rejected(method, args, kwargs, text):
    with pytest.raises(TypeError, match=rf"{method}\(\): incompatible function arguments.*{text}"):
        getattr(Recorder(0, 3), method)(*args, **kwargs)


def test_option_object_is_passed_to_the_backend_unchanged():
    given = AllreduceOptions()

    class Checking(Backend):
        def _run_allreduce(self, tensors, opts):
            assert opts is given
            return tensors

    tensors = [X]
    assert Checking(0, 1).allreduce(tensors, given) is tensors
    assert Checking(0, 1).allreduce(tensors, opts=given) is tensors


# --- the base class ---

COLLECTIVES = sorted(
    name
    for name, member in vars(backend_base.LowLevelCalls).items()
    if inspect.isroutine(member) and name != "_perform"
)
ARGUMENTS = {"barrier": (), "monitored_barrier": (), "send": ([X], 0, 0), "recv": ([X], 0, 0), "recv_anysource": ([X], 0)}
ARGUMENTS |= dict.fromkeys(
    ("allreduce", "allreduce_coalesced", "allreduce_sparse", "broadcast", "exscan", "reduce", "scan"),
    ([X],),
)


class Named(Backend):
    def getBackendName(self):
        return "mine"


@pytest.mark.parametrize("method", COLLECTIVES)
def test_calling_an_operation_that_a_backend_lacks_is_an_error(method):
    name = CANONICAL.get(method, method)
    with pytest.raises(RuntimeError, match=f"^Backend mine does not support {name}$"):
        getattr(Named(0, 2), method)(*ARGUMENTS.get(method, ([Y], [X])))


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("split", (None, [0], None)),
        ("merge", (None, None, 0, 2)),
        ("shrink", ([1],)),
        ("reconfigure", (None,)),
        ("get_reconfigure_handle", ()),
        ("new_window", ()),
        ("suspend", ()),
        ("resume", ()),
        ("memory_stats", ()),
        ("get_error", ()),
        ("eager_connect_single_device", ("cpu",)),
        ("set_timeout", (THREE,)),
        ("_wait_for_pending_works", ()),
    ],
)
def test_calling_a_lifecycle_method_that_a_backend_lacks_is_an_error(method, args):
    with pytest.raises(RuntimeError, match=f"^Backend mine does not support {method}$"):
        getattr(Named(0, 2), method)(*args)


def test_unimplemented_backend_calls_raise_the_error_text_of_torch():
    backend = Named(0, 2)
    for call, text in [
        (backend._start_coalescing, "Backend mine does not implement startCoalescing"),
        (backend._end_coalescing, "Backend mine does not implement endCoalescing"),
        (backend._get_sequence_number_for_group, "Backend mine does not yet support sequence numbers."),
    ]:
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value) == text


def test_backend_has_a_rank_size_and_name():
    backend = Named(1, 2)
    assert (backend.rank(), backend.size(), backend.name(), backend._get_backend_name()) == (1, 2, "mine", "mine")
    assert backend.bound_device_id is None and not backend.supports_splitting and not backend.supports_coalescing
    assert backend.shutdown() is None and backend.abort() is None
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="'rank' is out of range: got "):
            Backend(rank, size)


def test_signatures_of_backend_calls_are_visible_to_inspect():
    assert list(inspect.signature(Backend.broadcast).parameters) == ["self", "tensors", "opts", "timeout", "tensor", "root"]
    assert list(inspect.signature(Backend.send).parameters) == ["self", "tensors", "dstRank", "tag"]


def test_backend_options_have_defaults_and_a_constant_backend():
    opts = Backend.Options("mine")
    assert (opts.backend, opts._timeout) == ("mine", timedelta(seconds=1800))
    assert (opts.global_ranks_in_group, opts.group_name, opts.enable_reconfigure) == ([], "", False)
    assert Backend.Options("mine", timeout=THREE)._timeout == THREE
    with pytest.raises(AttributeError):
        opts.backend = "yours"
    with pytest.raises(TypeError):
        Backend.Options("mine", 5)


def test_set_timeout_of_a_backend_changes_its_options():
    class WithOptions(Named):
        def __init__(self):
            super().__init__(0, 1)
            self._options = Backend.Options("mine")

    backend = WithOptions()
    backend.set_timeout(THREE)
    assert backend.options._timeout == THREE
    with pytest.raises(RuntimeError, match="getBackendOptions"):
        _ = Named(0, 1).options


PAIRS = [(old, new) for old, new in CANONICAL.items()]


@pytest.mark.parametrize(("old", "new"), PAIRS)
@pytest.mark.parametrize("overridden", ["old", "new", "both"])
def test_backend_may_override_the_old_or_the_new_name_of_a_call(old, new, overridden):
    names = {"old": [old], "new": [new], "both": [old, new]}[overridden]

    def maker(name):
        return lambda self, *args: (name, args)

    kind = type("Mine", (Named,), {name: maker(name) for name in names})
    for called in (old, new):
        name, args = getattr(kind(0, 2), called)(X, Y)
        assert name == (called if called in names else names[0])
        assert args[0] is X and args[1] is Y
        if called not in names:
            assert args[-1] is not None  # options exist by now


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_overridden_backend_call_may_call_super_by_either_name(old, new):
    for names in ([old], [new], [old, new]):
        space = {}
        for name in names:
            space[name] = lambda self, *args, _name=name: getattr(Named, _name)(self, *args)
        kind = type("Mine", (Named,), space)
        for called in (old, new):
            with pytest.raises(RuntimeError, match=f"does not support {new}"):
                getattr(kind(0, 2), called)(X, Y)


def test_abort_hook_of_a_backend_is_called_and_can_be_replaced(monkeypatch):
    call_log, unraisable = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: unraisable.append(raised.exc_value))
    backend = Named(0, 1)
    backend.register_abort_hook(1, lambda: call_log.append("replaced"))
    backend.register_abort_hook(1, lambda: call_log.append("first"))
    backend.register_abort_hook(2, lambda: 1 / 0)
    backend.register_abort_hook(3, lambda: call_log.append("third"))
    backend.register_abort_hook(4, lambda: call_log.append("gone"))
    backend.unregister_abort_hook(4)
    backend.unregister_abort_hook(99)
    backend.abort()
    assert call_log == ["first", "third"]
    assert [type(error) for error in unraisable] == [ZeroDivisionError]
    with pytest.raises(TypeError, match="must be callable"):
        backend.register_abort_hook(1, None)


# --- works ---


def test_fake_work_counts_as_completed():
    fake = works.FakeWork()
    assert isinstance(fake, dldist.Work)
    assert fake.wait() is True and fake.wait(THREE) is True
    assert fake.is_completed() is True and fake.is_success() is True and fake.exception() is None
    assert fake.seq_id == -1 and fake.get_future().wait() is None
    with pytest.raises(RuntimeError, match="has no output"):
        fake.result()
    outputs = [object(), object()]
    assert works.FakeWork(outputs).result() == works.FakeWork(outputs).get_future().wait() == outputs


def test_wait_of_a_callback_work_calls_its_callback():
    asked, answers = [], [False, True, True]
    created = works.PythonCallbackWork(lambda timeout: asked.append(timeout) or answers.pop(0))
    assert isinstance(created, dldist.Work) and not created.is_completed()
    assert created.wait(2.0) is False and not created.is_completed() and not created.get_future().done()
    assert created.wait() is True and created.is_completed() and created.is_success()
    assert created.get_future().value() == []
    assert created.wait(THREE) is True
    assert asked == [timedelta(seconds=2), timedelta(0), THREE]


def test_wait_of_a_callback_work_raises_the_error_of_its_callback():
    def fail(_):
        raise ValueError("mine")

    created = works.PythonCallbackWork(fail)
    with pytest.raises(ValueError, match="mine"):
        created.wait()
    assert created.is_completed() and not created.is_success() and str(created.exception()) == "mine"
    with pytest.raises(ValueError, match="mine"):
        created.get_future().wait()
    with pytest.raises(TypeError, match="must be callable"):
        works.PythonCallbackWork(3)


@pytest.mark.parametrize("timeout", [-1, float("nan"), timedelta(seconds=-1)])
def test_future_rejects_a_negative_timeout(timeout):
    with pytest.raises(ValueError, match="is not a valid time"):
        dldist.Future().wait(timeout)


def test_work_completes_with_its_future():
    future = dldist.Future()
    created = works._create_work_from_future(future)
    assert not created.is_completed() and created.get_future() is future
    with pytest.raises(dldist.DistTimeoutError):
        created.wait(timedelta(milliseconds=20))
    future.set_result([X])
    assert created.is_completed() and created.is_success() and created.wait() is True and created.result()[0] is X

    future = dldist.Future()
    created = works._create_work_from_future(future)
    future.set_exception(ValueError("mine"))
    assert created.is_completed() and not created.is_success() and str(created.exception()) == "mine"
    with pytest.raises(ValueError, match="mine"):
        created.wait()
    with pytest.raises(TypeError):
        works._create_work_from_future(3)


@pytest.mark.parametrize(
    "name", ["is_success", "exception", "wait", "source_rank", "_source_rank", "result", "synchronize", "get_future"]
)
def test_illegal_work_rejects_every_call(name):
    illegal = works._IllegalWork()
    assert isinstance(illegal, dldist.Work)
    with pytest.raises(ValueError, match=f"^Illegal to call {name} on IllegalWork object$"):
        getattr(illegal, name)()


# --- the import ---


def test_backend_modules_import_no_heavy_modules():
    code = (
        "import sys; before = set(sys.modules); import dldist._backends.recorded_calls, dldist._base.future\n"
        "import dldist._backends.backend_base, dldist._base.options, dldist._base.works\n"
        "print(sorted({'dataclasses', 'inspect', 'numpy', 'json'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
