"""Soak: after thousands of repetitions, a process must not hold more resources than before.

    python tests/chaos/soak.py [--ranks 4] [--groups 1000] [--iterations 10000] [--only PART]

The numbers of descriptors, threads and mappings must be the same after a tenth of the iterations
and after all of them, and memory nearly the same. --help lists the parts; tests/py/faults/test_chaos.py
runs them briefly.
"""

import argparse
import os
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "py", "support")]

import dldist  # noqa: E402
import oracle  # noqa: E402
import procs  # noqa: E402
from worker import fd_kinds, usage  # noqa: E402

# malloc's arenas vary with threads; everything else is exact.
ALLOWED = {"fds": 0, "late": 4, "threads": 0, "mappings": 8, "rss": 3 << 20}
PARTS = {}


class Leak(AssertionError):
    """Resources were leaked."""


def part(function):
    PARTS[function.__name__] = function
    return function


# ---- groups: open, use, close; `number` is the iteration


def use(group, number):
    oracle.run(group, oracle.Case("all_reduce", "i", 100 + number % 7, seed=number))


@part
def opened_by_one_name(store, rank, size, number):
    group = dldist.Group(store, rank, size, timeout=20, name="again")
    use(group, number)
    group.close()


@part
def opened_by_other_names(store, rank, size, number):
    group = dldist.Group(store, rank, size, timeout=20, name=f"other-{number}")
    use(group, number)
    del group


@part
def aborted(store, rank, size, number):
    group = dldist.Group(store, rank, size, timeout=20, name="aborted")
    use(group, number)
    try:
        group.barrier()
        if rank == number % size:
            group.abort("soak")
        group.barrier()
    except dldist.DistAbortedError:
        pass


@part
def abandoned_in_the_middle(store, rank, size, number):
    """Close a group while works are pending, almost without a wait."""
    group = dldist.Group(store, rank, size, timeout=20, name="abandoned")
    use(group, number)
    group.irecv(bytearray(1000), (rank + 1) % size, tag=5)
    if rank == 0:
        oracle.start(group, oracle.Case("all_gather", "d", 1000), async_op=True)
    try:
        group.close(timeout=0.001)
    except dldist.DistError:
        pass


@part
def with_shared_arrays(store, rank, size, number):
    group = dldist.Group(store, rank, size, timeout=20, name="arrays")
    for count in (10, 5000, 50_000):
        oracle.run(group, oracle.Case("all_reduce", "f", count, seed=number), allocate=lambda count, _: group.empty(count))
    group.close()


# ---- groups created from a permanent group


def parent_of(store, rank, size, cache={}):  # noqa: B006
    if "parent" not in cache:
        cache["parent"] = dldist.Group(store, rank, size, timeout=20, name="parent")
    return cache["parent"]


@part
def split_off(store, rank, size, number):
    child = parent_of(store, rank, size).split(list(range(size)))
    use(child, number)
    child.close()


