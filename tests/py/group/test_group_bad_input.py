"""Every method of a group must reject invalid arguments with c10d's exception type, and the group
stay usable.

c10d raises ValueError for some arguments and RuntimeError for others; dldist's errors are both.
Arguments that are not tensors, lists or numbers raise TypeError in both.
"""

import array
import ctypes

import dldist
import pytest
from pairs import on_both, open_pair

SIZE = 2
NAN = float("nan")
# Objects that are not tensors.
NO_TENSORS = {"None": None, "int": 1, "float": 1.5, "list": [1], "str": "abcd", "object": object(), "class": dldist.Group}
NO_LISTS = {"int": 1, "str": "ab", "object": object()}
NO_RANKS = {"float": 0.0, "str": "0", "list": [0]}
BAD_RANKS = {"size": SIZE, "-1": -1, "huge": 2**40, "-huge": -(2**40)}


def ints(*values):
    return array.array("i", values)


def floats(*values):
    return array.array("f", values)


# The methods with a tensor argument: (call with the tensor, True if the tensor is written).
TENSORS = {
    "all_reduce": (lambda g, x: g.all_reduce(x), True),
    "all_reduce_coalesced": (lambda g, x: g.all_reduce_coalesced([ints(1), x]), True),
    "broadcast": (lambda g, x: g.broadcast(x, 1 - g.rank), True),
    "broadcast of the root": (lambda g, x: g.broadcast(x, g.rank), None),
    "reduce": (lambda g, x: g.reduce(x, 1 - g.rank), None),
    "reduce to the root": (lambda g, x: g.reduce(x, g.rank), True),
    "all_gather": (lambda g, x: g.all_gather([ints(0), ints(0)], x), False),
    "all_gather's output": (lambda g, x: g.all_gather([ints(0), x], ints(0)), True),
    "all_gather_single": (lambda g, x: g.all_gather_single(ints(0, 0), x), False),
    "all_gather_single's output": (lambda g, x: g.all_gather_single(x, ints(0)), True),
    "all_gather_coalesced": (lambda g, x: g.all_gather_coalesced([[ints(0)], [ints(0)]], [x]), False),
    "all_gather_coalesced's output": (lambda g, x: g.all_gather_coalesced([[ints(0)], [x]], [ints(0)]), True),
    "all_gather_single_coalesced": (lambda g, x: g.all_gather_single_coalesced([ints(0, 0)], [x]), False),
    "gather": (lambda g, x: g.gather(x, [ints(0), ints(0)], g.rank), False),
    "gather's output": (lambda g, x: g.gather(ints(0), [x, ints(0)], g.rank), True),
    "gather_single": (lambda g, x: g.gather_single(x, ints(0, 0), g.rank), False),
    "gather_single's output": (lambda g, x: g.gather_single(ints(0), x, g.rank), None),
    "scatter": (lambda g, x: g.scatter(x, [ints(0), ints(0)], g.rank), True),
    "scatter's input": (lambda g, x: g.scatter(ints(0), [ints(0), x], g.rank), False),
    "scatter_single": (lambda g, x: g.scatter_single(x, ints(0, 0), g.rank), True),
    "reduce_scatter": (lambda g, x: g.reduce_scatter(x, [ints(0), ints(0)]), True),
    "reduce_scatter's input": (lambda g, x: g.reduce_scatter(ints(0), [x, ints(0)]), False),
    "reduce_scatter_single": (lambda g, x: g.reduce_scatter_single(x, ints(0, 0)), True),
    "reduce_scatter_single's input": (lambda g, x: g.reduce_scatter_single(ints(0), x), False),
    "reduce_scatter_coalesced": (lambda g, x: g.reduce_scatter_coalesced([x], [ints(0, 0)]), True),
    "all_to_all": (lambda g, x: g.all_to_all([x, ints(0)], [ints(0), ints(0)]), True),
    "all_to_all's input": (lambda g, x: g.all_to_all([ints(0), ints(0)], [ints(0), x]), False),
    "all_to_all_single": (lambda g, x: g.all_to_all_single(x, ints(0, 0)), True),
    "all_to_all_single's input": (lambda g, x: g.all_to_all_single(ints(0, 0), x), False),
    "send": (lambda g, x: g.send(x, 1 - g.rank), None),
    "isend": (lambda g, x: g.isend(x, 1 - g.rank), None),
    "recv": (lambda g, x: g.recv(x, 1 - g.rank), True),
    "irecv": (lambda g, x: g.irecv(x), True),
    "batch": (lambda g, x: g.batch_isend_irecv([dldist.P2POp("irecv", x, None)]), True),
}
# Methods that require one dtype for all tensors of a call. Messages and single tensors are exempt.
EXEMPT = ("all_reduce", "broadcast", "reduce", "send", "isend", "recv", "irecv", "batch")
MIXED = [name for name in TENSORS if name.partition("'")[0].partition(" ")[0] not in EXEMPT]
LISTS = {
    "all_reduce_coalesced": lambda g, x: g.all_reduce_coalesced(x),
    "all_gather": lambda g, x: g.all_gather(x, ints(0)),
    "all_gather_coalesced": lambda g, x: g.all_gather_coalesced(x, [ints(0)]),
    "all_gather_coalesced's inner": lambda g, x: g.all_gather_coalesced([[ints(0)], x], [ints(0)]),
    "all_gather_coalesced's input": lambda g, x: g.all_gather_coalesced([[ints(0)], [ints(0)]], x),
    "all_gather_single_coalesced": lambda g, x: g.all_gather_single_coalesced(x, [ints(0)]),
    "gather": lambda g, x: g.gather(ints(0), x, g.rank),
    "scatter": lambda g, x: g.scatter(ints(0), x, g.rank),
    "reduce_scatter": lambda g, x: g.reduce_scatter(ints(0), x),
    "reduce_scatter_coalesced": lambda g, x: g.reduce_scatter_coalesced(x, [ints(0, 0)]),
    "all_to_all": lambda g, x: g.all_to_all(x, [ints(0), ints(0)]),
    "all_to_all's input": lambda g, x: g.all_to_all([ints(0), ints(0)], x),
}
# An empty list instead of one tensor per rank, and lists with one too many.
BAD_LISTS = {"empty": [], "too long": [ints(0)] * 3, "tuple too long": (ints(0),) * 3, "holds None": [ints(0), None]}
RANKS = {
    "broadcast": lambda g, r: g.broadcast(ints(0), r),
    "reduce": lambda g, r: g.reduce(ints(0), r),
    "gather": lambda g, r: g.gather(ints(0), None, r),
    "gather_single": lambda g, r: g.gather_single(ints(0), None, r),
    "scatter": lambda g, r: g.scatter(ints(0), None, r),
    "scatter_single": lambda g, r: g.scatter_single(ints(0), None, r),
    "send": lambda g, r: g.send(ints(0), r),
    "isend": lambda g, r: g.isend(ints(0), r),
    "recv": lambda g, r: g.recv(ints(0), r),
    "irecv": lambda g, r: g.irecv(ints(0), r),
    "split": lambda g, r: g.split([0, r]),
}
TAGS = {
    "send": lambda g, t: g.send(ints(0), 0, t),
    "isend": lambda g, t: g.isend(ints(0), 0, t),
    "recv": lambda g, t: g.recv(ints(0), 0, t),
    "irecv": lambda g, t: g.irecv(ints(0), None, t),
}
SPLITS = {
    "input": lambda g, s: g.all_to_all_single(ints(0, 0), ints(0, 0), None, s),
    "output": lambda g, s: g.all_to_all_single(ints(0, 0), ints(0, 0), s, None),
    "reduce_scatter_single": lambda g, s: g.reduce_scatter_single(ints(0), ints(0, 0), "sum", s),
}
SIZES = {
    "all_gather": lambda g: g.all_gather([ints(0, 0), ints(0, 0)], ints(0)),
    "all_gather_single": lambda g: g.all_gather_single(ints(0, 0, 0), ints(0)),
    "all_gather_coalesced": lambda g: g.all_gather_coalesced([[ints(0), ints(0)], [ints(0)]], [ints(0), ints(0)]),
    "all_gather_coalesced's lists": lambda g: g.all_gather_coalesced([[ints(0)]], [ints(0)]),
    "all_gather_single_coalesced": lambda g: g.all_gather_single_coalesced([ints(0)], [ints(0)]),
    "gather": lambda g: g.gather(ints(0), [ints(0, 0), ints(0, 0)], g.rank),
    "gather_single": lambda g: g.gather_single(ints(0), ints(0), g.rank),
    "scatter": lambda g: g.scatter(ints(0), [ints(0, 0), ints(0, 0)], g.rank),
    "scatter_single": lambda g: g.scatter_single(ints(0), ints(0), g.rank),
    "reduce_scatter": lambda g: g.reduce_scatter(ints(0), [ints(0, 0), ints(0, 0)]),
    "reduce_scatter_single": lambda g: g.reduce_scatter_single(ints(0), ints(0, 0, 0)),
    "reduce_scatter_coalesced": lambda g: g.reduce_scatter_coalesced([ints(0), ints(0)], [ints(0, 0)]),
    "all_to_all": lambda g: g.all_to_all([ints(0, 0), ints(0, 0)], [ints(0), ints(0)]),
    "all_to_all_single": lambda g: g.all_to_all_single(ints(0, 0), ints(0, 0, 0)),
    "gather without a list": lambda g: g.gather(ints(0), None, g.rank),
    "gather with a list": lambda g: g.gather(ints(0), [ints(0)] * 2, 1 - g.rank),
    "scatter without a list": lambda g: g.scatter(ints(0), [], g.rank),
    "scatter with a list": lambda g: g.scatter(ints(0), [ints(0)] * 2, 1 - g.rank),
    "gather_single without": lambda g: g.gather_single(ints(0), None, g.rank),
    "scatter_single with": lambda g: g.scatter_single(ints(0), ints(0, 0), 1 - g.rank),
    "empty": lambda g: g.empty((2, -1)),
    "empty too large": lambda g: g.empty((2**40, 2**40)),
    "split": lambda g: g.split([]),
    "split twice": lambda g: g.split([0, 0, 1]),
}
OPS = {
    "all_reduce": lambda g, x, op: g.all_reduce(x, op),
    "all_reduce_coalesced": lambda g, x, op: g.all_reduce_coalesced([x], op),
    "reduce": lambda g, x, op: g.reduce(x, 0, op),
    "reduce_scatter": lambda g, x, op: g.reduce_scatter(x, [x, x], op),
    "reduce_scatter_single": lambda g, x, op: g.reduce_scatter_single(x, floats(0, 0), op),
    "reduce_scatter_coalesced": lambda g, x, op: g.reduce_scatter_coalesced([x], [floats(0, 0)], op),
}
TIMEOUTS = {
    "all_reduce": lambda g, t: g.all_reduce(ints(0), timeout=t),
    "broadcast": lambda g, t: g.broadcast(ints(0), timeout=t),
    "barrier": lambda g, t: g.barrier(timeout=t),
    "monitored_barrier": lambda g, t: g.monitored_barrier(t),
    "irecv": lambda g, t: g.irecv(ints(0), timeout=t),
    "split": lambda g, t: g.split([0, 1], timeout=t),
    "close": lambda g, t: g.close(t),
}


