"""init_process_group, new_group and related functions: every argument, every error, and everything
that ends groups."""

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import dldist
import pytest
import world_workers
from dldist import carriers
from dldist import distributed_c10d as c10d
from dldist._backends import world_backend
from dldist.rendezvous import Meeting
from dldist.testing import run_ranks
from procs import under_load
from thread_ranks import error_of, in_worlds, on_threads, separate_worlds, total, vector

NOT_INITIALIZED = "Default process group has not been initialized, please make sure to call init_process_group."
NON_MEMBER = dldist.GroupMember.NON_GROUP_MEMBER


@pytest.fixture(autouse=True)
def _no_default_world():
    before = sys.excepthook
    yield
    sys.excepthook = before
    left, text = dldist.is_initialized(), "a test has left a default world behind"
    if left:
        dldist.destroy_process_group()
    assert not left, text


# ---- init_process_group


@pytest.mark.parametrize(
    ("backend", "name", "config"),
    [
        (None, "undefined", "cpu:gloo"),
        ("gloo", "gloo", "cpu:gloo,cuda:gloo"),
        ("GLOO", "gloo", "cpu:gloo,cuda:gloo"),
        ("cpu:GLOO", "cpu:gloo", "cpu:gloo"),
        ("cpu:gloo,cuda:gloo", "cpu:gloo,cuda:gloo", "cpu:gloo,cuda:gloo"),
        ("fake", "fake", "cpu:fake,cuda:fake,hpu:fake,xpu:fake"),
    ],
)
def test_groups_report_the_names_of_their_backends(backend, name, config):
    dldist.init_process_group(backend)
    assert (dldist.get_backend(), dldist.get_backend_config()) == (name, config)
    assert dldist.get_backend_impl().name() == ("fake" if backend == "fake" else "gloo")
    assert dldist.get_backend_impl(device="cpu") is dldist.get_backend_impl()
    assert c10d._get_process_group_name(dldist.group.WORLD) == "0"
    assert dldist.get_pg_count() == 1
    dldist.destroy_process_group()
    assert dldist.get_pg_count() == 0


HASH = "a HashStore"

BAD_INIT = [
    ({"backend": "nccl"}, RuntimeError, "backend 'nccl' is unavailable"),
    ({"backend": "cpu:gloo,cuda:nccl"}, RuntimeError, "backend 'nccl' is unavailable"),
    ({"backend": "mpi"}, RuntimeError, "Distributed package doesn't have MPI built in"),
    ({"backend": "ucc"}, RuntimeError, "Distributed package doesn't have UCC built in"),
    ({"backend": "xccl"}, RuntimeError, "Distributed package doesn't have XCCL built in"),
    ({"backend": "unheard_of"}, AssertionError, "Unknown backend type unheard_of"),
    ({"backend": "cpu:unheard_of"}, AssertionError, "UNHEARD_OF"),
    ({"backend": "cpu:gloo,cuda"}, ValueError, "Invalid device:backend pairing"),
    ({"backend": "cpu:gloo,cpu:gloo"}, ValueError, "Duplicate device type cpu"),
    ({"backend": 3}, ValueError, "must be string-ish"),
    ({"init_method": "env://", "store": HASH, "rank": 0, "world_size": 1}, AssertionError, "both init_method and store"),
    ({"store": HASH, "rank": 0}, AssertionError, "world_size must be positive if using store"),
    ({"store": HASH, "world_size": 1}, AssertionError, "rank must be non-negative if using store"),
    ({"store": HASH, "world_size": 1, "rank": 1}, ValueError, "'rank' is out of range: got 1, expected 0 to 0"),
    ({"store": 3, "world_size": 1, "rank": 0}, TypeError, "store"),
    ({"timeout": "3"}, TypeError, "Expected timeout argument to be of type datetime.timedelta"),
    ({"timeout": True}, TypeError, "Expected timeout argument to be of type datetime.timedelta"),
    ({"timeout": -1}, ValueError, "timeout"),
    ({"timeout": timedelta(seconds=-1)}, ValueError, "timeout"),
    ({"timeout": float("nan")}, ValueError, "timeout"),
    ({"timeout": float("inf")}, ValueError, "timeout"),
    ({"init_method": "env://"}, ValueError, "environment variable RANK expected, but not set"),
    ({"init_method": 3}, RuntimeError, "`url` must be a string"),
    ({"init_method": "nowhere://x"}, RuntimeError, "No rendezvous handler for nowhere://"),
    ({"init_method": "tcp://127.0.0.1", "rank": 0, "world_size": 1}, ValueError, "port number missing"),
    ({"init_method": "tcp://127.0.0.1:70000", "rank": 0, "world_size": 1}, ValueError, "Port out of range"),
    ({"rank": "0", "world_size": 1}, RuntimeError, "`rank` must be an integer"),
    ({"device_id": 0}, ValueError, "device_id"),
    ({"device_id": "cuda:0"}, ValueError, "cuda:0"),
    ({"device_id": 3.5}, ValueError, "device_id"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), BAD_INIT)
