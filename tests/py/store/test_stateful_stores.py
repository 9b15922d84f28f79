"""Stores against a model: a dict of values and a dict of queues.

Two clients call anything in any order. Calls that wait run on threads until their condition holds.
"""

import itertools
import re
from datetime import timedelta

import dldist
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from kinds import KINDS
from stateful import depth
from test_stores import Background

IMMEDIATELY = timedelta(milliseconds=1)
NUMBER = re.compile(rb"\s*[+-]?\d+")

# Few, so that calls collide.
KEYS = st.sampled_from(["a", "b", "", "a/b", "\0"])
VALUES = st.sampled_from([b"", b"1", b"-3", b" 7 up", b"x", b"\0\xff", str(2**63 - 1).encode(), b"v" * 300])
CLIENTS = st.integers(0, 1)


def number_of(value):
    """Return the number that add() reads from a value, or None if it is not a number of 64 bits."""
    if not value:
        return 0
    found = NUMBER.match(value)
    return int(found[0]) if found and -(2**63) <= int(found[0]) < 2**63 else None


def wrapped(number):
    return (number + 2**63) % 2**64 - 2**63


class Waiting:
    """A call that waits for keys.

    By the model, `is_ready` returns True if it must end, with the value of `result`. It may take an
    item of a queue.
    """

    def __init__(self, keys, call, is_ready, result, takes=None):
        self.keys, self.call, self.is_ready, self.result, self.takes = keys, Background(call), is_ready, result, takes


