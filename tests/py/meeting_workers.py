"""What the ranks of test_meeting_failures.py run. No pytest here: the children start sooner."""

import signal
import time

import dldist
from group_workers import describe


def join(channel, place, rank, size, timeout):
    """Tries to make a world, and tells what became of it, and how long it took."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    channel.send("begin")
    began = time.monotonic()
    try:
        dldist.World(init_method=place, rank=rank, world_size=size, timeout=timeout)
        outcome = {"kinds": [], "text": "made"}
    except BaseException as error:
        outcome = describe(error)
    channel.send({**outcome, "seconds": time.monotonic() - began})
    channel.recv()


def wait_alone(channel, port, size):
    store = dldist.TCPStore("127.0.0.1", port, timeout=60.0)
    dldist.Group(store, 0, size, name="w", connect_timeout=60.0)
