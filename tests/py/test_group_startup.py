"""Making a group and splitting it waits for the other ranks, and for nothing else."""

import time

import dldist
from pairs import on_both, open_pair

# Far above what it takes (a millisecond and a tenth of one), far below any nap or slice of a wait in the library.
LIMIT_S = 0.008
ATTEMPTS = 9


def best_of(call):
    times = []
    for _ in range(ATTEMPTS):
        start = time.monotonic()
        call()
        times.append(time.monotonic() - start)
    return min(times)


def test_split():
    with open_pair(timeout=10) as groups:
        assert best_of(lambda: on_both(groups, lambda group, _: group.split([0, 1]))) < LIMIT_S


def test_open():
    store = dldist.HashStore()
    names = iter("abcdefghijklm")

    def open_both():
        name = next(names)
        on_both([None, None], lambda _, rank: dldist.Group(store, rank, 2, name=name))

    assert best_of(open_both) < LIMIT_S