def test_init_process_group_rejects_wrong_arguments(arguments, kind, text, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    nothing = {name: NotImplementedError("cannot load it: there is none") for name in carriers.NAMES}
    monkeypatch.setattr(carriers, "_reasons", nothing)
    given = {name: dldist.HashStore() if value is HASH else value for name, value in arguments.items()}
    error = error_of(dldist.init_process_group, **given)
    assert isinstance(error, kind)
    assert text in str(error)
    assert not dldist.is_initialized()
    assert dldist.get_pg_count() == 0


@pytest.mark.parametrize("timeout", [timedelta(seconds=9), 9, 9.0])
def test_timeout_may_be_a_timedelta_or_seconds(timeout):
    dldist.init_process_group(timeout=timeout, group_name="no matter", pg_options=object())
    assert dldist.default_world().timeout == dldist.group.WORLD.get_timeout() == timedelta(seconds=9)
    assert dldist.group.WORLD.bound_device_id is None
    # A group's default timeout comes from the backend, not from the parent.
    assert dldist.new_group([0]).get_timeout() == timedelta(minutes=30)
    assert dldist.new_group([0], timeout=3).get_timeout() == timedelta(seconds=3)
    dldist.set_timeout(2.5)
    assert dldist.default_world().timeout == dldist.group.WORLD.get_timeout() == timedelta(seconds=2.5)
    dldist.destroy_process_group()


def test_second_call_of_init_process_group_is_rejected():
    dldist.init_process_group()
    error = error_of(dldist.init_process_group)
    assert isinstance(error, ValueError)
    assert str(error) == "trying to initialize the default process group twice!"
    assert dldist.is_initialized()
    dldist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_init_process_group_in_a_forked_child_says_that_it_was_forked():
    dldist.init_process_group()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, repr(error_of(dldist.init_process_group)).encode())
        os._exit(0)
    text = os.read(reader, 1000).decode()
    os.waitpid(child, 0)
    os.close(reader), os.close(writer)
    assert text.startswith("ValueError") and f"was forked from process {os.getpid()} after init_process_group()" in text
    dldist.destroy_process_group()


def test_init_process_group_can_succeed_after_it_has_failed():
    store = dldist.HashStore()

    def rank_of(rank):
        # One rank fails several times without the other; then both find each other.
        for _ in range(3 if rank == 0 else 1):
            lone = dldist.PrefixStore(f"of rank {rank}", store)
            error = error_of(dldist.init_process_group, store=lone, rank=rank, world_size=2, timeout=0.05)
            assert isinstance(error, dldist.DistTimeoutError)
            assert not dldist.is_initialized()
        dldist.init_process_group(store=store, rank=rank, world_size=2, timeout=10)
        result = total(), total(dldist.new_group([0, 1])), c10d._get_process_group_name(dldist.group.WORLD)
        dldist.destroy_process_group()
        return result

    with separate_worlds():
        assert on_threads(2, rank_of) == [(2, 2, "0")] * 2


def test_store_serves_several_worlds_in_sequence():
    store = dldist.HashStore()
    for _ in range(5):
        assert in_worlds(2, lambda rank: total(), store=store) == [2, 2]


