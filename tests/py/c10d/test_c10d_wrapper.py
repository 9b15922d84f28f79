"""_ProcessGroupWrapper, for the debug level DETAIL. Ranks are threads over one store."""

import threading
from datetime import timedelta

import dldist
import numpy as np
import pytest
from dldist._backends import wrapper
from dldist._backends.backend_base import Backend
from dldist._backends.cpu import ProcessGroupGloo
from dldist._backends.fake import FakeProcessGroup
from dldist._backends.low_level import CALLS
from dldist._backends.wrapper import Fingerprint, _ProcessGroupWrapper
from dldist._base.options import ErrorType

LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=300)


class Ranks:
    """Threads that each have a wrapped backend of the same group."""

    def __init__(self, size, timeout=LONG):
        store = dldist.HashStore(timeout=LONG)
        self.size = size
        self.backends = [None] * size

        def make(rank):
            made = [
                ProcessGroupGloo(dldist.PrefixStore(name, store), rank, size, timeout=timeout) for name in ("main", "helper")
            ]
            self.backends[rank] = _ProcessGroupWrapper(*made)

        self._on_threads(make)

    def _on_threads(self, call):
        results = [None] * self.size

        def run(rank):
            try:
                results[rank] = call(rank)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        return results

    def run(self, call):
        """Return the results of call(backend, rank) on each rank, or the errors raised."""
        return self._on_threads(lambda rank: call(self.backends[rank], rank))

    def close(self):
        for backend in self.backends:
            backend.abort()


@pytest.fixture
def make_ranks():
    made = []

    def make(*args):
        made.append(Ranks(*args))
        assert None not in made[-1].backends
        return made[-1]

    yield make
    for ranks in made:
        ranks.close()


def f4(*values):
    return np.array(values, "f4")


def test_collectives_that_match_on_all_ranks_are_run(make_ranks):
    def call(backend, rank):
        x, gathered = f4(rank, 1), np.zeros(4, "f4")
        backend.allreduce([x]).wait()
        backend.allgather([[gathered[:2], gathered[2:]]], [x]).wait()
        backend._allgather_base(gathered, x).wait()
        out = [np.zeros(2, "f4"), np.zeros(2, "f4")] if rank == 0 else []
        backend.gather([out] if out else [], [x]).wait()
        received = np.zeros(2, "f4")
        backend.barrier().wait()
        if rank == 0:
            backend.send([x], 1, 5).wait()
        else:
            backend.recv([received], 0, 5).wait()
        return x.tolist(), gathered.tolist(), received.tolist()

    results = make_ranks(2).run(call)
    assert results == [([1, 2], [1, 2, 1, 2], [0, 0]), ([1, 2], [1, 2, 1, 2], [1, 2])]


DIFFERENT = [
    (
        "op",
        lambda backend, rank: backend.allreduce(f4(1, 2)) if rank == 0 else backend.reduce(f4(1, 2), 0),
        "OpType=ALLREDUCE, TensorShape=[2], TensorDtypes=Float, TensorDeviceTypes=cpu",
        "OpType=REDUCE, TensorShape=[2], TensorDtypes=Float, TensorDeviceTypes=cpu",
        ("Op type", "ALLREDUCE", "REDUCE"),
    ),
    (
        "shape",
        lambda backend, rank: backend.allreduce(np.zeros((2, 3 + rank), "f4")),
        "OpType=ALLREDUCE, TensorShape=[2, 3], TensorDtypes=Float, TensorDeviceTypes=cpu",
        "OpType=ALLREDUCE, TensorShape=[2, 4], TensorDtypes=Float, TensorDeviceTypes=cpu",
        ("Tensor Tensor shapes", "[2, 3]", "[2, 4]"),
    ),
    (
        "dtype",
        lambda backend, rank: backend.broadcast(np.zeros(2, ("f8", "i4")[rank]), 0),
        "OpType=BROADCAST, TensorShape=[2], TensorDtypes=Double, TensorDeviceTypes=cpu",
        "OpType=BROADCAST, TensorShape=[2], TensorDtypes=Int, TensorDeviceTypes=cpu",
        ("Tensor Tensor dtypes", "Double", "Int"),
    ),
    (
        "count",
        lambda backend, rank: backend.allreduce_coalesced([f4(1)] * (1 + rank)),
        "OpType=ALLREDUCE_COALESCED, TensorShape=[1], TensorDtypes=Float, TensorDeviceTypes=cpu",
        "OpType=ALLREDUCE_COALESCED, TensorShape=[1], [1], TensorDtypes=Float, Float, TensorDeviceTypes=cpu, cpu",
        ("Tensor Tensor shapes", "[1]", "[1], [1]"),
    ),
    (
        "barrier",
        lambda backend, rank: backend.barrier() if rank == 0 else backend.allreduce(f4(1)),
        None,
        "OpType=ALLREDUCE, TensorShape=[1], TensorDtypes=Float, TensorDeviceTypes=cpu",
        ("Op type", "BARRIER", "ALLREDUCE"),
    ),
]


