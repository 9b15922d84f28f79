"""Cases that the ranks of test_means.py run. See group_workers.py. Without pytest, so that the
children start faster."""

import group_workers
import numpy


def member(channel, port, rank, size, options=None):
    return group_workers.serve(channel, group_workers.open_group(port, rank, size, **(options or {})), globals())


def exact_means(group, count):
    """The mean of integers near the limits of their type must be exact, truncated toward zero."""
    n, rank = group.size, group.rank
    for code in "bBhHiIqQ":
        limits = numpy.iinfo(code)
        values = numpy.array([limits.max, limits.max - 1, limits.min, limits.min + 1, 0, 1], code)
        inputs = numpy.random.default_rng(count).choice(values, (n, n * count))
        inputs[:, 0] = limits.max
        inputs[:, -1] = limits.min
        sums = inputs.astype(object).sum(axis=0)
        means = numpy.array([abs(total) // n * (1 if total >= 0 else -1) for total in sums], code)
        x = inputs[rank].copy()
        group.all_reduce(x, "avg")
        assert x.tolist() == means.tolist(), code
        x = inputs[rank].copy()
        group.reduce(x, n - 1, "avg")
        assert x.tolist() == (means if rank == n - 1 else inputs[rank]).tolist(), code
        x = numpy.empty(count, code)
        group.reduce_scatter_single(x, inputs[rank], "avg")
        assert x.tolist() == means[rank * count : (rank + 1) * count].tolist(), code