def test_init_barrier_of_new_group_includes_ranks_outside_the_group(monkeypatch):
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")

    def case(rank):
        group = dldist.new_group([0, 1])
        local = dldist.new_group([0], use_local_synchronization=True) if rank == 0 else None
        # Ranks outside the group also take part in its barrier.
        assert (dldist.new_group([1], timeout=3) == NON_MEMBER) == (rank == 0)
        return total(group), local is None or total(local)

    assert in_worlds(2, case) == [(2, 1), (2, True)]


def test_failed_init_barrier_of_new_group_ends_the_group(monkeypatch):
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")

    def case(rank):
        if rank == 1:
            return None
        error = error_of(dldist.new_group, [0], timeout=0.1)
        return type(error), list(c10d._world.pg_map) == [dldist.group.WORLD]

    assert in_worlds(2, case) == [(dldist.DistStoreTimeoutError, True), None]


@pytest.mark.parametrize(("make", "argument"), [(dldist.init_process_group, "init_method"), (dldist.World, "store")])
def test_interrupted_init_process_group_leaves_no_group(make, argument, monkeypatch):
    closed = []

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Meeting, "mark_connected", interrupt)
    monkeypatch.setattr(Meeting, "close", lambda self: closed.append(self))
    with pytest.raises(KeyboardInterrupt):
        make(**{argument: "tcp://127.0.0.1:0"}, rank=0, world_size=1)
    assert len(closed) == 1 and not dldist.is_initialized() and dldist.get_pg_count() == 0


def test_destroy_process_group_logs_the_operations_that_it_waits_for(monkeypatch, caplog):
    monkeypatch.setattr(world_backend, "CLOSE_TIMEOUT_S", 0.05)
    dldist.init_process_group()
    late = dldist.irecv(vector(0), 0, tag=4)
    dldist.destroy_process_group()
    (record,) = caplog.records
    assert "was closed with operations under way after" in record.message
    assert "s: recv from rank 0 (tag 4) (test_c10d_groups.py:" in record.message
    assert isinstance(late.exception(), dldist.DistError)


EXCEPTHOOK = """
import dldist
for _ in range(2):
    dldist.init_process_group()
    dldist.destroy_process_group()
raise LookupError("first\\nsecond")
"""


def test_uncaught_exceptions_begin_with_the_rank():
    code = f"import sys; sys.path[:] = {sys.path!r}\n{EXCEPTHOOK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[0] == "[rank0]: Traceback (most recent call last):"
    assert lines[-2:] == ["[rank0]: LookupError: first", "[rank0]: second"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: dldist.all_reduce(vector(1)),
        lambda: dldist.barrier(),
        lambda: dldist.new_group([0]),
        lambda: dldist.new_subgroups(1),
        lambda: dldist.new_subgroups_by_enumeration([[0]]),
        lambda: dldist.split_group(None, [[0]]),
        lambda: dldist.shrink_group([1]),
        lambda: dldist.set_timeout(timedelta(1)),
        lambda: dldist.get_rank(),
        lambda: dldist.get_world_size(),
        lambda: dldist.get_backend(),
        lambda: dldist.get_backend_config(),
        lambda: dldist.get_backend_impl(),
        lambda: dldist.get_process_group_ranks(None),
        lambda: dldist.default_world(),
    ],
)
def test_module_level_calls_require_init_process_group(call):
    error = error_of(call)
    assert type(error) is ValueError
    assert str(error) == NOT_INITIALIZED


# ---- new_group


def test_new_group_returns_a_group_only_to_its_members():
    def case(rank):
        group = dldist.new_group([2, 1], group_desc="a pair")
        assert dldist.get_pg_count() == 2
        if rank == 0:
            assert group == NON_MEMBER
            assert (dldist.get_rank(group), dldist.get_world_size(group)) == (-1, -1)
            return None
        assert group.group_desc == "a pair"
        assert dldist.get_process_group_ranks(group) == [1, 2]
        return dldist.get_rank(group), group.group_name, total(group, rank)

    assert in_worlds(3, case) == [None, (0, "1", 3), (1, "1", 3)]