def test_all_to_all_with_unequal_parts_matches(make_ranks):
    def call(backend, rank):
        # Rank 0 sends one element to itself and two to rank 1, which sends one to each.
        received = np.zeros(2 if rank == 0 else 3, "f4")
        sent = f4(1, 2, 3) if rank == 0 else f4(4, 5)
        backend.alltoall_base(received, sent, [1 + rank, 1], [1, 2 - rank]).wait()
        return received.tolist()

    assert make_ranks(2).run(call) == [[1, 4], [2, 3, 5]]


@pytest.mark.parametrize(("call", "first", "second", "aspect"), [case[1:] for case in DIFFERENT], ids=[c[0] for c in DIFFERENT])
def test_mismatched_collective_is_reported_on_all_ranks(make_ranks, call, first, second, aspect):
    ranks = make_ranks(2)
    without_tensors = "CollectiveFingerPrint(SequenceNumber=0OpType=BARRIER)"
    shown = [f"CollectiveFingerPrint(SequenceNumber=0, {text})" if text else without_tensors for text in (first, second)]
    for _ in range(2):  # a mismatch consumes neither the group nor a sequence number
        errors = ranks.run(call)
        for rank, error in enumerate(errors):
            assert isinstance(error, dldist.DistMismatchError), error
            name, local_value, remote_value = aspect if rank == 0 else (aspect[0], aspect[2], aspect[1])
            assert str(error).startswith(
                f"Detected mismatch between collectives on ranks. Rank {rank} is running collective: {shown[rank]}, but Rank "
                f"{1 - rank} is running collective: {shown[1 - rank]}.Collectives differ in the following aspects: "
            )
            assert f"\t {name}: {local_value}vs {remote_value}" in str(error)
            assert "Sequence number:" not in str(error)
    assert ranks.run(lambda backend, _: backend.barrier().wait()) == [True, True]


def test_the_first_rank_that_differs_is_named(make_ranks):
    errors = make_ranks(3).run(lambda backend, rank: backend.allreduce(np.zeros(2 + (rank == 1), "f4")))
    for rank, other in ((0, 1), (1, 0), (2, 1)):
        assert f"Rank {rank} is running collective" in str(errors[rank])
        assert f"but Rank {other} is running collective" in str(errors[rank])


def test_sequence_numbers_count_collectives(make_ranks):
    ranks = make_ranks(2)
    ranks.run(lambda backend, _: backend.barrier().wait())
    ranks.run(lambda backend, _: backend.allreduce(f4(1)).wait())
    errors = ranks.run(lambda backend, rank: backend.allreduce(np.zeros(1 + rank, "f4")))
    assert all("SequenceNumber=2," in str(error) for error in errors)


def test_rank_that_does_not_call_is_named(make_ranks):
    ranks = make_ranks(3)

    def call(backend, rank):
        if rank == 1:
            return None
        opts = wrapper.AllgatherOptions()
        opts.timeout = SHORT
        return backend.allgather([[f4(0) for _ in range(3)]], [f4(1)], opts)

    first, nothing, last = ranks.run(call)
    assert nothing is None
    for error in (first, last):
        assert isinstance(error, dldist.DistError)
        assert str(error).startswith(
            "ProcessGroupWrapper: Monitored Barrier encountered error running collective: "
            "CollectiveFingerPrint(SequenceNumber=0, OpType=ALLGATHER, TensorShape=[1], "
        )
    assert isinstance(first, dldist.DistTimeoutError) and isinstance(first.__cause__, dldist.DistTimeoutError)
    assert "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 300 ms" in str(first)
    assert "Rank 2 successfully reached monitoredBarrier" in str(last)
    assert "Please check rank 0 logs for faulty rank: rank 0 reported: [Rank 0]: Ranks 1 failed" in str(last)


# --- calls that the wrapper forwards ---


class Helper(Backend):
    """A helper group of one rank, or of ranks whose fingerprints the test supplies."""

    def __init__(self, size=1, rounds=()):
        super().__init__(0, size)
        self.rounds = list(rounds)
        self.recorded = []

    def _run_monitored_barrier(self, timeout, wait_all_ranks):
        self.recorded.append(("barrier", timeout, wait_all_ranks))

    def _run_all_gather_single(self, output, input, opts):
        others = self.rounds.pop(0) if self.rounds else []
        data = b"".join([bytes(input), *(other(bytes(input)) for other in others)])
        output[:] = data
        return type("Done", (), {"wait": lambda self: True})()

    def set_timeout(self, timeout):
        self.recorded.append(("timeout", timeout))

    def shutdown(self):
        self.recorded.append("shutdown")

    def abort(self):
        self.recorded.append("abort")


