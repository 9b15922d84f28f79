"""World: several worlds from threads and processes, over one store and over several; the ends of
worlds, and leaks."""

import gc
import re
import sys
import threading
import time
import weakref
from datetime import timedelta

import dldist
import procs as helper
import pytest
import world_workers
from dldist.testing import run_ranks
from dldist.world import call_all
from thread_ranks import error_of, in_worlds, on_threads, separate_worlds, vector

CYCLES = 1000
WARM_UP = 100
RSS_ALLOWED = 3 << 20


def sum_in(world, value=1.0):
    x = vector(value)
    world.all_reduce(x)
    return x[0]


def test_world_of_one_rank_needs_no_arguments():
    with dldist.World() as world:
        assert (world.rank, world.size, world.world_size, world.name) == (0, 1, 1, "default")
        assert world.all_gather_object("hello") == ["hello"]
        assert world.all_to_all_objects([3]) == [3]
        assert repr(world) == "<dldist.World 'default': rank 0 of 1>"
    assert world.is_closed
    world.close()


def test_name_of_a_world_can_be_reused_over_the_same_store():
    store = dldist.HashStore()

    def rank_of(rank):
        with dldist.World(store, rank, 2, name="again", timeout=10) as world:
            return sum_in(world, rank + 1)

    for _ in range(5):
        assert on_threads(2, rank_of) == [3, 3]


def test_worlds_with_common_ranks_work_over_one_store_and_over_several():
    stores = [dldist.HashStore(), dldist.HashStore()]

    # name: the store, and the places of its ranks
    plan = {"all": (0, [0, 1, 2]), "left": (0, [0, 1]), "right": (0, [2, 1]), "all again": (1, [2, 0, 1]), "alone": (1, [2])}

    def place_of(place):
        worlds = {
            name: dldist.World(stores[at], places.index(place), len(places), name=name, timeout=10)
            for name, (at, places) in plan.items()
            if place in places
        }
        sums = {name: sum_in(world, place + 1) for name, world in worlds.items()}
        ranks = {name: world.all_gather_object((place, world.rank)) for name, world in worlds.items()}
        for world in worlds.values():
            world.close()
        return sums, ranks

    for sums, ranks in on_threads(3, place_of):
        for name, (_, places) in plan.items():
            if name in sums:
                assert sums[name] == sum(place + 1 for place in places)
                assert ranks[name] == [(place, rank) for rank, place in enumerate(places)]


def test_worlds_of_one_process_are_used_at_the_same_time():
    store = dldist.HashStore()

    def rank_of(rank):
        worlds = [dldist.World(store, rank, 2, name=f"number {number}", timeout=10) for number in range(4)]
        done = on_threads(4, lambda number: [sum_in(worlds[number], number) for _ in range(20)])
        for world in worlds:
            world.close()
        return done

    assert on_threads(2, rank_of) == [[[2 * number] * 20 for number in range(4)]] * 2


def test_new_group_of_a_world_is_called_only_by_its_members():
    store = dldist.HashStore()

    def rank_of(rank):
        with dldist.World(store, rank, 3, timeout=10, serializer="safe") as world:
            group = world.new_group([2, 0]) if rank != 1 else None
            other = world.new_group([1, 2], name="pair", timeout=3)
            if group is not None:
                assert group.serializer == "safe"
                assert group.all_gather_object(rank) == [2, 0]
                assert group.rank == [2, 0].index(rank)
            if rank == 0:
                assert other is None
            else:
                assert (other.name, other.timeout) == ("pair", timedelta(seconds=3))
                assert sum_in(other) == 2
            inner = other.split([1]) if rank == 2 else None
            assert inner is None or sum_in(inner) == 1
        return [part is None or part.is_closed for part in (world, group, other, inner)]

    assert on_threads(3, rank_of) == [[True] * 4] * 3


