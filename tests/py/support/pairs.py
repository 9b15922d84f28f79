"""Two ranks of one group in one process, for tests that need a peer but no processes."""

import contextlib
import functools
import threading

import dldist

LIMIT_S = 20.0


def together(*calls):
    """Run the calls concurrently, one per thread. Return results, or raise the first error."""
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
    """Run call(group, rank) on a thread per rank. Return results, or raise the first exception."""
    return together(*(functools.partial(call, group, rank) for rank, group in enumerate(groups)))


@contextlib.contextmanager
def open_pair(**options):
    """Open two ranks of a group over their own store."""
    store = dldist.HashStore()
    groups = on_both([None, None], lambda _, rank: dldist.Group(store, rank, 2, **options))
    try:
        yield groups
    finally:
        on_both(groups, lambda group, _: group.close())
