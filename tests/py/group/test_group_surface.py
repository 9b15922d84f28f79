"""Arguments, names and signatures of groups, as far as one process can test them."""

import array
import copy
import gc
import importlib.util
import inspect
import pickle
import sys
from datetime import timedelta

import dldist
import pytest
from type_stub import is_overload, runtime_shape, stub_classes, stub_functions, stub_shape

CLASSES = ["Group", "Work", "ReduceOp", "SharedArray", "Member"]
CONSTANTS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


@pytest.fixture
def group():
    with dldist.Group(None, 0, 1, timeout=5) as group:
        yield group


def ints(*values):
    return array.array("i", values)


# ---- names


@pytest.mark.parametrize("name", ["DistPeerLostError", "DistMismatchError", "DistAbortedError"])
def test_exceptions_of_groups_are_backend_errors_with_code_and_rank_attributes(name):
    error = getattr(dldist, name)
    assert issubclass(error, dldist.DistBackendError) and error.__module__ == "dldist" and error.__doc__
    assert issubclass(error, ConnectionError) == (name == "DistPeerLostError")
    instance = error("text")
    assert (instance.code, instance.rank, instance.host, instance.pid) == (None,) * 4


def test_classes_of_groups_are_public_names_of_dldist():
    for name in [*CLASSES, "Future", "P2POp"]:
        assert name in dldist.__all__
        assert getattr(dldist, name).__doc__
        assert getattr(dldist, name).__module__.startswith("dldist")


@pytest.mark.parametrize("kind", CLASSES)
def test_type_stub_of_groups_matches_the_extension(kind):
    """The stub must match the runtime, parameter by parameter."""
    cls, node = getattr(dldist, kind), stub_classes()[kind]
    for name, function in stub_functions(node.body).items():
        if is_overload(function) or function.decorator_list:
            assert hasattr(cls, name), name
            continue
        if name in ("__init__", "__new__"):
            assert runtime_shape(cls, False) == stub_shape(function, True)
        elif name not in ("__exit__", "__hash__", "__eq__", "__await__", "__buffer__", "__call__"):
            assert runtime_shape(getattr(cls, name), True) == stub_shape(function, True), name
    own = {name for name, value in vars(cls).items() if not name.startswith("__") and callable(value)}
    constants = {*CONSTANTS, "PREMUL_SUM", "RedOpType"}
    assert own - constants <= set(stub_functions(node.body)) | {"n_fields", "index", "count"}, kind


@pytest.mark.parametrize("kind", ["Group", "Work", "SharedArray"])
def test_every_public_member_of_the_group_classes_has_a_docstring(kind):
    for name, value in vars(getattr(dldist, kind)).items():
        if not name.startswith("__"):
            assert value.__doc__, name
            if callable(value):
                inspect.signature(value)


def test_groups_and_shared_arrays_reject_invalid_construction(group):
    with pytest.raises(TypeError):
        dldist.SharedArray()
    with pytest.raises(TypeError):
        pickle.dumps(group)
    with pytest.raises(RuntimeError, match="__init__"):
        dldist.Group.__new__(dldist.Group).barrier()
    assert "never opened" in repr(dldist.Group.__new__(dldist.Group))
    with pytest.raises(RuntimeError, match="already called"):
        group.__init__(None, 0, 1)


def test_split_of_a_group_subclass_returns_an_instance_of_the_subclass():
    class Mine(dldist.Group):
        def double(self, tensor):
            self.all_reduce(tensor)

    with Mine(None, 0, 1) as group:
        group.double(ints(1))
        group.extra = 1
        assert type(group.split([0])) is Mine


def test_import_of_dldist_does_not_import_asyncio_typing_or_threading():
    assert importlib.util.find_spec("dldist._base.callback_thread")
    import subprocess

    code = "import dldist, sys; print([n for n in ('asyncio', 'typing', 'threading') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                          capture_output=True, text=True, timeout=20)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


# ---- ReduceOp


