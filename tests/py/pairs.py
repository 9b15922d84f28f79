"""Two ranks of one group in one process, for tests that need somebody to wait for and no processes."""

import contextlib
import functools
import threading

import dldist

LIMIT_S = 20.0


def together(*calls):
    """Calls each on a thread of its own, all at the same time. Returns what they returned, or raises the first exception."""
    barrier = threading.Barrier(len(calls))
    results, errors = [None] * len(calls), []

    def run(i):
        barrier.wait(LIMIT_S)
        try:
            results[i] = calls[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads), f"a thread has not ended in {LIMIT_S} s"
    if errors:
        raise errors[0]
    return results


def on_both(groups, call):
    """call(group, rank) on a thread for each rank; what they returned, or the first exception."""
    return together(*(functools.partial(call, group, rank) for rank, group in enumerate(groups)))


@contextlib.contextmanager
def open_pair(**options):
    """The two ranks of a group over a store of their own."""
    store = dldist.HashStore()
    groups = on_both([None, None], lambda _, rank: dldist.Group(store, rank, 2, **options))
    try:
        yield groups
    finally:
        on_both(groups, lambda group, _: group.close())
