"""The ranks of test_trace_verdicts.py: a small training program with a fault on the last rank."""

import os
import time
from array import array

FAULTS = ("none", "missing_rank", "wrong_order", "wrong_size", "wrong_op", "slow_rank")
LATE_S = 0.4


def forward(dist, steps):
    """Make the calls that all ranks make correctly."""
    for _ in range(steps):
        dist.all_reduce(array("f", [1.0] * 4))
    dist.broadcast(array("d", [1.0] * 3), 0)


def average(dist, count=4):
    return dist.all_reduce(array("f", [1.0] * count), async_op=True)


def share(dist):
    return dist.broadcast(array("d", [1.0] * 3), 0, async_op=True)


def collect(dist):
    return dist.reduce(array("f", [1.0] * 4), 0, async_op=True)


def backward(dist, fault, is_faulty):
    """Make the calls that hang, one after another; return the works of the accepted ones."""
    calls = [average, share]
    if is_faulty and fault == "missing_rank":
        calls = []
    elif is_faulty and fault == "wrong_order":
        calls = [share, average]
    elif is_faulty and fault == "wrong_size":
        calls = [lambda dist: average(dist, 5), share]
    elif is_faulty and fault == "wrong_op":
        calls = [collect, share]
    elif is_faulty and fault == "slow_rank":
        time.sleep(LATE_S)  # the fault itself
    works = []
    for call in calls:
        try:
            works.append(call(dist))
        except dist.DistError:
            break  # dldist's groups detect the fault and refuse further calls
    return works


def train(channel, port, rank, size, folder):
    """Run the program once for each fault that the parent sends, each time in a new group, and
    write dumps to folder/fault."""
    import dldist as dist
    from dldist import flight_recorder

    while (fault := channel.recv()) is not None:
        store = dist.PrefixStore(fault, dist.TCPStore("127.0.0.1", port))
        dist.init_process_group(store=store, rank=rank, world_size=size, timeout=20)
        forward(dist, 3)
        # The middle rank enters a correct call last, so that nothing is detected while the other
        # ranks make their calls.
        if rank == 1 and fault not in ("none", "slow_rank"):
            store.barrier("others have called", size)
        works = [collect(dist), *backward(dist, fault, rank == size - 1)]
        if rank != 1 and fault not in ("none", "slow_rank"):
            store.barrier("others have called", size)
        for work in works if fault != "missing_rank" else works[:1]:
            try:
                work.wait()
            except dist.DistError:
                pass
        store.barrier("called", size)
        flight_recorder.dump(os.path.join(folder, fault, f"fr_{rank}"))
        store.barrier("dumped", size)
        dist.distributed_c10d._abort_process_group()
        flight_recorder.reset()
        channel.send(fault)
