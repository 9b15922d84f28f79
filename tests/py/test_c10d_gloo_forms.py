"""Gloo's backend with several tensors in a call, and with devices; each case next to torch's Gloo where torch is installed."""

import array
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
    """case(group, rank) on a thread for each rank."""
    store = dldist.HashStore()

    def run(rank):
        group = ProcessGroupGloo(store, rank, size, timeout=timedelta(seconds=10))
        try:
            return case(group, rank)
        finally:
            group.shutdown()

    return on_threads(size, run)


def options(kind, **fields):
    opts = kind()
    for name, value in fields.items():
        setattr(opts, name, value)
    return opts


# ---- what several tensors in a call come to


def all_reduce_two(dist, make, group, rank):
    tensors = [make(rank, 1), make(10 * rank, 2)]
    group.allreduce(tensors, dist.AllreduceOptions()).wait()
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
    broadcast_two: lambda size: [[10 + size - 1]] * 2,
    all_gather_two: lambda size: [[value] for rank in range(size) for value in (rank, 10 + rank)] * 2,
}


@pytest.mark.parametrize("make", [vector, lambda *values: np.array(values, "f4"), lambda *values: array.array("q", values)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_several_tensors(case, size, make):
    found = in_groups(size, lambda group, rank: [each.tolist() for each in case(dldist, make, group, rank)])
    assert found == [CASES[case](size)] * size


def values_of_futures(dist, group, make):
    """What the futures of such calls have, as nested lists."""
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


def test_values_of_futures():
    assert in_groups(2, lambda group, _rank: values_of_futures(dldist, group, vector)) == [VALUES_OF_FUTURES] * 2


@pytest.mark.torch
def test_torchs_futures_have_the_same_values():
    import torch
    import torch.distributed as dist

    store = dist.HashStore()

    def run(rank):
        group = dist.ProcessGroupGloo(store, rank, 2, timeout=timedelta(seconds=10))
        return values_of_futures(dist, group, lambda *values: torch.tensor(values))

    assert on_threads(2, run) == [VALUES_OF_FUTURES] * 2


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_torch_does_the_same(case):
    import torch
    import torch.distributed as dist

    store = dist.HashStore()

    def run(rank):
        group = dist.ProcessGroupGloo(store, rank, 2, timeout=timedelta(seconds=10))
        return [each.tolist() for each in case(dist, lambda *values: torch.tensor(values), group, rank)]

    assert on_threads(2, run) == [CASES[case](2)] * 2


def test_the_work_ends_when_all_tensors_are_there():
    may_come, told = threading.Event(), []

    def case(group, rank):
        if rank == 1:
            may_come.wait(10)
        tensors = [vector(rank + 1), vector(rank + 1)]
        work = group.allreduce(tensors)
        if rank == 0:
            assert not work.is_completed()
            with pytest.raises(dldist.DistTimeoutError):
                work.wait(timedelta(milliseconds=20))
            work.get_future().add_done_callback(lambda future: told.append([each[0] for each in tensors]))
            may_come.set()
            deadline = time.monotonic() + 10
            while not told and time.monotonic() < deadline:
                time.sleep(0.001)  # nobody waits for the work
        work.wait()
        assert work.is_completed() and work.is_success() and work._get_sequence_number() >= 0
        return [each[0] for each in tensors]

    assert in_groups(2, case) == [[6, 6]] * 2
    assert told == [[6, 6]]


def test_what_fails_ends_the_work_too():
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


REFUSED = [
    (lambda group: group.allreduce([vector(1), vector(1)], op=dldist.ReduceOp.MAX), RuntimeError, "not reduced by MAX"),
    (lambda group: group.allreduce([vector(1), vector(1, 2)]), ValueError, "tensors of a rank are alike"),
    (lambda group: group.allreduce([vector(1), array.array("f", [1])]), ValueError, "tensors of a rank are alike"),
    (lambda group: group.allreduce([vector(1), b"12345678"]), ValueError, "read-only|writable"),
    (lambda group: group.allreduce([]), RuntimeError, "single-element tensor list, not one of 0"),
    (lambda group: group.broadcast([vector(1)] * 2, options(dldist.BroadcastOptions, rootTensor=2)), RuntimeError, "invalid root tensor: 2"),
    (lambda group: group.allgather([[vector(1)]] * 2, [vector(1)]), RuntimeError, "1 inputs want as many lists of outputs, not 2"),
    (lambda group: group.allgather([[vector(1)]] * 2, [vector(1)] * 2), RuntimeError, r"outputs\[0\] has 1 tensors, and there are 2"),
    (lambda group: group.reduce([vector(1)] * 2), RuntimeError, "single-element"),
    (lambda group: group.allreduce_sparse([vector(1)]), RuntimeError, "not sparse"),
]


@pytest.mark.parametrize(("call", "kind", "text"), REFUSED)
def test_what_is_refused(call, kind, text):
    def case(group, rank):
        with pytest.raises(kind, match=text):
            call(group)
        group.barrier().wait()

    in_groups(1, case)


# ---- devices


def test_devices():
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


def test_devices_of_options():
    opts = ProcessGroupGloo._Options()
    opts._devices = (ProcessGroupGloo.create_default_device(),)
    assert len(opts._devices) == 1
    with pytest.raises(TypeError, match=r"_devices must be a list of ProcessGroupGloo.Device, but has a str"):
        opts._devices = ["lo"]
    opts._devices = []  # groups choose for themselves
    ProcessGroupGloo(dldist.HashStore(), 0, 1, opts).shutdown()
