"""Cases that the ranks of test_c10d_calls.py run: functions of a rank and the size, called on every
rank concurrently.

This module does not import pytest, so that the children start faster. The default world has two or
three ranks.
"""

import array
import datetime
import inspect
import linecache
import time
import warnings
from contextlib import contextmanager

import dldist as dist

SHORT_S = 0.3

# All cases, by the number of ranks that they need.
CASES_FOR_TWO_AND_THREE = [
    "collectives_in_the_default_world",
    "collectives_in_a_group_of_another_order",
    "collectives_in_separate_groups",
    "works",
    "late_message",
    "coalesced_calls",
    "former_names",
    "non_members",
    "messages",
    "any_source",
    "batches",
    "coalescing",
    "coalescing_in_a_group",
    "failing_coalescing",
    "coalescing_returns_illegal_works",
    "monitored_barrier_names_the_missing",
    "collectives_in_low_level_calls",
    "messages_in_low_level_calls",
    "any_source_in_low_level_calls",
    "coalescing_in_low_level_calls",
]
CASES_FOR_TWO = ["shorter_and_longer_messages", "one_calls_timeout", "messages_timeouts", "messages_timeouts_in_low_level_calls",
          "barriers_timeout", "settings_of_a_group"]


class Cpu:
    """The backend and the device of the tensors. Tests of other backends replace `backend`."""

    name = "gloo"
    config = "cpu:gloo,cuda:gloo"
    device = "cpu"
    to_the_end = ()  # wait() arguments that make it wait on the host
    has_scan = True
    tells_others = True  # ranks report that they aborted, even to a rank that calls later

    def make(self, code, values):
        return array.array(code, values)

    def sends_first(self, place):
        """Return True if a rank of a ring must send before it receives."""
        return False

    def worlds(self, ranks):
        """Return two groups without c10d names: one of all ranks, and one in this order."""
        world = dist.default_world()
        return world, world.split(ranks)

    def settle(self, call, *args, **named):
        """Call it, and wait on the host."""
        assert call(*args, **named) is None

    def names_the_missing(self, call, rank):
        """Return the text that a timeout error must contain if this rank has not joined."""
        return f"rank {rank}"

    def end_failed(self, group):
        """Destroy a failed group."""
        dist.destroy_process_group(group)


backend = Cpu()


def f(*values):
    return backend.make("f", values)


def values_of(rank, count=2):
    """Return a rank's input."""
    return f(*(10.0 * (rank + 1) + index for index in range(count)))


def total(ranks, index=0):
    return sum(10.0 * (rank + 1) + index for rank in ranks)


@contextmanager
def raises(kind, text):
    try:
        yield
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