def test_reduce_ops_are_distinct_and_named():
    ops = [getattr(dldist.ReduceOp, name) for name in CONSTANTS]
    assert len(set(ops)) == len(CONSTANTS)
    for name, op in zip(CONSTANTS, ops):
        assert op.name == name and op.factor is None and repr(op) == f"ReduceOp.{name}"
        assert dldist.ReduceOp(name.lower()) == op and op != name and op != 0
        assert pickle.loads(pickle.dumps(op)) == op == copy.deepcopy(op)
    scaled = dldist.ReduceOp.PREMUL_SUM(2.5)
    assert (scaled.name, scaled.factor, repr(scaled)) == ("PREMUL_SUM", 2.5, "ReduceOp.PREMUL_SUM(2.5)")
    assert dldist.ReduceOp("prod") == dldist.ReduceOp("PROD") == dldist.ReduceOp.PRODUCT
    assert scaled == dldist.ReduceOp("premul_sum", 2.5) != dldist.ReduceOp.PREMUL_SUM(2)
    assert pickle.loads(pickle.dumps(scaled)) == scaled and hash(copy.copy(scaled)) == hash(scaled)
    for arguments in (("unknown",), ("sum", 2.0), ("premul_sum",), ("premul_sum", "x"), (1,)):
        with pytest.raises((ValueError, TypeError)):
            dldist.ReduceOp(*arguments)
    with pytest.raises(TypeError):
        dldist.ReduceOp.PREMUL_SUM("x")


def test_functions_of_numpy_and_python_may_name_reductions():
    numpy = pytest.importorskip("numpy")
    functions = {numpy.add: "SUM", numpy.multiply: "PRODUCT", numpy.minimum: "MIN", numpy.maximum: "MAX", numpy.bitwise_and: "BAND",
                 numpy.bitwise_or: "BOR", numpy.bitwise_xor: "BXOR", sum: "SUM", min: "MIN", max: "MAX", numpy.sum: "SUM",
                 numpy.min: "MIN", numpy.max: "MAX", numpy.prod: "PRODUCT", numpy.mean: "AVG"}  # fmt: skip
    for op, name in (functions | {"mean": "AVG"}).items():
        assert dldist.ReduceOp(op) == getattr(dldist.ReduceOp, name)
        dldist.Group(None, 0, 1).all_reduce(array.array("i", [1]), op)
    for unknown in (numpy.hypot, numpy.median, len, numpy.ones(2).max, numpy.ones(2), "add", "land", lambda a, b: a, 3):
        with pytest.raises((TypeError, ValueError), match="dldist.functional"):
            dldist.Group(None, 0, 1).all_reduce(array.array("i", [1]), unknown)


def test_reduce_op_has_the_members_and_values_of_torchs():
    kind = dldist.ReduceOp
    for number, name in enumerate([*CONSTANTS, "PREMUL_SUM"]):
        op = getattr(kind.RedOpType, name)
        assert op is getattr(kind, name) is kind.__members__[name] and isinstance(op, kind)
        assert number == op.value == int(op) == hash(op) == range(10)[op]
        assert op.op is op and op.factor is None
    for op in (getattr(kind, name) for name in CONSTANTS):
        assert kind(op) == op and op == kind(op) and not op != kind(op)  # noqa: SIM202  both operators
        assert op != kind.PREMUL_SUM(1.0) and op != op.value and op != "abc" and kind(op) != op.name
        with pytest.raises(RuntimeError, match=f"Only PREMUL_SUM supports calling with a factor, got ReduceOp.{op.name}$"):
            op(2.0)
    assert list(kind.__members__) == [*CONSTANTS, "PREMUL_SUM"]