class StoreMachine(RuleBasedStateMachine):
    kind = None
    places = None

    def __init__(self):
        super().__init__()
        self.place = type(self).kind(str(next(self.places)))
        self.clients = [self.place.open(), self.place.open()]
        self.values, self.queues, self.waiting = {}, {}, []

    def teardown(self):
        for key in {key for waiting in self.waiting for key in waiting.keys}:
            self.clients[0].set(key, "at last")
            self.clients[0].queue_push(key, "at last")
        for waiting in self.waiting:
            waiting.call.result()
        self.place.close()

    # -- the model

    def has(self, key):
        return key in self.values or bool(self.queues.get(key))

    def finish_ready(self):
        """End the calls that can end, so that they do not see later changes."""
        for waiting in [waiting for waiting in self.waiting if waiting.is_ready()]:
            expected = waiting.result()
            assert waiting.call.result() == expected
            self.waiting.remove(waiting)

    def wait_for(self, waiting):
        self.waiting.append(waiting)
        self.finish_ready()

    # -- values

    @rule(index=CLIENTS, key=KEYS, value=VALUES)
    def set(self, index, key, value):
        assert self.clients[index].set(key, value) is None
        self.values[key] = value
        self.finish_ready()

    @rule(index=CLIENTS, key=KEYS)
    def try_get(self, index, key):
        assert self.clients[index].try_get(key) == self.values.get(key)

    @rule(index=CLIENTS, key=KEYS)
    def get(self, index, key):
        if key in self.values:
            assert self.clients[index].get(key) == self.values[key]
        else:
            with pytest.raises(dldist.DistStoreTimeoutError):
                self.clients[index].get(key, timeout=IMMEDIATELY)

    @rule(index=CLIENTS, key=KEYS, amount=st.sampled_from([0, 1, -5, 2**63 - 1, -(2**63)]))
    def add(self, index, key, amount):
        number = number_of(self.values.get(key))
        if number is None:
            with pytest.raises(dldist.DistStoreError):
                self.clients[index].add(key, amount)
            return
        total = wrapped(number + amount)
        assert self.clients[index].add(key, amount) == total
        self.values[key] = str(total).encode()
        self.finish_ready()

    @rule(index=CLIENTS, key=KEYS, expected=VALUES, desired=VALUES)
    def compare_set(self, index, key, expected, desired):
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        seen = self.values.get(key, expected)
        assert self.clients[index].compare_set(key, expected, desired) == seen
        self.finish_ready()

    @rule(index=CLIENTS, key=KEYS, value=VALUES)
    def append(self, index, key, value):
        self.clients[index].append(key, value)
        self.values[key] = self.values.get(key, b"") + value
        self.finish_ready()

    @rule(index=CLIENTS, key=KEYS)
    def delete_key(self, index, key):
        assert self.clients[index].delete_key(key) is (self.values.pop(key, None) is not None)

    @rule(index=CLIENTS, items=st.dictionaries(KEYS, VALUES, max_size=4))
    def multi_set(self, index, items):
        if any(key in items for waiting in self.waiting for key in waiting.keys):
            # a call that waits for one of several keys may be notified before all of them exist
            items = dict(list(items.items())[:1])
        self.clients[index].multi_set(list(items), list(items.values()))
        self.values.update(items)
        self.finish_ready()

    @precondition(lambda self: self.values)
    @rule(index=CLIENTS, data=st.data())
    def multi_get(self, index, data):
        keys = data.draw(st.lists(st.sampled_from(sorted(self.values)), max_size=4))
        assert self.clients[index].multi_get(keys) == [self.values[key] for key in keys]

    # -- queues

    @rule(index=CLIENTS, key=KEYS, value=VALUES)
    def queue_push(self, index, key, value):
        self.clients[index].queue_push(key, value)
        self.queues.setdefault(key, []).append(value)
        self.finish_ready()

    @rule(index=CLIENTS, key=KEYS)
    def queue_pop(self, index, key):
        if self.queues.get(key):
            assert self.clients[index].queue_pop(key, block=False) == self.queues[key].pop(0)
        else:
            with pytest.raises(dldist.DistQueueEmptyError):
                self.clients[index].queue_pop(key, block=False)

    # -- calls that wait

    @rule(index=CLIENTS, key=KEYS)
    def wait_to_get(self, index, key):
        self.wait_for(
            Waiting([key], lambda: self.clients[index].get(key), lambda: key in self.values, lambda: self.values[key])
        )

    # Not for an item that another call takes on arrival: the model cannot tell if it was visible.
    @rule(index=CLIENTS, keys=st.lists(KEYS, min_size=1, max_size=3))
    def wait_for_keys(self, index, keys):
        if not any(waiting.takes in keys for waiting in self.waiting):
            self.wait_for(Waiting(keys, lambda: self.clients[index].wait(keys), lambda: all(map(self.has, keys)), lambda: None))

    @rule(index=CLIENTS, keys=st.lists(KEYS, min_size=1, max_size=3))
    def wait_to_get_many(self, index, keys):
        self.wait_for(
            Waiting(
                keys,
                lambda: self.clients[index].multi_get(keys),
                lambda: all(key in self.values for key in keys),
                lambda: [self.values[key] for key in keys],
            )
        )

    # Only one per queue: the model cannot tell which of several came first.
    @rule(index=CLIENTS, key=KEYS)
    def wait_to_pop(self, index, key):
        if not any(key in waiting.keys for waiting in self.waiting):
            self.wait_for(
                Waiting(
                    [key],
                    lambda: self.clients[index].queue_pop(key),
                    lambda: bool(self.queues.get(key)),
                    lambda: self.queues[key].pop(0),
                    takes=key,
                )
            )

    # -- all queries

    @invariant()
    def agrees(self):
        client = self.clients[len(self.values) % 2]
        assert client.num_keys() == len(self.values) + self.place.own_keys
        assert sorted(client.list_keys()) == sorted(self.values)
        for key in ("a", "", "\0"):
            assert client.check([key]) is self.has(key)
            assert client.queue_len(key) == len(self.queues.get(key, ()))
        assert all(waiting.call.is_alive() for waiting in self.waiting)


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(120)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_random_sequences_of_store_calls_match_a_simple_model(kind, tmp_path):
    places = (tmp_path / str(number) for number in itertools.count())

    class Machine(StoreMachine):
        pass

    def make_place():
        for place in places:
            place.mkdir()
            yield place

    Machine.kind, Machine.places = kind, make_place()
    run_state_machine_as_test(Machine, settings=depth(examples=25, steps=40))