@contextmanager
def warns(kind, text):
    """Expect one warning, at the line of this file that made the call."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    assert len(seen) == 1, [str(warning.message) for warning in seen]
    assert seen[0].category is kind and text in str(seen[0].message), seen[0]
    assert seen[0].filename == __file__, seen[0].filename
    assert "dist" in linecache.getline(__file__, seen[0].lineno), seen[0].lineno


@contextmanager
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def end(result, is_async):
    """Check that a synchronous call returned None, or that an asynchronous one returned a Work."""
    if not is_async:
        assert result is None, result
        return
    assert isinstance(result, dist.Work), result
    assert result.wait(*backend.to_the_end) is True
    assert result.is_completed() and result.is_success() and result.exception() is None


# ---- every collective, in every group that it can be called with


def collectives(ranks, me, root, kind):
    """Yield each collective among these ranks (in the group's order) with a check of its results.

    `me` is this rank's index in the group and `root` the root's; kind supplies the arguments of the
    calls.
    """
    size, member = len(ranks), ranks[me]
    everybody = [x for rank in ranks for x in values_of(rank)]

    x = values_of(member)
    yield kind(dist.all_reduce, x), lambda: x.tolist() == [total(ranks), total(ranks, 1)]
    if backend.has_scan:
        prefix = values_of(member)
        yield kind(dist.scan, prefix), lambda: prefix.tolist() == [total(ranks[: me + 1]), total(ranks[: me + 1], 1)]
        lower = values_of(member)
        of_lower = [total(ranks[:me]), total(ranks[:me], 1)] if me > 0 else lower.tolist()
        yield kind(dist.exscan, lower), lambda: lower.tolist() == of_lower
    top = values_of(member)
    yield kind(dist.all_reduce, top, op=dist.ReduceOp.MAX), lambda: top.tolist() == values_of(max(ranks)).tolist()
    copy = values_of(member)
    yield kind(dist.broadcast, copy, src=root), lambda: copy.tolist() == values_of(ranks[root]).tolist()
    summed = values_of(member)
    expected = [total(ranks), total(ranks, 1)] if me == root else summed.tolist()
    yield kind(dist.reduce, summed, dst=root), lambda: summed.tolist() == expected
    outs = [f(0, 0) for _ in ranks]
    yield kind(dist.all_gather, outs, values_of(member)), lambda: [x for out in outs for x in out] == everybody
    out = f(*[0] * 2 * size)
    yield kind(dist.all_gather_single, out, values_of(member)), lambda: out.tolist() == everybody
    lists = [[f(0, 0), f(0)] for _ in ranks]
    yield (
        kind(dist.all_gather_coalesced, lists, [values_of(member), f(member)]),
        lambda: [x for first, _ in lists for x in first] == everybody and [x for _, last in lists for x in last] == list(ranks),
    )
    gathered = [f(0, 0) for _ in ranks] if me == root else None
    yield (
        kind(dist.gather, values_of(member), gathered, dst=root),
        lambda: gathered is None or [x for out in gathered for x in out] == everybody,
    )
    in_one = f(*[0] * 2 * size) if me == root else None
    yield kind(dist.gather_single, values_of(member), in_one, dst=root), lambda: in_one is None or in_one.tolist() == everybody
    part = f(0, 0)
    parts = [values_of(rank) for rank in ranks] if me == root else None
    yield kind(dist.scatter, part, parts, src=root), lambda: part.tolist() == values_of(member).tolist()
    reduced = f(0)
    yield (
        kind(dist.reduce_scatter, reduced, [f(member + place) for place in range(size)]),
        lambda: reduced.tolist() == [sum(ranks) + size * me],
    )
    single = f(0)
    yield (
        kind(dist.reduce_scatter_single, single, f(*(member + place for place in range(size)))),
        lambda: single.tolist() == [sum(ranks) + size * me],
    )
    got = [f(0) for _ in ranks]
    yield (
        kind(dist.all_to_all, got, [f(10 * member + place) for place in range(size)]),
        lambda: [x for out in got for x in out] == [10.0 * rank + me for rank in ranks],
    )
    exchanged = f(*[0] * size)
    yield (
        kind(dist.all_to_all_single, exchanged, f(*(10 * member + place for place in range(size)))),
        lambda: exchanged.tolist() == [10.0 * rank + me for rank in ranks],
    )
    splits = ([size - me] * size, [size - place for place in range(size)])
    uneven, given = f(*[0] * sum(splits[0])), f(*[member] * sum(splits[1]))
    yield (
        kind(dist.all_to_all_single, uneven, given, *splits),
        lambda: uneven.tolist() == [float(rank) for rank in ranks for _ in range(size - me)],
    )
    yield kind(dist.barrier), lambda: True


def run_collectives(ranks, me, group, is_world_rank, **how):
    """Run all collectives with this group. Roots are ranks of the default world or of the group."""
    for root in range(len(ranks)):

        def kind(call, *args, **named):
            given = dict(how, group=group, **named)
            for name in ("src", "dst"):
                if name in given and is_world_rank:
                    given[name] = ranks[given[name]]
                elif name in given:
                    given[f"group_{name}"] = given.pop(name)
            accepted = inspect.signature(call).parameters
            given = {name: value for name, value in given.items() if name in accepted}
            is_async = given.get("async_op", False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                result = call(*args, **given)
            if is_async and call is dist.all_gather_coalesced:
                assert isinstance(result, dist.Future)
                result.wait()
            else:
                end(result, is_async)
            return call.__name__

        for name, is_right in collectives(ranks, me, root, kind):
            assert is_right(), f"{name}, root {root}, {group}, {how}"


def collectives_in_the_default_world(rank, size):
    ranks = list(range(size))
    for group in (None, dist.group.WORLD):
        run_collectives(ranks, rank, group, is_world_rank=True)
        run_collectives(ranks, rank, group, is_world_rank=True, async_op=True)
        run_collectives(ranks, rank, group, is_world_rank=False)
    run_collectives(ranks, rank, None, is_world_rank=True, timeout=20)
    run_collectives(ranks, rank, None, is_world_rank=True, timeout=datetime.timedelta(seconds=20), async_op=True)


def collectives_in_a_group_of_another_order(rank, size):
    """Global ranks must be ranks of the world, and group ranks indexes in the list."""
    ranks = list(range(size))[::-1]
    group = dist.new_group(ranks, sort_ranks=False)
    assert dist.get_process_group_ranks(group) == ranks
    assert dist.get_rank(group) == ranks.index(rank) == dist.get_group_rank(group, rank)
    assert [dist.get_global_rank(group, place) for place in range(size)] == ranks
    for is_async in (False, True):
        run_collectives(ranks, ranks.index(rank), group, is_world_rank=True, async_op=is_async)
        run_collectives(ranks, ranks.index(rank), group, is_world_rank=False, async_op=is_async)
    dist.destroy_process_group(group)


def collectives_in_separate_groups(rank, size):
    """A World and a Group must number their ranks themselves, unlike the default world."""
    ranks = list(range(size))
    world, group = backend.worlds(ranks[::-1])
    assert isinstance(world, dist.Group) and isinstance(group, dist.Group)
    for own, order in ((world, ranks), (group, ranks[::-1])):
        run_collectives(order, order.index(rank), own, is_world_rank=False)
        run_collectives(order, order.index(rank), own, is_world_rank=False, async_op=True)
        assert dist.get_rank(own) == order.index(rank) and dist.get_world_size(own) == size
        with raises(ValueError, "has no ranks in the default world"):
            dist.broadcast(f(1), 0, group=own)
        with raises(ValueError, "has no ranks in the default world"):
            dist.send(f(1), 0, group=own)
    group.close()


def works(rank, size):
    """Asynchronous calls must return works with results and exceptions."""
    x = f(1, 2)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.result()[0] is x
    assert work.get_future().wait()[0] is x
    outs = [f(0) for _ in range(size)]
    work = dist.all_gather(outs, f(rank), async_op=True)
    work.wait()
    assert all(result is out for result, out in zip(work.result(), outs, strict=True))
    assert dist.barrier(async_op=True).wait() is True


def late_message(rank, size):
    """A receiver must be able to poll for a message: first it is missing, then it has arrived."""
    # over NCCL, a group's first call waits for all ranks, and its first message for the peer
    dist.barrier()
    if rank == 0:
        dist.send(f(0), 1, tag=98)
    elif rank == 1:
        dist.recv(f(0), 0, tag=98)
    group = dist.new_group(list(range(size)))
    dist.barrier(group)
    x = f(0)
    if rank == 1:
        late = dist.irecv(x, 0, tag=99)
        assert not late.is_completed()
        with raises(TimeoutError, ""):
            late.wait(datetime.timedelta(seconds=0.05))
    dist.barrier(group)  # rank 0 does not send before rank 1 has checked
    if rank == 0:
        dist.isend(f(7), 1, tag=99).wait(*backend.to_the_end)
    elif rank == 1:
        assert late.wait() is True and late.source_rank() == 0
        assert x.tolist() == [7]
    dist.destroy_process_group(group)


def coalesced_calls(rank, size):
    """all_reduce_coalesced must work without a warning, with one tensor and with several."""
    for is_async in (False, True):
        x, y = f(rank), f(rank, 1)
        with no_warnings():
            result = dist.all_reduce_coalesced([x, y], async_op=is_async)
        assert isinstance(result, dist.Future) == is_async
        if is_async:
            assert result.wait()[0] is x
        assert x.tolist() == [sum(range(size))] and y.tolist() == [sum(range(size)), size]
    alone = f(1)
    with no_warnings():
        dist.all_reduce_coalesced(alone, op=dist.ReduceOp.PRODUCT)
    assert alone.tolist() == [1]


def former_names(rank, size):
    """Names that torch has replaced must work, without a warning."""
    with no_warnings():
        out = f(*[0] * size)
        for name in ("all_gather_into_tensor", "_all_gather_base"):
            assert getattr(dist, name)(out, f(rank)) is None
            assert out.tolist() == list(range(size))
        part = f(0)
        for name in ("reduce_scatter_tensor", "_reduce_scatter_base"):
            work = getattr(dist, name)(part, f(*range(size)), async_op=True)
            work.wait()
            assert part.tolist() == [size * rank]
        gathered = f(*[0] * size) if rank == 0 else None
        dist.gather_into_tensor(f(rank), gathered)
        assert gathered is None or gathered.tolist() == list(range(size))
        dist.all_gather_coalesced([[f(0)] for _ in range(size)], [f(1)])
        assert dist.reduce_op is dist.ReduceOp
        assert dist.distributed_c10d._get_global_rank(dist.group.WORLD, 1) == 1
    with raises(AttributeError, "NONSENSE"):
        _ = dist.reduce_op.NONSENSE
    assert all(dist.supports_complex(op) for op in (dist.ReduceOp.SUM, dist.ReduceOp.PREMUL_SUM, dist.ReduceOp.PREMUL_SUM(2.0)))
    assert not any(dist.supports_complex(getattr(dist.ReduceOp, op)) for op in ("MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR"))


def non_members(rank, size):
    """A call by a non-member must warn at the caller's line and change nothing."""
    group = dist.new_group([0])
    is_member = rank == 0
    assert (group == dist.GroupMember.NON_GROUP_MEMBER) == (not is_member)
    assert dist.get_rank(group) == (0 if is_member else -1)
    assert dist.get_world_size(group) == (1 if is_member else -1)
    if is_member:
        dist.destroy_process_group(group)
        return
    x = values_of(rank)
    calls = {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "barrier": lambda: dist.barrier(group),
        "monitored_barrier": lambda: dist.monitored_barrier(group),
        "all_gather": lambda: dist.all_gather([x], x, group),
        "all_gather_single": lambda: dist.all_gather_single(x, x, group),
        "gather": lambda: dist.gather(x, [x], 0, group),
        "gather_single": lambda: dist.gather_single(x, x, 0, group),
        "scatter": lambda: dist.scatter(x, [x], 0, group),
        "reduce_scatter": lambda: dist.reduce_scatter(x, [x], group=group),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(x, x, group=group),
        "all_to_all": lambda: dist.all_to_all([x], [x], group),
        "all_to_all_single": lambda: dist.all_to_all_single(x, x, group=group),
        "isend": lambda: dist.isend(x, 0, group),
        "irecv": lambda: dist.irecv(x, 0, group),
        "send": lambda: dist.send(x, 0, group),
        "all_gather_object": lambda: dist.all_gather_object([None], 1, group),
        "gather_object": lambda: dist.gather_object(1, [None], 0, group),
        "broadcast_object_list": lambda: dist.broadcast_object_list([1], 0, group),
        "scatter_object_list": lambda: dist.scatter_object_list([1], [1], 0, group),
        "send_object_list": lambda: dist.send_object_list([1], 0, group),
    }
    for name, call in calls.items():
        with warns(UserWarning, f"Running {name} on global rank {rank} which does not belong to the given group."):
            assert call() is None, name
    with warns(UserWarning, "Running recv on"):
        assert dist.recv(x, 0, group) == -1
    with warns(UserWarning, "Running recv_object_list on"):
        assert dist.recv_object_list([1], 0, group) == -1
    with warns(UserWarning, "Running all_reduce on"), dist._coalescing_manager(group) as manager:
        dist.all_reduce(x, group=group)
    manager.wait()
    assert manager.works == []
    assert x == values_of(rank)


# ---- messages


def messages(rank, size):
    """Messages around a ring must arrive, in the default world and in a reordered group, by global
    and by group ranks."""
    ranks = list(range(size))[::-1]
    backwards = dist.new_group(ranks, sort_ranks=False)
    for group, order in ((None, list(range(size))), (dist.group.WORLD, list(range(size))), (backwards, ranks)):
        place = order.index(rank)
        after, before = (place + 1) % size, (place - 1) % size
        for is_global in (True, False):
            to = {"dst": order[after]} if is_global else {"group_dst": after}
            source = {"src": order[before]} if is_global else {"group_src": before}
            x = f(0, 0)
            sends_first = backend.sends_first(place)
            sent = dist.isend(values_of(rank), group=group, tag=3, **to) if sends_first else None
            work = dist.irecv(x, group=group, tag=3, **source)
            if not sends_first:
                sent = dist.isend(values_of(rank), group=group, tag=3, **to)
            assert work.wait() is True and sent.wait() is True
            assert x.tolist() == values_of(order[before]).tolist()
            assert work.source_rank() == before  # a rank of the group, as in c10d

            y = f(0, 0)
            if place == 0:
                dist.send(values_of(rank), group=group, **to)
                assert dist.recv(y, group=group, **source) == order[before]
            else:
                assert dist.recv(y, group=group, **source) == order[before]
                dist.send(values_of(rank), group=group, **to)
            assert y.tolist() == values_of(order[before]).tolist()
    dist.destroy_process_group(backwards)


def any_source(rank, size):
    """recv without a source must return the sender's global rank, also in a reordered group."""
    ranks = list(range(size))[::-1]
    backwards = dist.new_group(ranks, sort_ranks=False)
    for group in (None, backwards):
        if rank == 0:
            seen = {}
            for _ in range(size - 1):
                x = f(0, 0)
                source = dist.recv(x, group=group)
                seen[source] = x.tolist()
            assert seen == {other: values_of(other).tolist() for other in range(1, size)}, seen
        else:
            dist.send(values_of(rank), 0, group=group)
        dist.barrier()
    _, own = backend.worlds(ranks)
    if rank == 0:
        assert {dist.recv(f(0, 0), group=own) for _ in range(size - 1)} == set(range(size - 1))
    else:
        dist.send(values_of(rank), group=own, group_dst=size - 1)
    own.close()
    dist.destroy_process_group(backwards)


def shorter_and_longer_messages(rank, size):
    """A shorter message must fill the beginning; a longer one must be an error for its receiver."""
    if rank == 0:
        dist.send(f(1), 1)
        dist.send(f(1, 2, 3), 1)
    elif rank == 1:
        x = f(7, 8)
        assert dist.recv(x, 0) == 0
        assert x.tolist() == [1, 8]
        with raises(RuntimeError, "12"):
            dist.recv(f(0, 0), 0)
    dist.barrier()


def batches(rank, size):
    """batch_isend_irecv must return one work per operation, in order, for global or group ranks."""
    ranks = list(range(size))[::-1]
    backwards = dist.new_group(ranks, sort_ranks=False)
    for group, order in ((None, list(range(size))), (backwards, ranks)):
        place = order.index(rank)
        after, before = (place + 1) % size, (place - 1) % size
        for is_global in (True, False):
            x = f(0, 0)
            to = {"peer": order[after]} if is_global else {"group_peer": after}
            source = {"peer": order[before]} if is_global else {"group_peer": before}
            ops = [
                dist.P2POp(dist.isend, values_of(rank), group=group, tag=5, **to),
                dist.P2POp(dist.irecv, x, group=group, tag=5, **source),
            ]
            assert (ops[0].peer, ops[0].group_peer, ops[0].tag) == (order[after], after, 5)
            assert ops[1].op is dist.irecv and ops[1].tensor is x and ops[1].group is (group or dist.group.WORLD)
            assert f"group_src={place}, group_dst={after}," in repr(ops[0]), ops[0]
            works = dist.batch_isend_irecv(ops)
            assert len(works) == 2
            for work in works:
                end(work, is_async=True)
            assert x.tolist() == values_of(order[before]).tolist()
    dist.destroy_process_group(backwards)


# ---- the coalescing manager


def coalescing(rank, size):
    for is_async in (False, True):
        tensors = [f(rank, index) for index in range(3)]
        with dist._coalescing_manager(async_ops=is_async) as manager:
            for tensor in tensors:
                assert dist.all_reduce(tensor) is None
                assert tensor.tolist()[0] == rank, "it has run before the block ended"
        assert len(manager.works) == is_async
        manager.wait()
        assert [tensor.tolist() for tensor in tensors] == [[sum(range(size)), size * index] for index in range(3)]

        outs = [f(*[0] * size) for _ in range(2)]
        with dist._coalescing_manager(async_ops=is_async) as manager:
            for index, out in enumerate(outs):
                dist.all_gather_single(out, f(10 * index + rank))
        manager.wait()
        assert [out.tolist() for out in outs] == [[10.0 * index + other for other in range(size)] for index in range(2)]

        parts = [f(0) for _ in range(2)]
        with dist._coalescing_manager(async_ops=is_async) as manager:
            for part in parts:
                dist.reduce_scatter_single(part, f(*range(size)), op=dist.ReduceOp.MAX)
        manager.wait()
        assert [part.tolist() for part in parts] == [[rank]] * 2
    with dist._coalescing_manager() as manager:
        pass
    assert manager.works == []


def coalescing_in_a_group(rank, size):
    """Calls with another group must run immediately."""
    ranks = list(range(size))[::-1]
    group = dist.new_group(ranks, sort_ranks=False)
    for own in (group, backend.worlds(ranks)[1]):
        inside, outside = f(rank), f(rank)
        with dist._coalescing_manager(own):
            dist.all_reduce(inside, group=own)
            dist.all_reduce(outside)
            assert inside.tolist() == [rank] and outside.tolist() == [sum(range(size))]
        assert inside.tolist() == [sum(range(size))]
    own.close()
    dist.destroy_process_group(group)


def failing_coalescing(rank, size):
    """If the block raises, nothing must run and nothing must stay recorded."""
    x = f(rank)
    with raises(KeyError, "stop"), dist._coalescing_manager():
        dist.all_reduce(x)
        raise KeyError("stop")
    assert x.tolist() == [rank]
    with raises(RuntimeError, "type"), dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_gather_single(f(*[0] * size), x)
    with raises(RuntimeError, "coalesce"), dist._coalescing_manager(), dist._coalescing_manager():
        pass
    dist.all_reduce(x)
    assert x.tolist() == [sum(range(size))]


def coalescing_returns_illegal_works(rank, size):
    """Calls with async_op must return works that cannot be used before the block ends."""
    x = f(rank)
    with dist._coalescing_manager() as manager:
        work = dist.all_reduce(x, async_op=True)
        for name in ("wait", "is_success", "result", "exception", "synchronize", "source_rank"):
            with raises(ValueError, f"Illegal to call {name} on IllegalWork object"):
                getattr(work, name)()
    manager.wait()
    assert x.tolist() == [sum(range(size))]
    out = f(*[0] * size)
    with dist._coalescing_manager():
        assert dist.all_gather_single(out, f(rank), async_op=True) is not None
    part = f(0)
    with dist._coalescing_manager():
        assert dist.reduce_scatter_single(part, f(*range(size)), async_op=True) is not None
    assert out.tolist() == list(range(size)) and part.tolist() == [size * rank]


# ---- timeouts


def one_calls_timeout(rank, size):
    """timeout= must apply only to the call: a waiting rank gets an error that names the missing
    rank, and the group fails on all ranks."""
    group = dist.new_group(list(range(size)))
    dist.all_reduce(f(1), group=group)
    if rank == 0:
        start = time.monotonic()
        with raises(dist.DistTimeoutError, backend.names_the_missing("all_reduce", 1)):
            backend.settle(dist.all_reduce, f(1), group=group, timeout=SHORT_S)
        assert SHORT_S * 0.9 < time.monotonic() - start < 10
        with raises(RuntimeError, ""):
            dist.all_reduce(f(1), group=group)
        dist.send(f(1), 1)
    elif rank == 1:
        gate = f(0)
        dist.recv(gate, 0)
        assert gate.tolist() == [1]
        if backend.tells_others:
            with raises(RuntimeError, ""):
                dist.all_reduce(f(1), group=group)
    dist.barrier()
    backend.end_failed(group)


def messages_timeouts(rank, size):
    """A receive without a sender must time out, and the group stay usable."""
    for seconds in (SHORT_S, datetime.timedelta(seconds=SHORT_S)):
        start = time.monotonic()
        with raises(TimeoutError, "recv"):
            dist.recv(f(0), 1 - rank, timeout=seconds)
        assert SHORT_S * 0.9 < time.monotonic() - start < 10
    late = dist.irecv(f(0), 1 - rank, tag=1, timeout=SHORT_S)
    with raises(TimeoutError, "recv"):
        late.wait()
    dist.barrier()
    dist.isend(f(rank), 1 - rank, timeout=20).wait()
    x = f(0)
    assert dist.recv(x, 1 - rank, timeout=20) == 1 - rank and x.tolist() == [1 - rank]


def messages_timeouts_in_low_level_calls(rank, size):
    with watched(dist.group.WORLD):
        messages_timeouts(rank, size)


def barriers_timeout(rank, size):
    group = dist.new_group(list(range(size)))
    dist.barrier(group)
    if rank == 0:
        with raises(dist.DistTimeoutError, backend.names_the_missing("barrier", 1)):
            dist.barrier(group, timeout=datetime.timedelta(seconds=SHORT_S))
    dist.barrier(timeout=20)
    backend.end_failed(group)


def monitored_barrier_names_the_missing(rank, size):
    """Rank 0's error must name the first missing rank, or all of them. Each case uses its own
    group, because the group fails."""
    for wait_all, missing in ((False, "rank 1"), (True, "1, 2" if size > 2 else "1")):
        group = dist.new_group(list(range(size)))
        dist.monitored_barrier(group)
        if rank == 0:
            with raises(RuntimeError, missing):
                dist.monitored_barrier(group, timeout=SHORT_S, wait_all_ranks=wait_all)
        dist.barrier()
        dist.destroy_process_group(group)


def settings_of_a_group(rank, size):
    """Timeouts of groups, and the queries for settings, must agree."""
    group = dist.new_group(list(range(size)), timeout=7, group_desc="mine")
    assert group.get_timeout() == datetime.timedelta(seconds=7)
    dist.set_timeout(datetime.timedelta(seconds=8), group)
    assert group.get_timeout() == datetime.timedelta(seconds=8)
    assert dist.get_backend(group) == backend.name and dist.get_backend_config(group) == backend.config
    assert dist.get_backend_impl(group, backend.device).name() == backend.name
    assert group.group_desc == "mine"
    dist.destroy_process_group(group)
    with raises(ValueError, "Invalid process group specified"):
        dist.get_backend(group)


# ---- the slow path: the low-level calls of the process group, used if there is a hook


@contextmanager
def watched(group):
    """Yield the list of operation names that a hook of the group sees."""
    seen = []
    group.register_pre_hook(1, lambda args: seen.append(args.name))
    try:
        yield seen
    finally:
        group.unregister_pre_hook(1)


def collectives_in_low_level_calls(rank, size):
    ranks = list(range(size))[::-1]
    group = dist.new_group(ranks, sort_ranks=False)
    with watched(group) as seen:
        run_collectives(ranks, ranks.index(rank), group, is_world_rank=True)
        run_collectives(ranks, ranks.index(rank), group, is_world_rank=False, async_op=True)
        run_collectives(ranks, ranks.index(rank), group, is_world_rank=False, timeout=20)
    assert len({str(name) for name in seen}) >= 8, seen
    dist.destroy_process_group(group)


def messages_in_low_level_calls(rank, size):
    with watched(dist.group.WORLD) as seen:
        messages(rank, size)
        batches(rank, size)
    assert seen


def any_source_in_low_level_calls(rank, size):
    with watched(dist.group.WORLD) as seen:
        any_source(rank, size)
    assert seen


def coalescing_in_low_level_calls(rank, size):
    with watched(dist.group.WORLD) as seen:
        coalescing(rank, size)
        failing_coalescing(rank, size)
        coalescing_returns_illegal_works(rank, size)
        works(rank, size)
    assert seen
