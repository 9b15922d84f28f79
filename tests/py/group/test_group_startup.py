"""Making a group and splitting it must wait only for the other ranks."""

import itertools
import time

import dldist
from pairs import on_both, open_pair

# Far above the real times (1 ms and 0.1 ms), far below any sleep or slice of a wait in the library.
LIMIT_S = 0.008
TRYING_S = 20


def is_soon(call):
    """Return True if the call takes less than the limit, in any attempt within TRYING_S."""
    end = time.monotonic() + TRYING_S
    while (start := time.monotonic()) < end:
        call()
        if time.monotonic() - start < LIMIT_S:
            return True
    return False


def test_splitting_a_group_of_two_ranks_is_fast():
    with open_pair(timeout=10) as groups:
        assert is_soon(lambda: on_both(groups, lambda group, _: group.split([0, 1])))


def test_opening_a_group_of_two_ranks_is_fast():
    store = dldist.HashStore()
    numbers = itertools.count()

    def open_both():
        name = f"group {next(numbers)}"
        on_both([None, None], lambda _, rank: dldist.Group(store, rank, 2, name=name))

    assert is_soon(open_both)