def test_wrapper_passes_other_attributes_on_to_its_backend():
    fake = FakeProcessGroup._create_internal(0, 1)
    fake.get_error = lambda: ErrorType.TIMEOUT
    helper = Helper()
    wrapped = _ProcessGroupWrapper(fake, helper)
    assert isinstance(wrapped, Backend) and type(wrapped) is not type(fake)
    assert (wrapped.rank(), wrapped.size(), wrapped.name(), wrapped._get_backend_name()) == (0, 1, "fake", "fake")
    assert wrapped.wrapped_pg is fake and wrapped.options is fake.options
    assert wrapped.get_error() is ErrorType.TIMEOUT
    wrapped.bound_device_id = "cpu:0"
    assert fake.bound_device_id == wrapped.bound_device_id == "cpu:0"
    assert isinstance(wrapped.split(None, [0], None), FakeProcessGroup)
    wrapped.set_timeout(LONG)
    assert fake.options._timeout == LONG
    hooked = []
    wrapped.register_abort_hook(1, lambda: hooked.append("hook"))
    wrapped.abort()
    wrapped.shutdown()
    assert helper.recorded == [("timeout", LONG), "abort", "shutdown"] and hooked == ["hook"]


def test_messages_are_not_compared_between_ranks():
    helper = Helper()
    wrapped = _ProcessGroupWrapper(FakeProcessGroup._create_internal(0, 1), helper)
    wrapped.send([f4(1)], 0, 0).wait()
    wrapped.recv([f4(1)], 0, 0).wait()
    assert helper.recorded == []
    wrapped.allreduce(f4(1), timeout=LONG)
    wrapped.allreduce(f4(1))
    assert helper.recorded == [("barrier", LONG, True), ("barrier", None, True)]


def test_backend_and_helper_of_a_wrapper_must_have_the_same_ranks():
    with pytest.raises(ValueError, match="got 0 of 1, expected 0 of 2"):
        _ProcessGroupWrapper(FakeProcessGroup._create_internal(0, 2), Helper())


def length(number):
    return lambda local_value: number.to_bytes(len(local_value), "little")


def text(content):
    return lambda local_value: content.ljust(len(local_value), b"\0")[: len(local_value)]


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ([[length(2**63)]], r"fingerprint of rank 1: got 9223372036854775808 bytes"),
        ([[length(65537)]], "fingerprint of rank 1: got 65537 bytes"),
        ([[length(3)], [text(b"abc")]], "malformed fingerprint of rank 1: expected"),
        ([[length(0)], [text(b"")]], "malformed fingerprint of rank 1: expected"),
        ([[length(6)], [text(b"\xff\n\n\n\n\n")]], "malformed fingerprint of rank 1: expected"),
        ([[length(5)], [text(b"\xff\n\n\n\n")]], r"Rank 1 is running collective: CollectiveFingerPrint\(SequenceNumber=\\xff"),
    ],
)
def test_malformed_fingerprint_of_a_peers_call_is_an_error(rounds, message):
    wrapped = _ProcessGroupWrapper(FakeProcessGroup._create_internal(0, 2), Helper(2, rounds))
    with pytest.raises(dldist.DistMismatchError, match=message):
        wrapped.allreduce(f4(1))


# --- fingerprints ---


def test_fingerprint_of_a_call_is_decoded_as_it_was_encoded():
    local_value = Fingerprint.of(3, "allreduce", ([f4(1), np.zeros((), "c8")], None))
    assert Fingerprint.decode(local_value.encode()) == local_value
    assert str(local_value).startswith("CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[1], [], ")
    assert "TensorDtypes=Float, ComplexFloat, " in str(local_value)


def test_long_fingerprints_of_different_calls_differ_even_when_truncated():
    many = [f4(1)] * 10_000
    other = [*many[:-1], f4(1, 2)]
    prints = [Fingerprint.of(0, "allreduce_coalesced", (tensors, None)) for tensors in (many, other)]
    assert prints[0] != prints[1] and prints[0].shapes[:4096] == prints[1].shapes[:4096]
    assert all(len(each.encode()) < wrapper._MESSAGE_LIMIT for each in prints)


def test_wrapper_leaves_wrong_arguments_to_the_backend():
    assert "TensorDtypes=str" in str(Fingerprint.of(0, "allreduce", (["x"], None)))


def test_every_compared_operation_is_one_of_torchs_operation_types():
    from dldist._base.options import OpType

    assert {call.operation.op_type for call in CALLS.values()} <= {int(op) for op in OpType.__members__.values()}


def test_helper_is_ended_even_if_ending_the_backend_fails():
    class FailingShutdown(Backend):
        def shutdown(self):
            raise OSError("busy")

        abort = shutdown

    for end in ("shutdown", "abort"):
        helper = ProcessGroupGloo(dldist.HashStore(), 0, 1)
        with pytest.raises(OSError, match="busy"):
            getattr(_ProcessGroupWrapper(FailingShutdown(0, 1), helper), end)()
        with pytest.raises(dldist.DistBackendError):
            helper.group.barrier()
