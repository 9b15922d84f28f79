"""Two ranks of one group in one process, for tests that need somebody to wait for and no processes."""

import contextlib
import threading

import dldist

LIMIT_S = 20.0


def on_both(groups, call):
    """call(group, rank) on a thread for each rank; what they returned, or the first exception."""
    results, errors = [None] * len(groups), []

    def run(rank):
        try:
            results[rank] = call(groups[rank], rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads), f"a rank has not come back in {LIMIT_S} s"
    if errors:
        raise errors[0]
    return results


@contextlib.contextmanager
def open_pair(**options):
    """The two ranks of a group over a store of their own."""
    store = dldist.HashStore()
    groups = on_both([None, None], lambda _, rank: dldist.Group(store, rank, 2, **options))
    try:
        yield groups
    finally:
        on_both(groups, lambda group, _: group.close())