def test_module_level_calls_accept_a_world_wider_than_the_default_one():
    homes = [dldist.HashStore(), dldist.HashStore()]
    common = dldist.HashStore()

    def place_of(place):
        """Two default worlds of two ranks and one world over all four places must work together."""
        dldist.init_process_group(store=homes[place // 2], rank=place % 2, world_size=2, timeout=10)
        with dldist.World(common, place, 4, name="wide", timeout=10) as wide:
            x = vector(1)
            dldist.all_reduce(x, group=wide)
            assert x[0] == 4
            assert (dldist.get_rank(wide), dldist.get_world_size(wide)) == (place, 4)
            dldist.broadcast(x, group_src=3, group=wide)
            assert "group_src" in str(error_of(dldist.broadcast, x, 0, wide))
            objects = [None] * 4
            dldist.all_gather_object(objects, place, wide)
            assert objects == [0, 1, 2, 3]
            if place == 0:
                dldist.send(x, group_dst=3, group=wide)
            if place == 3:
                assert dldist.recv(x, group_src=0, group=wide) == 0
        y = vector(1)
        dldist.all_reduce(y)
        assert not dldist.default_world().is_closed
        dldist.destroy_process_group()
        return y[0]

    with separate_worlds():
        assert on_threads(4, place_of) == [2] * 4


def test_the_default_world_is_a_world():
    def case(rank):
        world = dldist.default_world()
        assert isinstance(world, dldist.World)
        assert world.all_gather_object(rank) == [0, 1]
        part = world.new_group([1, 0])
        assert sum_in(part) == 2
        dldist.destroy_process_group()
        return world.is_closed, part.is_closed

    assert in_worlds(2, case) == [(True, True)] * 2


def test_every_call_of_a_world_for_objects_is_correct():
    store = dldist.HashStore()

    def rank_of(rank):
        with dldist.World(store, rank, 2, timeout=10) as world:
            assert world.gather_object({"rank": rank}, 1) == (None if rank == 0 else [{"rank": 0}, {"rank": 1}])
            assert world.broadcast_object("word" if rank == 1 else None, 1) == "word"
            assert world.scatter_objects(["a", "b"] if rank == 0 else None) == "ab"[rank]
            assert world.all_to_all_objects([(rank, 0), (rank, 1)]) == [(0, rank), (1, rank)]
            if rank == 0:
                world.send_object([1, 2], 1, tag=4)
            else:
                assert world.recv_object(0, tag=4) == [1, 2]
            assert world.all_gather_object(b"x", serializer="safe") == [b"x", b"x"]

    on_threads(2, rank_of)


def test_timeout_can_be_set_for_a_world_a_group_or_a_call():
    store = dldist.HashStore()

    def rank_of(rank):
        with dldist.World(store, rank, 2, timeout=7) as world:
            assert world.timeout == timedelta(seconds=7)
            group = world.new_group([0, 1], timeout=timedelta(seconds=5))
            assert (group.timeout, world.new_group([0, 1]).timeout) == (timedelta(seconds=5), timedelta(seconds=7))
            group.barrier()
            if rank == 0:
                error = error_of(group.barrier, timeout=0.05)
                assert isinstance(error, dldist.DistTimeoutError)
                assert "rank 1 has not arrived" in str(error)
            world.barrier()

    on_threads(2, rank_of)


# ---- the end


def test_exception_in_a_with_block_aborts_the_other_ranks():
    store = dldist.HashStore()

    def rank_of(rank):
        groups = []
        try:
            with dldist.World(store, rank, 2, timeout=10) as world:
                group = world.new_group([0, 1])
                groups += [world, group, group.split([1, 0])]
                if rank == 0:
                    raise LookupError("the culprit")
                error = error_of(groups[2].barrier)
                raise error
        except (LookupError, dldist.DistAbortedError) as error:
            return str(error), [part.is_closed for part in groups]

    began = time.monotonic()
    (_, first), (text, second) = on_threads(2, rank_of)
    assert "rank 0" in text and "LookupError" in text and "the culprit" in text
    assert first == second == [True] * 3
    assert time.monotonic() - began < 5


def test_abort_ends_the_groups_of_a_world():
    store = dldist.HashStore()

    def rank_of(rank):
        world = dldist.World(store, rank, 2, timeout=10)
        group = world.new_group([0, 1])
        if rank == 0:
            world.abort("out of coffee")
        errors = [error_of(part.barrier) for part in (group, world)]
        assert all(isinstance(error, dldist.DistAbortedError) for error in errors)
        world.close()
        assert world.is_closed
        return str(errors[0])

    for text in on_threads(2, rank_of):
        assert "out of coffee" in text


def test_call_all_calls_every_function_and_raises_the_first_interrupt():
    called = []

    def fail(error):
        called.append(error)
        raise error

    errors = [ValueError("first"), ValueError("second"), KeyboardInterrupt(), SystemExit()]
    with pytest.raises(KeyboardInterrupt):
        call_all([lambda error=error: fail(error) for error in errors])
    with pytest.raises(ValueError, match="first"):
        call_all([lambda error=error: fail(error) for error in errors[:2]])
    assert called == [*errors, *errors[:2]]


def test_world_whose_close_has_failed_is_freed():
    world = dldist.World()
    part = world.new_group([0])
    late = part.irecv(vector(0), 0)
    gc.disable()
    try:
        assert isinstance(error_of(world.close, 0), dldist.DistTimeoutError)
        left = weakref.ref(world)
        del world, part, late
        assert left() is None
    finally:
        gc.enable()


def test_split_by_groups_ranks_by_color_and_orders_them_by_key():
    store = dldist.HashStore()

    def rank_of(rank):
        world = dldist.World(store, rank, 4, timeout=20)
        reverse = world.split_by(world.rank % 2, key=-world.rank, name="reverse")
        assert reverse.all_gather_object(world.rank) == [[2, 0], [3, 1]][world.rank % 2]
        assert reverse.name == "reverse"
        named = world.split_by("a" if world.rank != 1 else None)  # equal keys: ordered by rank
        assert named is None if world.rank == 1 else named.all_gather_object(world.rank) == [0, 2, 3]
        assert world.split_by(world.rank).size == 1
        world.close()
        assert reverse.is_closed

    on_threads(4, rank_of)


def test_split_by_needs_objects_that_can_be_sent():
    with dldist.World() as world:
        assert world.split_by(None) is None
        assert isinstance(error_of(world.split_by, object()), TypeError)


def test_close_that_times_out_names_pending_operations_and_their_lines():
    world = dldist.World(name="w")
    line = sys._getframe().f_lineno + 1
    late = [world.irecv(vector(0), 0, 4), world.irecv(vector(0), tag=dldist.ANY_TAG), world.new_group([0]).irecv(vector(0), 0)]
    place = rf"\(test_world\.py:{line}\)"
    error = error_of(world.close, 0)
    found = [str(error), *error.__notes__]
    assert re.search(rf" was closed with operations under way after \S+ s: recv from rank 0 \(tag 0\) {place} \(timeout\)", found[0])
    both = rf"recv from rank 0 \(tag 4\) {place}, recv from any rank \(any tag\) {place}"
    assert re.search(rf'group "w" \(rank 0 of 1\) was closed with operations under way after \S+ s: {both} \(timeout\)', found[1])
    assert all(work.is_completed() for work in late)


def test_close_that_times_out_does_not_name_the_internal_tag_of_an_object():
    world = dldist.World(name="w")
    line = sys._getframe().f_lineno + 1
    work = world.isend_object(bytes(1_000_000), 0, 4)
    error = error_of(world.close, 0)
    assert f"s: send to rank 0 (part of an object) (test_world.py:{line}) (timeout)" in str(error)
    assert not work.is_success()


def test_timeout_of_close_applies_to_all_groups_together():
    store = dldist.HashStore()
    closed = threading.Event()

    def rank_of(rank):
        world = dldist.World(store, rank, 2, timeout=10)
        parts = [world.new_group([0, 1]) for _ in range(5)]
        if rank == 0:
            late = [part.irecv(vector(0), 1) for part in parts]
            began = time.monotonic()
            error = error_of(world.close, 1.0)
            # Five groups that each wait a second separately would take five.
            assert isinstance(error, dldist.DistTimeoutError) and time.monotonic() - began < 4
            assert all(work.is_completed() for work in late)
            closed.set()
        else:
            assert closed.wait(10)
            world.close()

    on_threads(2, rank_of)


@pytest.mark.parametrize("timeout", [-1, "soon", float("nan")])
def test_close_of_a_world_rejects_wrong_timeouts(timeout):
    with dldist.World() as world:
        part = world.new_group([0])
        assert "close(): argument 'timeout'" in str(error_of(world.close, timeout))
        assert not world.is_closed
    assert part.is_closed


@pytest.mark.parametrize(
    ("op", "tensor", "peer", "tag"), [("isend", b"ab", 0, -1), ("isend", b"ab", 7, 9), ("irecv", b"read-only", 0, 9)]
)
def test_batch_with_one_invalid_message_starts_no_message(op, tensor, peer, tag):
    with dldist.World() as world:
        buffer = bytearray(4)
        ops = [dldist.P2POp("irecv", buffer, 0, tag=9), dldist.P2POp(op, tensor, peer, tag=tag)]
        error = error_of(world.batch_isend_irecv, ops)
        assert isinstance(error, (ValueError, BufferError)) and "p2p_op_list[1]" in str(error)
        other = bytearray(4)
        receiving = world.irecv(other, 0, 9)
        world.send(b"abcd", 0, 9)
        assert receiving.wait(5) and (bytes(buffer), bytes(other)) == (bytes(4), b"abcd")


def test_close_ends_all_groups_even_if_one_times_out():
    store = dldist.HashStore()
    closed = threading.Event()

    def rank_of(rank):
        world = dldist.World(store, rank, 2, timeout=10)
        parts = [world.new_group([0, 1]), world.new_group([1, 0])]
        if rank == 1:
            assert closed.wait(10)
            world.close()
            return
        late = [part.irecv(vector(0), 1 if part is parts[0] else 0) for part in parts]
        error = error_of(world.close, 0.05)
        closed.set()
        assert isinstance(error, dldist.DistTimeoutError)
        assert [part.is_closed for part in (world, *parts)] == [True] * 3
        for work in late:
            assert isinstance(error_of(work.wait), dldist.DistError)

    on_threads(2, rank_of)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"store": "hash", "rank": 2, "world_size": 2}, ValueError, "argument 'rank' is an invalid rank: got 2"),
        ({"store": "hash"}, ValueError, "expected the arguments 'rank' and 'world_size'"),
        ({"store": "hash", "rank": 0}, ValueError, "expected the arguments 'rank' and 'world_size'"),
        ({"store": 3, "rank": 0, "world_size": 1}, TypeError, "store"),
        ({"serializer": "json"}, ValueError, "serializer"),
        ({"store": "trainer"}, ValueError, "argument 'store' is not a URL: got 'trainer'"),
        ({"store": "nowhere://"}, RuntimeError, "nowhere"),
        ({"timeout": "soon"}, TypeError, "not str"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"name": 3}, TypeError, "name"),
    ],
)
def test_world_rejects_wrong_arguments(arguments, kind, text):
    given = {**arguments, "store": dldist.HashStore()} if arguments.get("store") == "hash" else arguments
    error = error_of(dldist.World, **given)
    assert isinstance(error, kind)
    assert text in str(error)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "file://{folder}/place", "env://"])