@pytest.fixture(scope="module")
def pair():
    with open_pair(timeout=10) as groups:
        yield groups


@pytest.fixture
def group(pair):
    """Return rank 1 of two. At the end of the test it must have sent nothing."""
    before = [group.sequence for group in pair]
    yield pair[1]
    assert [group.sequence for group in pair] == before
    tensors = [ints(1), ints(2)]
    on_both(pair, lambda group, rank: group.all_reduce(tensors[rank]))
    assert [tensor[0] for tensor in tensors] == [3, 3]


def check_refused(call, match=""):
    """Check that the call raises c10d's error, which is one of two types."""
    with pytest.raises(dldist.DistError, match=match) as caught:
        call()
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, RuntimeError)
    assert caught.value.code == "INVALID_ARGUMENT"
    return caught.value


# ---- tensors


@pytest.mark.parametrize("name", TENSORS)
def test_wrong_tensor_argument_is_rejected(group, name):
    call, _ = TENSORS[name]
    for value in NO_TENSORS.values():
        if value is None and name == "gather_single's output":
            continue  # this method must not return a tensor
        with pytest.raises(TypeError, match="argument '.*' must be (a tensor|an object with __dlpack__)"):
            call(group, value)


@pytest.mark.parametrize("name", TENSORS)
def test_unsupported_dtype_is_rejected(group, name):
    """Must be a RuntimeError, like c10d's "Invalid scalar type"."""
    foreign = (ctypes.c_float.__ctype_be__ * 1)()
    error = check_refused(lambda: TENSORS[name][0](group, foreign), "non-native byte order")
    assert isinstance(error, TypeError)


