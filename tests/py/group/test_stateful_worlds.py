"""Worlds against NumPy: two or three ranks, each on a thread that runs commands.

They call collectives, messages, splits and closes in any order, leave works pending, join late,
disagree and abort.
"""

import itertools
import queue
import threading
from collections import deque
from concurrent.futures import Future

import dldist
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from stateful import depth

LIMIT_S = 20.0
SHORTLY_S = 0.01
GROUPS_MAX = 4
UNDER_WAY_MAX = 6

PICKS = st.integers(0, 11)
COUNTS = st.sampled_from([1, 2, 5, 700, 20000])
SEEDS = st.integers(0, 99)
SCALARS = st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
OBJECTS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3))
FOLDS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class Rank:
    """A thread that makes one call after another."""

    def __init__(self, number):
        self.calls = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name=f"rank {number}", daemon=True)
        self.thread.start()

    def run(self):
        for future, call in iter(self.calls.get, None):
            try:
                future.set_result(call())
            except Exception as error:
                future.set_result(error)

    def post(self, call):
        future = Future()
        self.calls.put((future, call))
        return future


class Group:
    """One group on all of its ranks."""

    def __init__(self, members, ranks, worlds):
        self.members = members
        self.parts = []
        """The groups made from this one, which end with it."""
        self.ranks = [ranks[member] for member in members]
        self.worlds = worlds
        self.under_way = []
        """Lists of (work, output, expected), by rank."""
        self.sent = {}
        """(source, destination, tag): data sent but not yet received, with the works."""

    @property
    def size(self):
        return len(self.members)

    def on(self, ranks, call):
        """Run call(world, rank) on these ranks concurrently; return the results or exceptions."""
        futures = [self.ranks[rank].post(lambda rank=rank: call(self.worlds[rank], rank)) for rank in ranks]
        return [future.result(LIMIT_S) for future in futures]

    def everywhere(self, call):
        return self.on(range(self.size), call)


def require(outcomes, kind=None):
    """Check that all outcomes are exceptions of this kind or, without a kind, no exceptions."""
    for outcome in outcomes:
        if kind is None and isinstance(outcome, BaseException):
            raise outcome
        assert kind is None or isinstance(outcome, kind), repr(outcome)
    return outcomes


# ---- collectives: functions that make a rank's call and return the work, its output and the
# expected value.
# `data` has an array of size * count for each rank


def all_reduce(world, rank, data, root, op):
    x = data[rank].copy()
    return world.all_reduce(x, op, async_op=True), x, FOLDS[op].reduce(data)


def reduce(world, rank, data, root, op):
    x = data[rank].copy()
    work = world.reduce(x, root, op, async_op=True)
    return work, x, FOLDS[op].reduce(data) if rank == root else None  # undefined on other ranks


def broadcast(world, rank, data, root, op):
    x = data[rank].copy()
    return world.broadcast(x, root, async_op=True), x, data[root]


def all_gather(world, rank, data, root, op):
    y = np.zeros(data.size, data.dtype)
    return world.all_gather_single(y, data[rank], async_op=True), y, data.reshape(-1)


def gather(world, rank, data, root, op):
    y = np.zeros(data.size, data.dtype) if rank == root else None
    return world.gather_single(data[rank], y, root, async_op=True), y, data.reshape(-1) if rank == root else None


def scatter(world, rank, data, root, op):
    part = data.shape[1] // len(data)
    y = np.zeros(part, data.dtype)
    work = world.scatter_single(y, data[rank] if rank == root else None, root, async_op=True)
    return work, y, data[root][rank * part :][:part]


def reduce_scatter(world, rank, data, root, op):
    part = data.shape[1] // len(data)
    y = np.zeros(part, data.dtype)
    work = world.reduce_scatter_single(y, data[rank], op, async_op=True)
    return work, y, FOLDS[op].reduce(data)[rank * part :][:part]


def all_to_all(world, rank, data, root, op):
    part = data.shape[1] // len(data)
    y = np.zeros(data.shape[1], data.dtype)
    work = world.all_to_all_single(y, data[rank], async_op=True)
    return work, y, np.concatenate([row[rank * part :][:part] for row in data])


def barrier(world, rank, data, root, op):
    return world.barrier(async_op=True), None, None


COLLECTIVES = [all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all, barrier]


def wait_for(work, output, expected):
    work.wait(LIMIT_S)
    if expected is not None:
        np.testing.assert_array_equal(output, expected)


