"""Ranks as threads of one process, each with its own default world, for many small cases."""

import array
import contextlib
import threading
import time

import dldist
from dldist import distributed_c10d as c10d

LIMIT_S = 20.0


class WorldOfThread:
    """A replacement for c10d's `_world` that differs on every thread."""

    def __init__(self):
        self.__dict__["_local"] = threading.local()

    def _own(self):
        local = self.__dict__["_local"]
        if not hasattr(local, "world"):
            local.world = c10d._World()
        return local.world

    def __getattr__(self, name):
        return getattr(self._own(), name)

    def __setattr__(self, name, value):
        setattr(self._own(), name, value)


@contextlib.contextmanager
def separate_worlds():
    before = c10d._world
    c10d._world = WorldOfThread()
    try:
        yield
    finally:
        c10d._world = before


def on_threads(size, call, *args):
    """Run call(rank, *args) on a thread per rank; return the results. Raise the first exception
    once all have ended."""
    results, errors = [None] * size, []

    def run(rank):
        try:
            results[rank] = call(rank, *args)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"a rank did not return within {LIMIT_S} s"
    return results


def in_worlds(size, case, *args, store=None, **init):
    """Run case(rank, *args) on `size` threads, each a rank of a temporary default world."""
    store = dldist.HashStore() if store is None else store

    def run(rank):
        dldist.init_process_group(store=store, rank=rank, world_size=size, **{"timeout": 10.0, **init})
        try:
            return case(rank, *args)
        finally:
            if dldist.is_initialized():
                dldist.destroy_process_group()

    with separate_worlds():
        return on_threads(size, run)


def vector(*values):
    return array.array("d", values)


def total(group=None, value=1.0, **how):
    """Return the all_reduce of `value` on every rank."""
    x = vector(value)
    dldist.all_reduce(x, group=group, **how)
    return x[0]


def error_of(call, *args, **kwargs):
    """Return the exception that a call raises."""
    try:
        value = call(*args, **kwargs)
    except Exception as error:
        return error
    raise AssertionError(f"no exception, but {value!r}")
