"""The ranks of test_trace_verdicts.py: a small training program, in which the last rank does something wrong."""

import os
import time
from array import array

FAULTS = ("none", "missing_rank", "wrong_order", "wrong_size", "wrong_op", "slow_rank")
LATE_S = 0.4


def forward(dist, steps):
    """What all ranks do, and get right."""
    for _ in range(steps):
        dist.all_reduce(array("f", [1.0] * 4))
    dist.broadcast(array("d", [1.0] * 3), 0)


def average(dist, count=4):
    return dist.all_reduce(array("f", [1.0] * count), async_op=True)


def share(dist):
    return dist.broadcast(array("d", [1.0] * 3), 0, async_op=True)


def collect(dist):
    return dist.reduce(array("f", [1.0] * 4), 0, async_op=True)


def backward(dist, fault, is_culprit):
    """The works of the calls in which it hangs."""
    if not is_culprit or fault == "none":
        return [average(dist), share(dist)]
    if fault == "missing_rank":
        return []
    if fault == "wrong_order":
        return [share(dist), average(dist)]
    if fault == "wrong_size":
        return [average(dist, 5), share(dist)]
    if fault == "wrong_op":
        return [collect(dist), share(dist)]
    time.sleep(LATE_S)  # that is the fault
    return [average(dist), share(dist)]


def train(channel, port, rank, size, folder):
    """Runs the program once for each fault that the parent names, every time in a group of its own, and leaves dumps in
    folder/fault."""
    import dldist as dist
    from dldist import flight_recorder

    while (fault := channel.recv()) is not None:
        store = dist.PrefixStore(fault, dist.TCPStore("127.0.0.1", port))
        dist.init_process_group(store=store, rank=rank, world_size=size, timeout=20)
        forward(dist, 3)
        works = backward(dist, fault, rank == size - 1)
        if fault != "missing_rank":
            for work in works:
                try:
                    work.wait()
                except dist.DistError:
                    pass  # our groups find out themselves, and fail
        store.barrier("called", size)
        with open(os.path.join(folder, fault, f"fr_{rank}"), "wb") as file:
            file.write(dump(flight_recorder))
        store.barrier("dumped", size)
        dist.distributed_c10d._abort_process_group()
        reset(flight_recorder)
        channel.send(fault)


def dump(flight_recorder):
    return flight_recorder.dump()


def reset(flight_recorder):
    flight_recorder.reset()
