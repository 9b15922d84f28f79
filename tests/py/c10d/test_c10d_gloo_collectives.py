"""The Gloo backend with several tensors per call, and with devices. Each case also runs with
torch's Gloo if torch is installed."""

import array
import re
import threading
import time
from datetime import timedelta

import dldist
import numpy as np
import pytest
from dldist import ProcessGroupGloo
from thread_ranks import error_of, on_threads, vector

SIZES = [1, 2, 3]


def in_groups(size, case):
    """Run case(group, rank) on a thread per rank."""
    store = dldist.HashStore()

    def run(rank):
        group = ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=10))
        try:
            return case(group, rank)
        finally:
            group.shutdown()

    return on_threads(size, run)


def gloo_texts(store, rank, size):
    import torch.distributed as dist

    return dist.ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=10))


def torch_group_over_dldist(store, rank, size):
    """Make the group of torch's backend "dldist" that is written in Python."""
    from dldist.torch._python_group import ProcessGroup
    from dldist.torch._runner import Runner

    return ProcessGroup(Runner.rendezvous(store, "forms", list(range(size)), rank, timedelta(seconds=10)))


def torch_group_in_cpp_over_dldist(store, rank, size):
    from dldist.torch import _native
    from dldist.torch._runner import Runner

    module = _native.load()
    if module is None:
        pytest.skip("nothing can be compiled here")
    limit = timedelta(seconds=10)
    return module.Backend(Runner.rendezvous(store, "forms", list(range(size)), rank, limit), limit)


OF_TORCH = pytest.mark.parametrize("made", [gloo_texts, torch_group_over_dldist, torch_group_in_cpp_over_dldist])


def in_groups_of_torch(made, size, case):
    """Run case(dist, group, rank) on a thread per rank."""
    import torch.distributed as dist

    store = dist.HashStore()

    def run(rank):
        group = made(store, rank, size)
        try:
            return case(dist, group, rank)
        finally:
            if made is not gloo_texts:
                group.shutdown()

    return on_threads(size, run)


def options(kind, **fields):
    opts = kind()
    for name, value in fields.items():
        setattr(opts, name, value)
    return opts


# ---- results of calls with several tensors


def all_reduce_two(dist, make, group, rank):
    tensors = [make(rank, 1), make(10 * rank, 2)]
    group.allreduce(tensors, dist.AllreduceOptions()).wait()
    return tensors


def all_reduce_one_twice(dist, make, group, rank):
    tensor = make(rank + 1)
    group.allreduce([tensor, tensor], dist.AllreduceOptions()).wait()
    return [tensor]


def all_reduce_coalesced_one_twice(dist, make, group, rank):
    tensor, other = make(rank + 1), make(10)
    tensors = [tensor, other, tensor]
    work = group.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions())
    work.wait()
    return tensors


def broadcast_two(dist, make, group, rank):
    opts = options(dist.BroadcastOptions, rootRank=group.size() - 1, rootTensor=1)
    tensors = [make(rank), make(10 + rank)]
    group.broadcast(tensors, opts).wait()
    return tensors


def all_gather_two(dist, make, group, rank):
    outputs = [[make(-1) for _ in range(2 * group.size())] for _ in range(2)]
    group.allgather(outputs, [make(rank), make(10 + rank)]).wait()
    return [each for output in outputs for each in output]