def test_new_group_keeps_the_given_order_of_ranks():
    def case(rank):
        group = dldist.new_group([2, 0], sort_ranks=False)
        return None if rank == 1 else (dldist.get_rank(group), dldist.get_process_group_ranks(group))

    assert in_worlds(3, case) == [(1, [2, 0]), None, (0, [2, 0])]


def test_new_group_with_local_synchronization_needs_only_the_members():
    def case(rank):
        names = []
        if rank == 0:
            names = [dldist.new_group([0], use_local_synchronization=True).group_name for _ in range(3)]
            assert len(set(names)) == 3
        if rank != 1:
            # The ranks have made different numbers of groups.
            group = dldist.new_group([0, 2], use_local_synchronization=True)
            names.append(group.group_name)
            assert total(group, rank) == 2
        every = dldist.new_group()
        return names[-1:], every.group_name, total(every)

    (first, *rest), (none, *_), (last, *others) = in_worlds(3, case)
    assert first == last and none == []
    assert rest == others == ["1", 3]


def test_new_group_with_local_synchronization_returns_none_to_non_members():
    """A rank outside a local group must get None, as with torch, instead of NON_GROUP_MEMBER."""

    def case(rank):
        own = dldist.new_group([1 - rank])
        local = dldist.new_group([1 - rank], use_local_synchronization=True)
        return own, local

    assert in_worlds(2, case) == [(NON_MEMBER, None)] * 2


def test_groups_with_a_rank_in_common_may_be_made_in_any_order():
    """Only members make local groups, so no order is needed. If all ranks had to take part, these
    calls would hang."""

    def case(rank):
        pairs = {0: [[0, 1], [0, 2]], 1: [[0, 1], [1, 2]], 2: [[0, 2], [1, 2]]}[rank]
        return [total(dldist.new_group(pair, use_local_synchronization=True), rank) for pair in pairs]

    assert in_worlds(3, case) == [[1, 2], [1, 3], [2, 3]]


def test_groups_that_wait_for_each_other_time_out():
    all_have_said = threading.Barrier(3)

    def case(rank):
        error = error_of(dldist.new_group, [0, 1] if rank == 0 else [0, 1, 2], timeout=0.3)
        # otherwise a rank that leaves its world would become the other ranks' error
        all_have_said.wait(20)
        assert isinstance(error, dldist.DistTimeoutError)
        return str(error)

    texts = in_worlds(3, case)
    assert "still missing: rank 1" in texts[0]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"ranks": [0, 0]}, ValueError, "'ranks' has a rank twice: got [0, 0], expected"),
        ({"ranks": [0, 1, 0]}, ValueError, "less or equal to the world size"),
        ({"ranks": [2]}, ValueError, "within the world_size"),
        ({"ranks": [-1]}, ValueError, "within the world_size"),
        ({"ranks": []}, ValueError, "empty"),
        ({"ranks": ["0"]}, TypeError, "must be a sequence of integers, not"),
        ({"ranks": 0}, TypeError, "must be a sequence of integers, not"),
        ({"ranks": [0.5]}, TypeError, "must be a sequence of integers, not"),
        ({"timeout": "x"}, TypeError, "timeout"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"backend": "nccl"}, RuntimeError, "NCCL"),
        ({"backend": "unheard_of"}, AssertionError, "unheard_of"),
        ({"backend": 3}, ValueError, "string-ish"),
        ({"backend": "mpi", "use_local_synchronization": True}, ValueError, "MPI"),
        ({"device_id": "cpu"}, AssertionError, "bound device"),
    ],
)
def test_new_group_rejects_wrong_arguments(arguments, kind, text):
    def case(rank):
        error = error_of(dldist.new_group, **{"ranks": [0, 1], **arguments})
        return isinstance(error, kind) and text in str(error), total()

    assert in_worlds(2, case) == [(True, 2)] * 2