@pytest.mark.parametrize("name", [name for name, (_, is_written) in TENSORS.items() if is_written])
def test_read_only_output_is_rejected(group, name):
    readonly = memoryview(bytes(4)).cast("i")
    check_refused(lambda: TENSORS[name][0](group, readonly), "read-only")


@pytest.mark.parametrize("name", MIXED)
def test_mixed_dtypes_are_rejected(group, name):
    call, _ = TENSORS[name]
    values = floats(0, 0) if "single" in name or name.endswith("coalesced") else floats(0)
    error = check_refused(lambda: call(group, values), "int32.*float32|float32.*int32")
    assert isinstance(error, TypeError)


@pytest.mark.parametrize("name", TENSORS)
def test_torch_layouts_without_dlpack_are_rejected(group, name):
    torch = pytest.importorskip("torch")
    for tensor in (torch.eye(2).to_sparse(), torch.empty(1, device="meta")):
        error = check_refused(lambda: TENSORS[name][0](group, tensor), "cannot be exported by DLPack")
        assert error.__cause__ is not None


def test_overlapping_torch_tensors_are_rejected(group):
    torch = pytest.importorskip("torch")
    check_refused(lambda: group.all_reduce(torch.ones(1).expand(3)), "stride 0")


def test_torch_tensors_that_require_grad_are_reduced_in_place(pair):
    """Tensors that require grad must be reduced in place, including leaves, as in c10d."""
    torch = pytest.importorskip("torch")
    tensors = [torch.nn.Parameter(torch.full((2,), rank + 1.0)) for rank in range(SIZE)]
    on_both(pair, lambda group, rank: group.all_reduce(tensors[rank]))
    assert [tensor.tolist() for tensor in tensors] == [[3.0, 3.0]] * SIZE and all(t.requires_grad for t in tensors)