def test_premul_sum_can_be_used_in_a_call_only_with_a_factor():
    kind = dldist.ReduceOp
    scaled = kind.PREMUL_SUM(2.0)
    assert kind(scaled) == scaled and kind(scaled).factor == 2.0 and kind.RedOpType.PREMUL_SUM(factor=2.0) == scaled
    # Without a factor it denotes the kind: code that compares operations ignores the factor.
    assert scaled.op is kind.PREMUL_SUM and scaled == kind.PREMUL_SUM and hash(scaled) == hash(kind.PREMUL_SUM)
    assert kind.PREMUL_SUM(2.0) != kind.PREMUL_SUM(3.0) and kind.PREMUL_SUM != kind.SUM
    for op in (scaled, kind.PREMUL_SUM, kind.SUM, kind(kind.MAX)):
        pickled = [pickle.loads(pickle.dumps(op, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for same in (copy.copy(op), copy.deepcopy(op), *pickled):
            assert same == op and repr(same) == repr(op)
    for arguments in (("PREMUL_SUM",), (kind.PREMUL_SUM,)):
        with pytest.raises(RuntimeError, match="PREMUL_SUM needs a factor"):
            kind(*arguments)
    with pytest.raises(TypeError):
        scaled()


@pytest.mark.parametrize("factor", ["numpy.float64(2.5)", "numpy.array(2.5)", "torch.tensor(2.5)", "torch.tensor([2.5])"])
def test_factor_may_be_a_scalar_of_an_array_library(group, factor):
    library = pytest.importorskip(factor.partition(".")[0])
    op = dldist.ReduceOp.PREMUL_SUM(eval(factor, {library.__name__: library}))
    tensor = array.array("d", [2.0])
    group.all_reduce(tensor, op)
    assert op.factor == 2.5 and tensor[0] == 5.0


@pytest.mark.parametrize("op", ["sum", "Sum", dldist.ReduceOp.MAX, None])
def test_reduction_may_be_given_in_every_accepted_form(group, op):
    tensor = ints(3)
    group.all_reduce(tensor, op)
    group.all_reduce(tensor=tensor, op=op)
    assert tensor[0] == 3


@pytest.mark.parametrize(("op", "error"), [("unknown", ValueError), (1, TypeError), ("premul_sum", ValueError),
                                           (dldist.ReduceOp, TypeError), (dldist.ReduceOp.PREMUL_SUM, ValueError)])
def test_unknown_reductions_are_rejected(group, op, error):
    with pytest.raises(error, match="all_reduce"):
        group.all_reduce(ints(1), op)


def test_unsupported_reductions_of_a_dtype_are_rejected(group):
    with pytest.raises(ValueError, match="BAND.*float32"):
        group.all_reduce(array.array("f", [1.0]), "band")
    with pytest.raises(ValueError, match="AVG.*bool"):
        group.all_reduce(memoryview(bytearray(1)).cast("?"), dldist.ReduceOp.AVG)
    assert group.sequence == 0


# ---- arguments


def lists(group):
    one, two = ints(1), ints(1, 2)
    return {
        # list lengths
        "all_gather": (lambda: group.all_gather([one, one], one), "2 tensors, expected 1"),
        "all_to_all": (lambda: group.all_to_all([one], [one, one]), "input_list"),
        "reduce_scatter": (lambda: group.reduce_scatter(one, []), "input_list"),
        "coalesced": (lambda: group.all_reduce_coalesced([]), "empty"),
        "lists": (lambda: group.all_gather_coalesced([[one], [one]], [one]), "2 lists"),
        "inner": (lambda: group.all_gather_coalesced([[one]], [one, one]), "tensors"),
        # sizes
        "all_gather sizes": (lambda: group.all_gather([two], one), "4 bytes|8"),
        "all_gather_single": (lambda: group.all_gather_single(two, one), "output.*2 elements"),
        "scatter_single": (lambda: group.scatter_single(one, two), "input.*2 elements"),
        "reduce_scatter_single": (lambda: group.reduce_scatter_single(one, two), "input.*2 elements"),
        "all_to_all_single": (lambda: group.all_to_all_single(one, two), "same|bytes"),
        "out_splits": (lambda: group.all_to_all_single(two, two, [1], [2]), "Split sizes doesn't match total dim 0"),
        "in_splits": (lambda: group.all_to_all_single(two, two, [2], [3]), "input_split_sizes"),
        "count of splits": (lambda: group.all_to_all_single(two, two, [1, 1], None), "not equal to group size"),
        "negative": (lambda: group.all_to_all_single(two, two, [-2], None), "non-negative"),
        "huge": (lambda: group.all_to_all_single(two, two, [2**62], None), "64 bits|match"),
        # ranks
        "root": (lambda: group.broadcast(one, 1), "invalid root rank: got 1"),
        "negative root": (lambda: group.reduce(one, -1), "invalid root rank"),
        "dst": (lambda: group.send(one, 1), "dst.*1"),
        "src": (lambda: group.irecv(one, -1), "src.*-1"),
        "tag": (lambda: group.send(one, 0, -1), "tag"),
        # root arguments
        "gather": (lambda: group.gather(one), "output_list.*root"),
        "scatter": (lambda: group.scatter(one, None), "input_list.*root"),
        # dtypes
        "dtypes": (lambda: group.all_gather([one], array.array("f", [1.0])), "int32.*float32|float32.*int32"),
        "list dtypes": (lambda: group.all_reduce_coalesced([one, array.array("d", [1.0])]), r"tensors\[1\].*float64"),
        "read-only": (lambda: group.all_reduce(b"abcd"), "read-only"),
        "read-only output": (lambda: group.recv(b"abcd"), "read-only"),
        "timeout": (lambda: group.barrier(timeout=-1), "timeout"),
        "shape": (lambda: group.empty((1, -1)), "shape"),
        "dtype": (lambda: group.empty(1, "float31"), "float31"),
        "too large": (lambda: group.empty((2**40, 2**40)), "shape"),
        "split": (lambda: group.split([1]), "got 1"),
        "split without": (lambda: group.split([]), "split"),
        "p2p": (lambda: group.batch_isend_irecv([1]), "P2POp"),
        "p2p op": (lambda: dldist.P2POp("send", one, 0), "isend.*irecv"),
    }


def types(group):
    one = ints(1)
    return {
        "tensor": (lambda: group.all_reduce(1), "tensor.*int"),
        "list": (lambda: group.all_gather(one, one), "output_list.*list or tuple"),
        "in list": (lambda: group.all_gather([1], one), r"output_list\[0\]"),
        "lists": (lambda: group.all_gather_coalesced(1, [one]), "output_lists"),
        "splits": (lambda: group.all_to_all_single(one, one, 1), "output_split_sizes"),
        "float split": (lambda: group.all_to_all_single(one, one, [1.0]), "output_split_sizes.*float"),
        "root": (lambda: group.broadcast(one, 0.5), "root.*float"),
        "tag": (lambda: group.send(one, 0, "x"), "tag"),
        "timeout": (lambda: group.barrier(timeout="x"), "timeout"),
        "none": (lambda: group.all_reduce(), "missing required argument 'tensor'"),
        "many": (lambda: group.all_reduce(one, None, 1), "at most 2 positional"),
        "unknown": (lambda: group.all_reduce(one, unknown=1), "unexpected keyword argument 'unknown'"),
        "twice": (lambda: group.all_reduce(one, tensor=one), "multiple values"),
        "ranks": (lambda: group.split(0), "ranks"),
        "name": (lambda: dldist.Group(None, 0, 1, name=1), "name"),
    }


@pytest.mark.parametrize("name", lists(None))
def test_argument_with_a_wrong_value_is_rejected(group, name):
    call, text = lists(group)[name]
    with pytest.raises(ValueError, match=text):
        call()
    assert group.sequence == 0


@pytest.mark.parametrize("name", types(None))
def test_argument_of_a_wrong_type_is_rejected(group, name):
    call, text = types(group)[name]
    with pytest.raises(TypeError, match=text):
        call()
    assert group.sequence == 0


def test_failed_call_keeps_no_reference_to_its_tensors(group):
    """A call that fails before its start must keep no tensor."""
    tensor = bytearray(8)
    for call in (
        lambda: group.all_gather_single(tensor, tensor, timeout="x"),
        lambda: group.all_gather([tensor, tensor], tensor, async_op=True),
        lambda: group.all_reduce_coalesced([tensor, ints(1)], async_op=True),
        lambda: group.isend(tensor, 5),
        lambda: group.all_to_all_single(tensor, tensor, [1, 2], async_op=True),
    ):
        with pytest.raises((ValueError, TypeError)):
            call()
        tensor.append(0)


def test_async_op_accepts_any_object_with_a_truth_value(group):
    assert group.barrier(async_op=False) is None
    assert group.barrier(async_op=0) is None
    assert group.barrier(async_op=1).wait()
    assert group.barrier(async_op=None) is None


def test_list_of_tensors_may_change_while_a_call_reads_it(group):
    """Producers run Python code, which may change the list; calls must survive it."""

    class Clearing:
        def __dlpack__(self, **_):
            items.clear()
            gc.collect()
            raise LookupError("nasty")

        def __dlpack_device__(self):
            return 1, 0

    items = [ints(1), Clearing()]
    with pytest.raises((LookupError, ValueError)):
        group.all_reduce_coalesced(items)


# ---- settings of a group


def test_group_has_a_settable_timeout_and_a_name():
    with dldist.Group(None, 0, 1) as group:
        assert group.timeout == timedelta(minutes=30) and group.name == "default"
        group.timeout = 1.5
        assert group.timeout == timedelta(seconds=1.5)
        group.timeout = timedelta(seconds=3)
        assert group.timeout == timedelta(seconds=3)
        with pytest.raises(ValueError):
            group.timeout = -1
        with pytest.raises(AttributeError):
            del group.timeout
        with pytest.raises(AttributeError):
            group.rank = 1
        assert (group.rank, group.size, group.is_closed) == (0, 1, False)
    assert group.is_closed
    with dldist.Group(None, 0, 1, timeout=timedelta(seconds=7), name="näme") as group:
        assert group.name == "näme" and group.timeout == timedelta(seconds=7)


def test_sequence_number_of_a_group_counts_collectives_only(group):
    assert group.sequence == 0
    group.barrier()
    group.send(ints(1), 0, 1)
    group.recv(ints(1), 0, 1)
    group.all_reduce(ints(1))
    assert group.sequence == 2


def test_store_of_a_group_is_not_freed_before_the_group():
    """The server of a store made for the group must live as long as the group."""
    import weakref

    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    reference = weakref.ref(store)
    group = dldist.Group(store, 0, 1)
    del store
    assert reference() is not None
    group.close()
    del group
    gc.collect()
    assert reference() is None


# ---- memory


def test_shared_array_is_a_writable_buffer(group):
    shared = group.empty((2, 3), "int16")
    view = memoryview(shared)
    assert (view.format, view.itemsize, view.shape, view.strides, view.readonly) == ("h", 2, (2, 3), (6, 2), False)
    assert bytes(shared) == b"\0" * 12 and shared.nbytes == 12
    group.close()
    view[0, 0] = 5
    del shared
    assert view[0, 0] == 5


def test_numpy_and_dlpack_share_the_memory_of_a_shared_array(group):
    numpy = pytest.importorskip("numpy")
    shared = group.empty((2, 3), numpy.dtype("float64"))
    first, second = numpy.asarray(shared), numpy.from_dlpack(shared)
    first[1, 2] = 7
    assert second[1, 2] == 7 and second.shape == (2, 3)
    with pytest.raises(BufferError):
        shared.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        shared.__dlpack__(stream=1)
    with pytest.raises(BufferError):
        shared.__dlpack__(dl_device=(2, 0))


@pytest.mark.torch
def test_torch_shares_the_memory_of_a_shared_array(group):
    import torch

    for dtype in (torch.bfloat16, torch.float8_e5m2, torch.float32, torch.bool, torch.complex64):
        shared = group.empty(4, dtype)
        tensor = torch.from_dlpack(shared)
        assert tensor.dtype == dtype and tensor.shape == (4,)
        group.broadcast(tensor, 0)
        group.broadcast(shared, 0)
        del shared
        assert tensor.to(torch.complex64).sum() == 0


def test_bfloat16_cannot_be_exported_as_a_buffer(group):
    shared = group.empty(4, "bfloat16")
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(shared)


@pytest.mark.torch
def test_meta_tensors_are_rejected(group):
    import torch

    with pytest.raises(ValueError, match="all_reduce"):
        group.all_reduce(torch.ones(2, device="meta"))