def test_same_tag_and_ranks_return_the_same_group():
    def case(rank):
        group = c10d._new_group_with_tag([0, 1], pg_tag="t")
        assert c10d._new_group_with_tag([0, 1], pg_tag="t") is group
        assert c10d._find_pg_by_ranks_and_tag("t", [1, 0]) is group
        assert c10d._find_pg_by_ranks_and_tag("user:t", [0, 1]) is group
        assert c10d._find_pg_by_ranks_and_tag("t", [0]) is None
        assert c10d._find_pg_by_ranks_and_tag("", [0, 1]) is dldist.group.WORLD
        return c10d._world.pg_to_tag[group]

    assert in_worlds(2, case) == ["user:t"] * 2


def test_new_subgroups_creates_groups_of_the_given_ranks():
    def case(rank):
        first, every = dldist.new_subgroups(2)
        listed, both = dldist.new_subgroups_by_enumeration([[0, 3], [1]])
        assert (listed is None) == (rank == 2)
        assert both.count(NON_MEMBER) == (2 if rank == 2 else 1)
        assert every[rank // 2] is first and every[1 - rank // 2] == NON_MEMBER
        return total(first, rank), None if listed is None else total(listed, rank)

    assert in_worlds(4, case) == [(1, 3), (1, 1), (5, None), (5, 3)]


def test_new_subgroups_rejects_wrong_arguments():
    cases = [
        (dldist.new_subgroups, None, ValueError, "group_size"),
        (dldist.new_subgroups, 0, ValueError, "must be positive"),
        (dldist.new_subgroups, -1, ValueError, "must be positive"),
        (dldist.new_subgroups, 4, ValueError, "must not exceed"),
        (dldist.new_subgroups, 2, ValueError, "divisible"),
        (dldist.new_subgroups_by_enumeration, [], ValueError, "cannot be empty"),
        (dldist.new_subgroups_by_enumeration, None, ValueError, "cannot be empty"),
        (dldist.new_subgroups_by_enumeration, [[0, 1], [1, 2]], ValueError, "Rank 1 has appeared in both subgroup"),
    ]

    def case(rank):
        for call, argument, kind, text in cases:
            error = error_of(call, argument)
            assert isinstance(error, kind) and text in str(error), (argument, error)
        return total()

    assert in_worlds(3, case) == [3] * 3


def test_split_group_returns_the_new_group_of_each_rank():
    def case(rank):
        part = dldist.split_group(split_ranks=[[0, 3], [2, 1]])
        inner = dldist.split_group(part, [[1]], group_desc="inner", timeout=timedelta(seconds=2))
        assert (inner is None) == (part.rank() == 0)
        if inner is not None:
            assert (inner.group_desc, inner.get_timeout()) == ("inner", timedelta(seconds=2))
            # A group stays usable when the group that it was split from is destroyed.
            dldist.destroy_process_group(part)
            return total(inner, rank)
        return part.group_desc

    assert in_worlds(4, case) == ["default_pg:split:0,3", 1, "default_pg:split:2,1", 3]


def test_split_group_keeps_the_order_of_ranks():
    def case(rank):
        part = dldist.split_group(split_ranks=[[2, 0, 1]])
        gathered = [None] * 3
        dldist.all_gather_object(gathered, rank, group=part)
        return part.rank(), dldist.get_process_group_ranks(part), gathered

    assert in_worlds(3, case) == [(place, [2, 0, 1], [2, 0, 1]) for place in (1, 2, 0)]


@pytest.mark.parametrize(
    ("ranks", "kind", "text"),
    [
        (None, ValueError, "None or empty"),
        ([], ValueError, "None or empty"),
        ([[]], ValueError, "cannot be empty"),
        ([[0, 0]], ValueError, "duplicate"),
        ([[0, 1, 0]], ValueError, "less or equal"),
        ([[0, 5]], ValueError, "got [0, 5], expected ranks in 0 to 1"),
        ([0], TypeError, "expected a list of ranks"),
        ([["0"]], TypeError, "expected a list of ranks"),
    ],
)
def test_split_group_rejects_wrong_arguments(ranks, kind, text):
    def case(rank):
        error = error_of(dldist.split_group, None, ranks)
        return isinstance(error, kind) and text in str(error), total()

    assert in_worlds(2, case) == [(True, 2)] * 2


def test_split_group_requires_a_group_of_the_default_world():
    dldist.init_process_group()
    with dldist.World() as other:
        for group in (other, NON_MEMBER, "group"):
            assert str(error_of(dldist.split_group, group, [[0]])) == "Invalid process group specified"
    dldist.destroy_process_group()


# ---- the end


def test_calls_on_a_destroyed_group_are_rejected():
    def case(rank):
        group, world = dldist.new_group([0, 1]), dldist.group.WORLD
        name = group.group_name
        dldist.destroy_process_group(group)
        assert isinstance(error_of(dldist.all_reduce, vector(1), group=group), dldist.DistBackendError)
        for call in (dldist.destroy_process_group, dldist.get_backend, dldist.get_backend_config, dldist.get_rank, dldist.abort):
            assert isinstance(error_of(call, group), ValueError)
        assert isinstance(error_of(dldist.send, vector(1), 1 - rank, group=group), ValueError)
        assert isinstance(error_of(c10d._resolve_process_group, name), RuntimeError)
        assert total() == 2
        other = dldist.new_group([0, 1])
        dldist.destroy_process_group()
        assert not dldist.is_initialized() and dldist.group.WORLD is None
        for gone in (world, other):
            assert "closed" in str(error_of(dldist.all_reduce, vector(1), group=gone))
        assert isinstance(error_of(dldist.destroy_process_group), AssertionError)
        assert dldist.get_pg_count() == 0

    in_worlds(2, case)


def test_destroy_process_group_without_a_group_is_rejected():
    assert str(error_of(dldist.destroy_process_group)) == "Process group cannot be None"
    dldist.init_process_group()
    assert dldist.destroy_process_group(NON_MEMBER) is None
    assert dldist.abort(NON_MEMBER) is None
    assert isinstance(error_of(dldist.destroy_process_group, 3), ValueError)
    dldist.destroy_process_group()


@pytest.mark.parametrize("of_group", [True, False])
def test_abort_reports_its_reason_to_other_ranks(of_group):
    def case(rank):
        group = dldist.new_group([0, 1])
        if rank == 0:
            dldist.abort(group if of_group else None, "out of coffee")
            assert dldist.is_initialized() == of_group
            assert isinstance(error_of(dldist.barrier, group), dldist.DistAbortedError)
            return None
        began = time.monotonic()
        error = error_of(dldist.barrier, group)
        assert isinstance(error, dldist.DistAbortedError)
        return str(error), time.monotonic() - began

    text, seconds = in_worlds(2, case)[1]
    assert "out of coffee" in text and "rank 0" in text
    assert seconds < under_load(2)


def test_abort_process_group_aborts_the_group_on_all_ranks():
    def case(rank):
        if rank == 0:
            c10d._abort_process_group()
            return dldist.is_initialized()
        return isinstance(error_of(dldist.barrier), dldist.DistAbortedError)

    assert in_worlds(2, case) == [False, True]


@pytest.mark.parametrize("flags", [dldist.SHRINK_DEFAULT, dldist.SHRINK_ABORT])
def test_shrink_group_can_shrink_the_default_group(flags):
    def case(rank):
        if rank == 1:
            assert isinstance(error_of(dldist.shrink_group, [1]), RuntimeError)
            return None
        old = dldist.new_group([0, 2])
        group = dldist.shrink_group([1], shrink_flags=flags)
        assert group is dldist.group.WORLD
        assert isinstance(error_of(dldist.barrier, old), dldist.DistBackendError)
        assert dldist.get_process_group_ranks(None) == [0, 1]
        return dldist.get_rank(), dldist.get_world_size(), total(value=rank), total(dldist.new_group([0, 1]))

    # Rank 1 leaves before the others are done (in_worlds destroys its world), without effect.
    assert in_worlds(3, case) == [(0, 2, 2, 2), None, (1, 2, 2, 2)]


def test_shrink_group_can_shrink_a_group_twice():
    def case(rank):
        group = dldist.new_group([0, 1, 2])
        if rank == 1:
            return None
        smaller = dldist.shrink_group([1], group)
        assert dldist.get_process_group_ranks(smaller) == [0, 2]
        assert isinstance(error_of(dldist.barrier, group), dldist.DistBackendError)
        result = total(smaller, rank)
        if rank == 0:
            result += total(dldist.shrink_group([2], smaller), 10)
        return result

    assert in_worlds(3, case) == [12, None, 2]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((None,), TypeError),
        (((1,),), TypeError),
        (([],), ValueError),
        ((["1"],), TypeError),
        (([True],), TypeError),
        (([5],), ValueError),
        (([1, 1],), ValueError),
        (([0, 1],), ValueError),
        (([1], None, 7), ValueError),
        (([1], NON_MEMBER), ValueError),
    ],
)
def test_shrink_group_rejects_wrong_arguments(arguments, kind):
    def case(rank):
        return type(error_of(dldist.shrink_group, *arguments)), total()

    assert in_worlds(2, case) == [(kind, 2)] * 2