# ---- lists, sizes, splits


@pytest.mark.parametrize("name", LISTS)
def test_wrong_list_argument_is_rejected(group, name):
    for value in NO_LISTS.values():
        with pytest.raises(TypeError, match="must be a list or tuple of"):
            LISTS[name](group, value)


@pytest.mark.parametrize("kind", BAD_LISTS)
@pytest.mark.parametrize("name", LISTS)
def test_wrong_list_item_is_rejected(group, name, kind):
    value = BAD_LISTS[kind]
    if "None" in kind:
        with pytest.raises((TypeError, ValueError)):
            LISTS[name](group, value)
    elif not (name == "all_reduce_coalesced" and value):
        with pytest.raises((TypeError, ValueError)) as caught:
            LISTS[name](group, value)
        # A list of tensors is not a list of lists.
        assert isinstance(caught.value, dldist.DistError) or name == "all_gather_coalesced"


@pytest.mark.parametrize("name", SIZES)
def test_arrays_of_a_wrong_size_are_rejected(group, name):
    check_refused(lambda: SIZES[name](group), "^(all|gather|scatter|reduce|empty|split)")


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("splits", [[1], [1, 1, 1], [-1, 3], [3, -1], [2, 1], [0, 1], [2**62, 2**62], [2**63 - 1, 3]], ids=str)
def test_split_sizes_that_do_not_fit_are_rejected(group, name, splits):
    check_refused(lambda: SPLITS[name](group, splits), "[Ss]plit")


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("splits", [[1.0, 1.0], ["1", "1"], [None, 2], [[1], [1]], "11", 2, {0: 1, 1: 1}, [2**70, 0]], ids=str)
def test_split_sizes_of_a_wrong_type_are_rejected(group, name, splits):
    with pytest.raises(TypeError, match="split_sizes"):
        SPLITS[name](group, splits)


# ---- ranks and tags


@pytest.mark.parametrize("name", RANKS)
def test_wrong_ranks_are_rejected(group, name):
    for value in BAD_RANKS.values():
        check_refused(lambda: RANKS[name](group, value), "rank|range")
    for value in NO_RANKS.values():
        with pytest.raises(TypeError, match="must be int"):
            RANKS[name](group, value)


@pytest.mark.parametrize("name", ["send", "isend", "split"])
def test_none_as_a_rank_is_rejected(group, name):
    with pytest.raises(TypeError, match="must be int, not NoneType"):
        RANKS[name](group, None)


def test_bool_is_accepted_as_a_rank(pair):
    """True must be accepted as an int, as everywhere in Python."""
    on_both(pair, lambda group, rank: group.broadcast(ints(rank), True))