def test_url_may_be_the_first_argument_of_world(url, tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with dldist.World(url.format(folder=tmp_path), 0, 1) as world:
        assert (world.rank, world.size) == (0, 1)


def test_none_stands_for_the_default_of_each_argument_of_world():
    with dldist.World(None, None, None, timeout=None) as world, dldist.World() as plain:
        assert world.timeout == plain.timeout == timedelta(minutes=30)
    with dldist.World(dldist.HashStore(), 0, 1, timeout=None) as world:
        assert world.timeout == timedelta(minutes=30)


def test_opening_a_world_names_the_missing_ranks():
    error = error_of(dldist.World, dldist.HashStore(), 0, 3, timeout=10, connect_timeout=0.1)
    assert isinstance(error, dldist.DistTimeoutError)
    assert "rank" in str(error) and "1" in str(error) and "2" in str(error)


# ---- leaks


def usage():
    gc.collect()
    with open("/proc/self/maps", encoding="ascii") as file:
        nmappings = len(file.readlines())
    return {
        "descriptors": helper.fd_count(),
        "threads": helper.thread_count(),
        "mappings": nmappings,
        "bytes": helper.rss_bytes(),
    }


def assert_nothing_is_left(cycle, count):
    for _ in range(WARM_UP):
        cycle()
    before = usage()
    for _ in range(count):
        cycle()
    after = usage()
    end = time.monotonic() + 5
    while after["descriptors"] > before["descriptors"] and time.monotonic() < end:
        time.sleep(0.05)  # the engine's own thread closes the links of the last world
        after = usage()
    assert after["descriptors"] <= before["descriptors"]
    assert after["threads"] <= before["threads"]
    assert after["mappings"] <= before["mappings"] + 8
    assert after["bytes"] <= before["bytes"] + RSS_ALLOWED


def alone():
    with dldist.World() as world:
        part = world.new_group([0])
        assert sum_in(part) == 1


def default_world_alone():
    dldist.init_process_group()
    dldist.new_group([0])
    dldist.destroy_process_group()


def aborted_alone():
    world = dldist.World()
    world.irecv(vector(0), 0)
    world.abort("enough")


@pytest.mark.parametrize("cycle", [alone, default_world_alone, aborted_alone])
def test_thousand_worlds_of_one_leak_nothing(cycle):
    assert_nothing_is_left(cycle, CYCLES)


def test_many_worlds_of_two_threads_leak_nothing():
    store = dldist.HashStore()

    def rank_of(rank):
        with dldist.World(store, rank, 2, name="again", timeout=10) as world:
            assert sum_in(world) == 2

    assert_nothing_is_left(lambda: on_threads(2, rank_of), 200)


@pytest.mark.deadline(60)
def test_many_default_worlds_of_two_processes_leak_nothing():
    for before, after in run_ranks(world_workers.many_default_worlds, 2, 150, init=False, timeout=50):
        assert after["descriptors"] <= before["descriptors"]
        assert after["threads"] <= before["threads"]
        assert after["bytes"] <= before["bytes"] + RSS_ALLOWED


def test_program_without_destroy_process_group_exits_quietly():
    for code, out, err, seconds in world_workers.run_programs_without_destroy():
        assert (code, out, err) == (0, "", "")
        assert seconds < 5


@pytest.mark.parametrize("early", [0, 1])
def test_rank_may_close_its_world_before_or_after_the_others(early):
    assert run_ranks(world_workers.destroy_at_different_times, 2, early, timeout=20) == ["left", "left"]


def test_rank_that_dies_while_a_world_is_opened_is_named():
    ends = world_workers.die_in_init()
    assert len(ends) == 2
    for kind, _, seconds in ends:
        assert "DistError" in kind
        assert seconds < 8
    # The first rank to get the error aborts the group; the other rank may only see that abort.
    assert any("rank 2" in text for _, text, _ in ends), ends