def test_shrink_group_lets_the_world_continue_without_a_killed_rank():
    assert world_workers.continue_without_rank_1() == [["0 2 2.0 2.0"], ["1 2 2.0 2.0"]]


# ---- the registry


def test_groups_can_be_found_by_their_names():
    def case(rank):
        group = dldist.new_group([0, 1])
        assert c10d._resolve_process_group(group.group_name) is group
        c10d._register_process_group("mine", group)
        assert c10d._resolve_process_group("mine") is group
        assert isinstance(error_of(c10d._register_process_group, "mine", group), RuntimeError)
        c10d._unregister_process_group("mine")
        c10d._unregister_process_group("mine")
        assert "mine" in str(error_of(c10d._resolve_process_group, "mine"))
        c10d._unregister_all_process_groups()
        assert isinstance(error_of(c10d._resolve_process_group, group.group_name), RuntimeError)

    in_worlds(2, case)


def test_configuration_lists_all_groups_of_the_rank():
    def case(rank):
        dldist.new_group([0], group_desc="one") if rank == 0 else dldist.new_group([0])
        return c10d._world.pg_config_info

    first, last = in_worlds(2, case)
    every = {
        "pg_name": "0",
        "pg_desc": "default_pg",
        "backend_config": "cpu:gloo",
        "ranks": [],
        "group_size": 2,
        "group_count": 2,
    }
    assert first == [every, {**every, "pg_name": "1", "pg_desc": "one", "ranks": [0], "group_size": 1}]
    assert last == [every]