class WorldMachine(RuleBasedStateMachine):
    numbers = itertools.count()

    @initialize(size=st.integers(2, 3), is_tcp=st.booleans(), is_int=st.booleans())
    def begin(self, size, is_tcp, is_int):
        self.dtype = "int64" if is_int else "float32"
        self.ranks = [Rank(number) for number in range(size)]
        self.server = dldist.TCPStore("127.0.0.1", 0, is_master=True) if is_tcp else dldist.HashStore()
        self.world = Group(list(range(size)), self.ranks, [None] * size)
        self.groups = [self.world]
        self.world.worlds = require(self.world.everywhere(lambda _, rank: dldist.World(self.open_store(), rank, size, timeout=LIMIT_S)))

    def open_store(self):
        if isinstance(self.server, dldist.TCPStore):
            return dldist.TCPStore("127.0.0.1", self.server.port)
        return self.server

    def teardown(self):
        if not hasattr(self, "world"):
            return
        for group in self.groups:
            self.drain(group)
        require(self.world.everywhere(lambda world, _: world.close()))
        for rank in self.ranks:
            rank.calls.put(None)
            rank.thread.join(LIMIT_S)
            assert not rank.thread.is_alive()

    # -- state

    def group(self, pick):
        return self.groups[pick % len(self.groups)]

    def part(self, pick):
        """Return a group of several ranks other than the world, or None."""
        parts = [group for group in self.groups[1:] if group.size > 1]
        return parts[pick % len(parts)] if parts else None

    def data_of(self, group, count, seed):
        numbers = np.arange(group.size * group.size * count) * (seed + 3) % 1009
        return numbers.reshape(group.size, group.size * count).astype(self.dtype)

    def finish(self, group, is_backwards=False):
        """Wait for the pending works, on every rank in this order."""
        calls, group.under_way = group.under_way, []
        for call in reversed(calls) if is_backwards else calls:
            require(group.everywhere(lambda _, rank, call=call: wait_for(*call[rank])))

    def drain(self, group):
        self.finish(group)
        for key in list(group.sent):
            while group.sent.get(key):
                self.receive(group, *key)

    def drain_parts(self, group):
        for part in self.with_parts(group)[1:]:
            self.drain(part)

    def forget(self, group):
        for part in self.with_parts(group):
            self.groups.remove(part)

    def with_parts(self, group):
        """Return the group and its open parts."""
        parts = [part for part in group.parts if part in self.groups]
        return [group, *itertools.chain.from_iterable(self.with_parts(part) for part in parts)]

    def close_failed(self, group):
        """Remove a failed group; all calls on it must raise."""
        self.forget(group)
        require(group.everywhere(lambda world, _: world.barrier()), dldist.DistError)
        require(group.everywhere(lambda world, _: world.close()))

    # -- collectives

    @rule(pick=PICKS, collective=st.sampled_from(COLLECTIVES), count=COUNTS, seed=SEEDS, op=st.sampled_from(sorted(FOLDS)), stays=st.booleans())
    def call(self, pick, collective, count, seed, op, stays):
        group = self.group(pick)
        data = self.data_of(group, count, seed)
        root = seed % group.size
        group.under_way.append(require(group.everywhere(lambda world, rank: collective(world, rank, data, root, op))))
        if not stays or len(group.under_way) > UNDER_WAY_MAX:
            self.finish(group)

    @rule(pick=PICKS, is_backwards=st.booleans())
    def wait(self, pick, is_backwards):
        self.finish(self.group(pick), is_backwards)

    @rule(pick=PICKS, obj=OBJECTS)
    def gather_objects(self, pick, obj):
        group = self.group(pick)
        for gathered in require(group.everywhere(lambda world, rank: world.all_gather_object([rank, obj]))):
            assert gathered == [[rank, obj] for rank in range(group.size)]

    @rule(pick=PICKS, seed=SEEDS, count=COUNTS)
    def wait_times_out(self, pick, seed, count):
        """A wait that times out must not end the call."""
        group = self.group(pick)
        late = seed % group.size
        others = [rank for rank in range(group.size) if rank != late]
        data = self.data_of(group, count, seed)
        self.finish(group)
        calls = dict(zip(others, require(group.on(others, lambda world, rank: all_reduce(world, rank, data, 0, "sum")))))
        require(group.on(others, lambda _, rank: calls[rank][0].wait(SHORTLY_S)), dldist.DistTimeoutError)
        calls[late] = require(group.on([late], lambda world, rank: all_reduce(world, rank, data, 0, "sum")))[0]
        group.under_way.append(calls)

    # -- messages

    @rule(pick=PICKS, source=PICKS, dest=PICKS, tag=st.integers(0, 2), count=COUNTS, seed=SEEDS)
    def send(self, pick, source, dest, tag, count, seed):
        group = self.group(pick)
        source, dest = source % group.size, dest % group.size
        waiting = group.sent.setdefault((source, dest, tag), deque())
        if source == dest or len(waiting) > 2:
            return
        data = self.data_of(group, count, seed)[source]
        (work,) = require(group.on([source], lambda world, _: world.isend(data, dest, tag)))
        waiting.append((data, work))

    def receive(self, group, source, dest, tag):
        data, work = group.sent[source, dest, tag].popleft()
        y = np.zeros_like(data)
        assert require(group.on([dest], lambda world, _: world.recv(y, source, tag, timeout=LIMIT_S))) == [source]
        np.testing.assert_array_equal(y, data)
        require(group.on([source], lambda _world, _rank: work.wait(LIMIT_S)))

    @rule(pick=PICKS, which=PICKS)
    def recv(self, pick, which):
        group = self.group(pick)
        keys = [key for key, waiting in sorted(group.sent.items()) if waiting]
        if keys:
            self.receive(group, *keys[which % len(keys)])

    @rule(pick=PICKS, source=PICKS, dest=PICKS, tag=st.integers(0, 2))
    def recv_without_a_message(self, pick, source, dest, tag):
        """A receive without a message must fail, and the group stay usable."""
        group = self.group(pick)
        source, dest = source % group.size, dest % group.size
        if source != dest and not group.sent.get((source, dest, tag)):
            y = np.zeros(5, self.dtype)
            require(group.on([dest], lambda world, _: world.recv(y, source, tag, timeout=SHORTLY_S)), dldist.DistTimeoutError)

    # -- groups

    @precondition(lambda self: len(self.groups) < GROUPS_MAX)
    @rule(pick=PICKS, order=st.permutations(range(3)), size=st.integers(1, 3))
    def split(self, pick, order, size):
        group = self.group(pick)
        chosen = [rank for rank in order if rank < group.size][:size]
        worlds = require(group.on(chosen, lambda world, _: world.split(chosen)))
        group.parts.append(Group([group.members[rank] for rank in chosen], self.ranks, worlds))
        self.groups.append(group.parts[-1])

    @precondition(lambda self: len(self.groups) > 1)
    @rule(pick=PICKS)
    def close(self, pick):
        """Close a group. It must wait for pending works, whose results are checked later."""
        group = self.groups[1 + pick % (len(self.groups) - 1)]
        self.drain_parts(group)
        while any(group.sent.values()):
            self.recv(self.groups.index(group), 0)
        self.forget(group)
        require(group.everywhere(lambda world, _: world.close()))
        self.finish(group)

    # -- failures, of groups that are not the world

    @rule(pick=PICKS, which=PICKS)
    def disagree(self, pick, which):
        group = self.part(pick)
        if group is not None:
            self.drain(group)
            self.drain_parts(group)
            odd = which % group.size
            data = self.data_of(group, 4, which)

            def call(world, rank):
                work, _, _ = (all_gather if rank == odd else all_reduce)(world, rank, data, 0, "sum")
                work.wait(LIMIT_S)

            require(group.everywhere(call), dldist.DistMismatchError)
            self.close_failed(group)

    @rule(pick=PICKS, which=PICKS)
    def call_times_out(self, pick, which):
        group = self.part(pick)
        if group is not None:
            self.drain(group)
            self.drain_parts(group)
            late = which % group.size
            others = [rank for rank in range(group.size) if rank != late]
            x = np.ones(3, self.dtype)
            require(group.on(others, lambda world, _: world.all_reduce(x.copy(), timeout=SHORTLY_S)), dldist.DistTimeoutError)
            require(group.on([late], lambda world, _: world.all_reduce(x.copy())), dldist.DistTimeoutError)
            self.close_failed(group)

    @rule(pick=PICKS, which=PICKS)
    def abort_part(self, pick, which):
        group = self.part(pick)
        if group is not None:
            self.drain(group)
            self.drain_parts(group)
            quitter = which % group.size
            x = np.ones(3, self.dtype)
            require(group.on([quitter], lambda world, _: world.abort("it has had enough")))
            require(group.everywhere(lambda world, _: world.all_reduce(x.copy())), dldist.DistAbortedError)
            self.close_failed(group)


@pytest.mark.exhaustive
@pytest.mark.deadline(120)
def test_random_sequences_of_world_calls_match_a_simple_model():
    run_state_machine_as_test(WorldMachine, settings=depth(examples=45, steps=40))