@pytest.mark.parametrize("name", TAGS)
def test_wrong_tags_are_rejected(group, name):
    for tag in (-1 if "send" in name else -2, -(2**63)):  # -1 is ANY_TAG
        check_refused(lambda: TAGS[name](group, tag), "tag")
    for tag in (1.0, "1", [1], 2**63, -(2**63) - 1):
        with pytest.raises(TypeError, match="tag"):
            TAGS[name](group, tag)


def test_largest_tag_is_accepted(pair):
    tensor = ints(0)
    calls = [lambda group: group.send(ints(4), 1, 2**63 - 1), lambda group: group.recv(tensor, 0, 2**63 - 1)]
    on_both(pair, lambda group, rank: calls[rank](group))
    assert tensor[0] == 4


@pytest.mark.parametrize("name", [name for name in RANKS if name not in ("send", "isend", "recv", "irecv", "split")])
def test_asynchronous_call_with_a_wrong_argument_is_rejected_immediately(group, name):
    method = getattr(group, name)
    check_refused(lambda: method(ints(0), root=SIZE, async_op=True), "invalid root rank")


# ---- operations, times, the rest


@pytest.mark.parametrize("name", OPS)
def test_wrong_reductions_are_rejected(group, name):
    for op in ("band", dldist.ReduceOp.BOR, "bxor"):
        check_refused(lambda: OPS[name](group, floats(0), op), "does not support dtype float32")
    for op in ("", "plus", "premul_sum", dldist.ReduceOp.PREMUL_SUM):
        check_refused(lambda: OPS[name](group, floats(0), op), "argument 'op'")
    for op in (0, b"sum", dldist.ReduceOp, object()):
        with pytest.raises(TypeError, match="argument 'op' must be a ReduceOp"):
            OPS[name](group, floats(0), op)


@pytest.mark.parametrize("name", TIMEOUTS)
def test_wrong_timeouts_are_rejected(group, name):
    for timeout in (-1, -0.5, NAN):
        check_refused(lambda: TIMEOUTS[name](group, timeout), "timeout")
    for timeout in ("1", [1], object(), 1j):
        with pytest.raises(TypeError, match="timeout"):
            TIMEOUTS[name](group, timeout)


@pytest.mark.parametrize("dtype", ["float31", "", object, 1])
def test_empty_rejects_an_unknown_dtype(group, dtype):
    assert isinstance(check_refused(lambda: group.empty(1, dtype), "is not a dtype"), TypeError)


def test_message_longer_than_its_buffer_is_an_error_of_the_receiver(pair):
    """The receiver must raise. torch's process aborts here."""
    work = pair[1].isend(ints(1, 2, 3), 0, 5)
    check_refused(lambda: pair[0].recv(ints(0), 1, 5), "has sent 12 bytes, expected at most 4")
    assert work.wait()
    on_both(pair, lambda group, _: group.barrier())


# ---- groups that do not exist


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0, -1), (0, 2**40), (2**40, 2**41)])
def test_invalid_rank_and_size_of_a_group_are_rejected(rank, size):
    check_refused(lambda: dldist.Group(dldist.HashStore(), rank, size), "rank|size")


def test_group_constructor_rejects_wrong_arguments():
    check_refused(lambda: dldist.Group(None, 0, 2), "needs a store")
    check_refused(lambda: dldist.Group(None, 0, 1, timeout=-1), "timeout")
    check_refused(lambda: dldist.Group(dldist.HashStore(), 0, 2, name="x" * 1000, connect_timeout=0.1), "name")
    for arguments in ((1, 0, 1), (None, "0", 1), (None, 0, 1.0)):
        with pytest.raises(TypeError):
            dldist.Group(*arguments)


def test_calls_on_a_closed_group_are_rejected():
    with open_pair(timeout=10) as groups:
        pass
    for name in (*EXEMPT[:5], "irecv", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"):
        with pytest.raises(dldist.DistBackendError, match="closed"):
            TENSORS[name][0](groups[0], ints(0))
    with pytest.raises(dldist.DistBackendError, match="closed"):
        groups[0].split([0, 1])


def test_closed_store_server_is_an_error_when_a_group_opens():
    server = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    client = dldist.TCPStore("127.0.0.1", server.port, timeout=5)
    del server
    with pytest.raises(dldist.DistNetworkError):
        dldist.Group(client, 0, 2, connect_timeout=5)
