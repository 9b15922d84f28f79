"""Workers of the ranks of test_rendezvous_failures.py. Without pytest, so that they start faster."""

import time

import dldist
from group_workers import describe


def join(channel, place, rank, size, timeout):
    """Wait for the parent's message and make a world; send the outcome and the time it took."""
    channel.send("begin")
    channel.recv()
    began = time.monotonic()
    try:
        dldist.World(place, rank=rank, world_size=size, timeout=timeout)
        outcome = {"kinds": [], "text": "made"}
    except BaseException as error:
        outcome = describe(error)
    channel.send({**outcome, "seconds": time.monotonic() - began})
    channel.recv()


def wait_alone(channel, port, size):
    store = dldist.TCPStore("127.0.0.1", port, timeout=60.0)
    dldist.Group(store, 0, size, name="w", connect_timeout=60.0)


def join_with_few_descriptors(channel, port, rank, size, spare):
    """Make a world over an existing store, with a limit of `spare` more descriptors."""
    import os
    import resource

    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    if spare is not None:
        dldist.Group(None, 0, 1).close()  # opens the descriptors that a process needs once
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, used + spare))
    channel.send("begin")
    done = "nothing"
    try:
        group = dldist.Group(store, rank, size, name="few", timeout=30.0)
        done = "made"
        group.barrier()
        outcome = {"kinds": [], "text": "passed"}
    except BaseException as error:
        outcome = describe(error)
    channel.send({**outcome, "done": done})
    channel.recv()


def join_without_a_port(channel, place, rank, size):
    """Do the same while the only port that this rank may use is taken."""
    import os
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        os.environ["DLDIST_PORT_RANGE"] = str(taken.getsockname()[1])
        join(channel, place, rank, size, 60.0)