CASES = {
    all_reduce_two: lambda size: [[11 * sum(range(size)), 3 * size]] * 2,
    all_reduce_one_twice: lambda size: [[size * (size + 1)]],
    all_reduce_coalesced_one_twice: lambda size: [[size * (size + 1) // 2], [10 * size], [size * (size + 1) // 2]],
    broadcast_two: lambda size: [[10 + size - 1]] * 2,
    all_gather_two: lambda size: [[value] for rank in range(size) for value in (rank, 10 + rank)] * 2,
}


@pytest.mark.parametrize("make", [vector, lambda *values: np.array(values, "f4"), lambda *values: array.array("q", values)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gloo_calls_with_several_tensors_a_rank_are_correct(case, size, make):
    found = in_groups(size, lambda group, rank: [each.tolist() for each in case(dldist, make, group, rank)])
    assert found == [CASES[case](size)] * size


def values_of_futures(dist, group, make):
    """Return the futures' values of such calls, as nested lists."""
    size = group.size()
    calls = [
        lambda: group.allreduce([make(1), make(2)], dist.AllreduceOptions()),
        lambda: group.broadcast([make(1), make(2)], options(dist.BroadcastOptions, rootRank=0, rootTensor=1)),
        lambda: group.allgather([[make(-1) for _ in range(2 * size)] for _ in range(2)], [make(1), make(2)]),
        lambda: group.allgather([[make(-1) for _ in range(size)]], [make(1)]),
    ]
    values = []
    for call in calls:
        future = call().get_future()
        future.wait()
        values.append([[each.tolist() for each in value] if isinstance(value, list) else value.tolist() for value in future.value()])
    return values


VALUES_OF_FUTURES = [[[6], [6]], [[2], [2]], [[[1], [2], [1], [2]]] * 2, [[1], [1]]]


def test_futures_of_gloo_calls_have_the_expected_values():
    assert in_groups(2, lambda group, _rank: values_of_futures(dldist, group, vector)) == [VALUES_OF_FUTURES] * 2


@pytest.mark.torch
@OF_TORCH
def test_futures_of_torchs_gloo_calls_have_the_same_values(made):
    import torch

    found = in_groups_of_torch(made, 2, lambda dist, group, _rank: values_of_futures(dist, group, lambda *values: torch.tensor(values)))
    assert found == [VALUES_OF_FUTURES] * 2


@pytest.mark.torch
@OF_TORCH
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_torchs_gloo_groups_give_the_same_results(case, made):
    import torch

    def run(dist, group, rank):
        return [each.tolist() for each in case(dist, lambda *values: torch.tensor(values), group, rank)]

    assert in_groups_of_torch(made, 2, run) == [CASES[case](2)] * 2


def test_gloo_work_of_several_tensors_completes_with_the_last_one():
    may_come, seen_results = threading.Event(), []

    def case(group, rank):
        if rank == 1:
            may_come.wait(10)
        tensors = [vector(rank + 1), vector(rank + 1)]
        work = group.allreduce(tensors)
        if rank == 0:
            assert not work.is_completed()
            with pytest.raises(dldist.DistTimeoutError):
                work.wait(timedelta(milliseconds=20))
            work.get_future().add_done_callback(lambda future: seen_results.append([each[0] for each in tensors]))
            may_come.set()
            deadline = time.monotonic() + 10
            while not seen_results and time.monotonic() < deadline:
                time.sleep(0.001)  # poll, because wait() is not called
        work.wait()
        assert work.is_completed() and work.is_success() and work._get_sequence_number() >= 0
        return [each[0] for each in tensors]

    assert in_groups(2, case) == [[6, 6]] * 2
    assert seen_results == [[6, 6]]


def test_gloo_work_of_several_tensors_fails_if_one_fails():
    has_failed = threading.Event()

    def case(group, rank):
        if rank == 1:
            has_failed.wait(10)
            return None
        work = group.broadcast([vector(0), vector(0)], options(dldist.BroadcastOptions, rootRank=1, timeout=timedelta(seconds=0.1)))
        found = type(error_of(work.wait)), type(work.exception()), work.is_completed(), work.is_success()
        has_failed.set()
        return found

    assert in_groups(2, case)[0] == (dldist.DistTimeoutError, dldist.DistTimeoutError, True, False)


# ---- reductions of several tensors of a rank


REDUCED = {
    ("SUM", "f4"): [17, 18],
    ("PRODUCT", "f4"): [300, 196],
    ("MIN", "f4"): [3, 2],
    ("MAX", "f4"): [5, 7],
    ("AVG", "f4"): [8.5, 9],
    ("SUM", "i8"): [17, 18],
    ("PRODUCT", "u1"): [300 % 256, 196],
    ("BAND", "i4"): [0, 2],
    ("BOR", "i4"): [7, 7],
    ("BXOR", "i4"): [7, 0],
    ("PRODUCT", "f2"): [300, 196],
    ("SUM", "?"): [True, True],
}


def reduced(dist, make, group, rank, op):
    """Return the values of two tensors after the reduction."""
    tensors = [make([3 + rank, 7]), make([5, 2])]
    group.allreduce(tensors, options(dist.AllreduceOptions, reduceOp=getattr(dist.ReduceOp, op))).wait()
    return [each.tolist() for each in tensors]


@pytest.mark.parametrize(("op", "dtype"), REDUCED)
def test_gloo_reductions_of_several_tensors_a_rank_are_correct(op, dtype):
    def case(group, rank):
        return reduced(dldist, lambda values: np.array(values, dtype), group, rank, op)

    assert in_groups(2, case) == [[REDUCED[op, dtype]] * 2] * 2


@pytest.mark.torch
@OF_TORCH
@pytest.mark.parametrize(("op", "dtype"), REDUCED)
def test_torchs_gloo_reductions_of_several_tensors_are_the_same(op, dtype, made):
    import torch

    if op == "AVG" and made is gloo_texts:
        pytest.skip("Gloo divides only the first tensor")

    def run(dist, group, rank):
        return reduced(dist, lambda values: torch.from_numpy(np.array(values, dtype)), group, rank, op)

    assert in_groups_of_torch(made, 2, run) == [[REDUCED[op, dtype]] * 2] * 2


def test_several_strided_tensors_of_one_gloo_call_are_reduced_in_place():
    whole = {rank: np.arange(8.0).reshape(2, 4) for rank in range(2)}

    def case(group, rank):
        group.allreduce([whole[rank][:, 1], whole[rank][:, 3]], op=dldist.ReduceOp.MAX).wait()
        return whole[rank].tolist()

    assert in_groups(2, case) == [[[0, 3, 2, 3], [4, 7, 6, 7]]] * 2


def test_premul_sum_of_several_tensors_multiplies_the_sum_only_once():
    def case(group, rank):
        tensors = [np.array([1.0 + rank]), np.array([3.0])]
        group.allreduce(tensors, op=dldist.ReduceOp.PREMUL_SUM(0.5)).wait()
        return [each.tolist() for each in tensors]

    assert in_groups(2, case) == [[[4.5], [4.5]]] * 2


def test_unsupported_gloo_reduction_changes_no_tensor():
    def case(group, rank):
        tensors = [np.ones(1, "c8"), np.ones(1, "c8")]
        with pytest.raises(ValueError, match="reduction MAX does not support dtype complex64"):
            group.allreduce(tensors, op=dldist.ReduceOp.MAX)
        group.barrier().wait()
        return [each.tolist() for each in tensors]

    assert in_groups(1, case) == [[[1], [1]]]


# ---- refused calls, with Gloo's messages


def with_root(dist, kind, **fields):
    return options(getattr(dist, kind), **fields)


F4, F8 = np.float32, np.float64

WRONG = [
    ("requires non-empty tensor list", lambda dist, t, g: g.allreduce([], dist.AllreduceOptions())),
    ("invalid tensor type at index", lambda dist, t, g: g.allreduce([t(1), t(1, F8)], dist.AllreduceOptions())),
    ("invalid tensor size at index", lambda dist, t, g: g.allreduce([t(1), t(2)], dist.AllreduceOptions())),
    (
        "Cannot use ReduceOp.BOR with non-integral dtype",
        lambda dist, t, g: g.allreduce([t(1), t(1)], options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.BOR)).wait(),
    ),
    ("requires non-empty tensor list", lambda dist, t, g: g.allreduce_coalesced([], dist.AllreduceCoalescedOptions())),
    ("tensors must all have the same type", lambda dist, t, g: g.allreduce_coalesced([t(1), t(1, F8)], dist.AllreduceCoalescedOptions())),
    ("invalid root rank: -1", lambda dist, t, g: g.broadcast([t(1)], with_root(dist, "BroadcastOptions", rootRank=-1))),
    ("invalid root rank: 2", lambda dist, t, g: g.broadcast([t(1)], with_root(dist, "BroadcastOptions", rootRank=2))),
    ("invalid root tensor: -1", lambda dist, t, g: g.broadcast([t(1)], with_root(dist, "BroadcastOptions", rootTensor=-1))),
    ("invalid root tensor: 0", lambda dist, t, g: g.broadcast([], dist.BroadcastOptions())),
    ("invalid root tensor: 2", lambda dist, t, g: g.broadcast([t(1)] * 2, with_root(dist, "BroadcastOptions", rootTensor=2))),
    ("invalid tensor type at index", lambda dist, t, g: g.broadcast([t(1), t(1, F8)], dist.BroadcastOptions())),
    ("invalid tensor size at index", lambda dist, t, g: g.broadcast([t(1), t(2)], dist.BroadcastOptions())),
    ("invalid root rank: 2", lambda dist, t, g: g.reduce([t(1)], with_root(dist, "ReduceOptions", rootRank=2))),
    ("invalid root tensor: 1", lambda dist, t, g: g.reduce([t(1)], with_root(dist, "ReduceOptions", rootTensor=1))),
    ("requires a single-element tensor list", lambda dist, t, g: g.reduce([t(1)] * 2, dist.ReduceOptions())),
    ("requires non-empty input tensor list", lambda dist, t, g: g.allgather([], [])),
    ("requires input/output tensor lists to have the same length", lambda dist, t, g: g.allgather([], [t(1)])),
    ("requires input/output tensor lists to have the same length", lambda dist, t, g: g.allgather([[t(1)] * 2] * 2, [t(1)])),
    ("invalid output tensor list at index 0 (expected length 2, got 1)", lambda dist, t, g: g.allgather([[t(1)]], [t(1)])),
    ("invalid output tensor list at index 0 (expected length 2, got 3)", lambda dist, t, g: g.allgather([[t(1)] * 3], [t(1)])),
    ("invalid tensor type at index 1", lambda dist, t, g: g.allgather([[t(1)] * 4] * 2, [t(1), t(1, F8)])),
    ("invalid tensor size at index 1", lambda dist, t, g: g.allgather([[t(1)] * 4] * 2, [t(1), t(2)])),
    ("invalid tensor type at index 1", lambda dist, t, g: g.allgather([[t(1), t(1, F8)]], [t(1)])),
    ("requires non-empty input tensor list", lambda dist, t, g: g.allgather_coalesced([], [])),
    ("output lists should be equal to world size", lambda dist, t, g: g.allgather_coalesced([[t(1)] for _ in range(3)], [t(1)])),
    ("invalid output size: (expected length 1, got 2)", lambda dist, t, g: g.allgather_coalesced([[t(1), t(1)] for _ in range(2)], [t(1)])),
    ("invalid size of output tensor at index 0", lambda dist, t, g: g.allgather_coalesced([[t(2)] for _ in range(2)], [t(1)])),
    ("invalid tensor type at index 0", lambda dist, t, g: g.allgather_coalesced([[t(1, F8)] for _ in range(2)], [t(1)])),
    ("invalid root rank: -1", lambda dist, t, g: g.gather([], [t(1)], with_root(dist, "GatherOptions", rootRank=-1))),
    ("requires a single-element input tensor list", lambda dist, t, g: g.gather([], [], with_root(dist, "GatherOptions", rootRank=0))),
    ("requires a single-element input tensor list", lambda dist, t, g: g.gather([], [t(1)] * 2, with_root(dist, "GatherOptions", rootRank=0))),
    (
        "requires a single-element output list containing a list with 2 tensors.",
        lambda dist, t, g: g.gather([], [t(1)], with_root(dist, "GatherOptions", rootRank=g.rank())),
    ),
    (
        "Incorrect output list size 3. Output list size should be 2, same as size of the process group.",
        lambda dist, t, g: g.gather([[t(1)] * 3], [t(1)], with_root(dist, "GatherOptions", rootRank=g.rank())),
    ),
    (
        "invalid tensor type at index 0",
        lambda dist, t, g: g.gather([[t(1, F8) for _ in range(2)]], [t(1)], with_root(dist, "GatherOptions", rootRank=g.rank())),
    ),
    (
        "requires empty output on non-root",
        lambda dist, t, g: g.gather([[t(1)] * 2], [t(1)], with_root(dist, "GatherOptions", rootRank=1 - g.rank())),
    ),
    ("invalid root rank: 2", lambda dist, t, g: g.scatter([t(1)], [], with_root(dist, "ScatterOptions", rootRank=2))),
    ("requires a single-element output tensor list", lambda dist, t, g: g.scatter([], [], with_root(dist, "ScatterOptions", rootRank=0))),
    (
        "requires a single-element input list containing a list with 2 tensors.",
        lambda dist, t, g: g.scatter([t(1)], [], with_root(dist, "ScatterOptions", rootRank=g.rank())),
    ),
    (
        "Incorrect input list size 1. Input list size should be 2, same as size of the process group.",
        lambda dist, t, g: g.scatter([t(1)], [[t(1)]], with_root(dist, "ScatterOptions", rootRank=g.rank())),
    ),
    ("invalid tensor type at index 0", lambda dist, t, g: g.scatter([t(1)], [[t(1, F8)] * 2], with_root(dist, "ScatterOptions", rootRank=g.rank()))),
    ("invalid tensor size at index 0", lambda dist, t, g: g.scatter([t(1)], [[t(2)] * 2], with_root(dist, "ScatterOptions", rootRank=g.rank()))),
    (
        "requires empty input on non-root",
        lambda dist, t, g: g.scatter([t(1)], [[t(1)] * 2], with_root(dist, "ScatterOptions", rootRank=1 - g.rank())),
    ),
    ("reduce_scatter only supports 1 output", lambda dist, t, g: g.reduce_scatter([], [], dist.ReduceScatterOptions())),
    ("invalid input tensor list size, must be world size", lambda dist, t, g: g.reduce_scatter([t(1)], [[t(1)]], dist.ReduceScatterOptions())),
    ("takes a single tensor", lambda dist, t, g: g.send([t(1)] * 2, 1 - g.rank(), 0)),
]


def errors_of_wrong_calls(dist, make, group):
    return [error_of(call, dist, make, group) for _, call in WRONG]


def check_words(errors):
    for (words, _), error in zip(WRONG, errors, strict=True):
        assert isinstance(error, RuntimeError) and words in str(error), (words, error)


def test_wrong_arguments_raise_errors_with_the_texts_of_gloo():
    def case(group, rank):
        errors = errors_of_wrong_calls(dldist, lambda count, dtype=F4: np.zeros(count, dtype), group)
        group.barrier().wait()  # nothing was sent
        return errors

    for errors in in_groups(2, case):
        check_words(errors)


@pytest.mark.torch
@OF_TORCH
def test_errors_of_torchs_gloo_have_the_same_texts(made):
    import torch

    def run(dist, group, rank):
        return errors_of_wrong_calls(dist, lambda count, dtype=F4: torch.from_numpy(np.zeros(count, dtype)), group)

    for errors in in_groups_of_torch(made, 2, run):
        check_words(errors)


@pytest.mark.torch
@OF_TORCH
def test_sparse_torch_tensors_are_checked_and_summed_by_gloo_calls(made):
    import torch

    def coo(place, value, size=3):
        return torch.sparse_coo_tensor([[place]], [value], (size,), check_invariants=False)

    def run(dist, group, rank):
        several = [coo(0, 1.0 + rank), coo(1, 2.0)]
        group.allreduce(several, dist.AllreduceOptions()).wait()
        for words, tensors in (
            ("invalid tensor layout at index 1", [coo(0, 1.0), torch.ones(3)]),
            ("invalid tensor layout at index 1", [torch.ones(3), coo(0, 1.0)]),
            ("invalid tensor size at index", [coo(0, 1.0), coo(0, 1.0, 4)]),
        ):
            with pytest.raises(RuntimeError, match=words):
                group.allreduce(tensors, dist.AllreduceOptions())
        with pytest.raises(RuntimeError, match="unsupported reduction operation"):
            group.allreduce([coo(0, 1.0)], options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.MAX))
        return [each.to_dense().tolist() for each in several]

    assert in_groups_of_torch(made, 2, run) == [[[3.0, 4.0, 0.0]] * 2] * 2


@pytest.mark.torch
@pytest.mark.parametrize("made", [torch_group_over_dldist, torch_group_in_cpp_over_dldist])
def test_late_or_lost_rank_raises_an_error_with_the_text_of_gloo(made):
    may_go, has_left = threading.Event(), threading.Event()

    def run(dist, group, rank):
        if rank == 1:
            may_go.wait(10)
            group.shutdown()
            has_left.set()
            return None
        message = options(dist.BarrierOptions, timeout=timedelta(milliseconds=50))
        late = error_of(lambda: group.barrier(message).wait())
        may_go.set()
        has_left.wait(10)
        return str(late)

    assert re.search(r" Timed out waiting \d+ms", in_groups_of_torch(made, 2, run)[0])

    def leave(dist, group, rank):
        return rank == 0 and str(error_of(lambda: group.barrier(dist.BarrierOptions()).wait()))

    assert " Connection closed by peer" in in_groups_of_torch(made, 2, leave)[0]


REFUSED = [
    (lambda group: group.allreduce([vector(1), memoryview(vector(1)).toreadonly()]), ValueError, "read-only|writable"),
    (lambda group: group.allreduce_coalesced([np.zeros(2), np.zeros(3)[1:], memoryview(np.zeros(2)).toreadonly()]), ValueError, "read-only|writable"),
    (lambda group: group.allreduce_sparse([vector(1)]), RuntimeError, "got a dense tensor"),
    (lambda group: group.allreduce_sparse([]), RuntimeError, "requires non-empty tensor list"),
    (lambda group: group.broadcast([vector(1), object()]), TypeError, "not object"),
    (lambda group: group.allreduce(3), TypeError, "not int"),
]


@pytest.mark.parametrize(("call", "kind", "text"), REFUSED)
def test_gloo_calls_reject_wrong_arguments(call, kind, text):
    def case(group, rank):
        with pytest.raises(kind, match=text):
            call(group)
        group.barrier().wait()

    in_groups(1, case)


def test_gloo_calls_reject_overlapping_outputs():
    whole = np.zeros(3)

    def case(group, rank):
        with pytest.raises(ValueError, match="are the same memory or overlap"):
            group.allreduce_coalesced([whole[:2], whole[1:]])
        group.barrier().wait()

    in_groups(1, case)


# ---- devices


def test_gloo_devices_are_created_from_an_interface_or_a_host():
    create = ProcessGroupGloo.create_device
    for device in (create(interface="lo"), create("127.0.0.1"), create(hostname="localhost"), ProcessGroupGloo.create_default_device()):
        assert isinstance(device, ProcessGroupGloo.Device)
        assert repr(device).startswith("<ProcessGroupGloo.Device hostname=")
    for given, kind, text in (
        ({}, ValueError, "Specify either"),
        ({"interface": "nonsense0"}, RuntimeError, "Unable to find address for: nonsense0: .*lo"),
        ({"hostname": "192.0.2.1"}, RuntimeError, r"Cannot resolve 192.0.2.1 to a \(local\) address"),
        ({"hostname": "no host"}, RuntimeError, "Cannot resolve no host"),
    ):
        with pytest.raises(kind, match=text):
            create(**given)


def test_gloo_options_accept_only_a_list_of_devices():
    opts = ProcessGroupGloo._Options()
    opts._devices = (ProcessGroupGloo.create_default_device(),)
    assert len(opts._devices) == 1
    with pytest.raises(TypeError, match=r"_devices must be a list of ProcessGroupGloo.Device: got a str"):
        opts._devices = ["lo"]
    opts._devices = []  # groups use their own device
    ProcessGroupGloo(dldist.HashStore(), 0, 1, opts).shutdown()