def test_duplicate_group_name_is_rejected():
    dldist.init_process_group()
    world = dldist.group.WORLD
    c10d._register_process_group("1", world)
    assert "already registered under the name '1'" in str(error_of(dldist.new_group, [0]))
    assert list(c10d._world.pg_map) == list(c10d._world.pg_names) == [world]
    assert c10d._resolve_process_group("1") is world
    assert total(dldist.new_group([0])) == 1
    dldist.destroy_process_group()


def test_private_registry_of_groups_can_be_replaced():
    dldist.init_process_group()
    before = c10d._world
    c10d._world = c10d._World()
    try:
        assert not dldist.is_initialized() and dldist.group.WORLD is None
        dldist.init_process_group()
        inner = dldist.group.WORLD
        dldist.destroy_process_group()
    finally:
        c10d._world = before
    assert dldist.group.WORLD is not inner and dldist.GroupMember.WORLD is dldist.group.WORLD
    assert total() == 1
    dldist.destroy_process_group()


def test_set_timeout_rejects_wrong_arguments():
    dldist.init_process_group()
    cases = [(("x",), TypeError), ((-1,), ValueError), ((1, NON_MEMBER), ValueError), ((1, object()), AssertionError)]
    for arguments, kind in cases:
        assert isinstance(error_of(dldist.set_timeout, *arguments), kind)
    dldist.destroy_process_group()


def test_threads_of_one_process_can_have_separate_worlds():
    assert run_ranks(world_workers.rank_size_and_parent, 2, timeout=20) == [(0, 2, os.getpid()), (1, 2, os.getpid())]