@part
def left_after_a_rooted_call(store, rank, size, number):
    """Leave a group right after the own part of a rooted call, while other ranks still receive."""
    child = parent_of(store, rank, size).split(list(range(size)))
    op = ("reduce", "gather", "scatter", "broadcast")[number % 4]
    oracle.run(child, oracle.Case(op, "i", (10, 5000, 100_000)[number % 3], root=number // 4 % size, seed=number))
    child.close()


@part
def split_in_halves(store, rank, size, number):
    mine = [other for other in range(size) if other % 2 == rank % 2]
    child = parent_of(store, rank, size).split(mine)
    use(child, number)
    del child


@part
def split_by_threads(store, rank, size, number):
    """Create two groups of the same ranks concurrently."""
    parent = parent_of(store, rank, size)
    failures = []

    def run(tag):
        try:
            child = parent.split(list(range(size)) if tag == 0 else list(reversed(range(size))))
            use(child, number)
            child.close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(tag,)) for tag in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


# ---- operations of a permanent group


@part
def synchronous(store, rank, size, number):
    group = parent_of(store, rank, size)
    op = oracle.COLLECTIVES[number % len(oracle.COLLECTIVES)]
    oracle.run(group, oracle.Case(op, "i", 50, root=number % size, seed=number))


@part
def asynchronous(store, rank, size, number):
    group = parent_of(store, rank, size)
    op = oracle.COLLECTIVES[number % len(oracle.COLLECTIVES)]
    run = oracle.start(group, oracle.Case(op, "i", 50, root=number % size, seed=number), async_op=True)
    if number % 3 > 0:
        run.work.wait()
        run.check()


@part
def messages(store, rank, size, number):
    group = parent_of(store, rank, size)
    count = 1 << number % 17
    output = bytearray(count)
    work = group.irecv(output, (rank - 1) % size, tag=number % 5)
    group.send(bytes([rank]) * count, (rank + 1) % size, tag=number % 5)
    work.wait()
    assert output == bytes([(rank - 1) % size]) * count


@part
def large(store, rank, size, number):
    if number % 4 == 0:
        group = parent_of(store, rank, size)
        op = oracle.COLLECTIVES[number // 4 % len(oracle.COLLECTIVES)]
        oracle.run(group, oracle.Case(op, "f", 300_000, seed=number))


@part
def timed_out_messages(store, rank, size, number):
    """Receive a message that is never sent: only this receive times out."""
    group = parent_of(store, rank, size)
    try:
        group.recv(bytearray(10), (rank + 1) % size, tag=99, timeout=0)
    except dldist.DistTimeoutError:
        pass
    use(group, number)


OF_GROUPS = (
    "opened_by_one_name", "opened_by_other_names", "aborted", "abandoned_in_the_middle", "with_shared_arrays",
    "split_off", "left_after_a_rooted_call", "split_in_halves", "split_by_threads",
)  # fmt: skip


def settled(store, rank, size, mark):
    """Return the resource usage once all ranks are idle."""
    store.barrier(f"soak-{mark}", size, timeout=60)
    found = usage()
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        time.sleep(0.05)
        again = usage()
        found = {name: min(value, again[name]) for name, value in found.items()}
    store.barrier(f"soak-{mark}-seen", size, timeout=60)
    return found


def rank_main(channel, port, name, rank, size, iterations):
    store = dldist.TCPStore("127.0.0.1", port, timeout=60)
    function = PARTS[name]
    first = max(iterations // 10, 10)
    began = time.monotonic()
    for number in range(first):
        function(store, rank, size, number)
    before = settled(store, rank, size, f"{name}-before")
    for number in range(first, iterations):
        function(store, rank, size, number)
    after = settled(store, rank, size, f"{name}-after")
    return before, after, time.monotonic() - began, fd_kinds()


def run_part(group, name, ranks, iterations, timeout):
    """Run a part in the children of `group` (procs.Group). Return its duration in seconds. Raise
    Leak."""
    server = dldist.TCPStore("127.0.0.1", 0, is_master=True, timeout=60)
    env = {"PYTHONPATH": os.pathsep.join([HERE, *sys.path])}
    children = [group.start(rank_main, server.port, name, rank, ranks, iterations, env=env) for rank in range(ranks)]
    took = 0.0
    for rank, child in enumerate(children):
        before, after, seconds, kinds = child.result(timeout)
        took = max(took, seconds)
        for what, allowed in ALLOWED.items():
            if after[what] > before[what] + allowed:
                raise Leak(
                    f"{name}, {iterations} times: rank {rank} had {before[what]} {what} after a tenth of it and "
                    f"{after[what]} at the end; its descriptors: {kinds}"
                )
    return took, server.num_keys()


def main():
    parser = argparse.ArgumentParser(description=f"{__doc__.splitlines()[0]} Parts: {', '.join(PARTS)}")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--only", action="append", choices=list(PARTS))
    options = parser.parse_args()
    failed = 0
    for name in options.only or PARTS:
        iterations = options.groups if name in OF_GROUPS else options.iterations
        children = procs.Group()
        try:
            took, nkeys = run_part(children, name, options.ranks, iterations, 60 + iterations * 0.1)
            print(f"soak: {name}: {iterations} times in {took:.1f} s, keys left {nkeys}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"soak: {name}: FAILED: {error}", flush=True)
        finally:
            children.close()
    print(f"soak: {'FAILED' if failed else 'passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    # The children import this module by its name.
    import soak

    sys.exit(soak.main())
