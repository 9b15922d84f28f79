"""Workers of test_network_partition.py. See procs.py. One process is one rank.

A rank makes a world and works until an operation fails. It waits until the parent has restored the
network, and makes a new world while it still holds the old one. It returns the error of one more
call on the old world, or None if the old world is closed.
"""

import array
import datetime
import time

import dldist
from host_workers import attempt, describe

COUNT = 1_000_000
LIMIT_S = 20.0


def open_store(channel, rank, address):
    """Return the server's store (None except on rank 0) and the port, which the parent forwards."""
    if rank == 0:
        store = dldist.TCPStore(address, 0, is_master=True, timeout=LIMIT_S, wait_for_workers=False)
        channel.send(store.port)
        return store, channel.recv()
    return None, channel.recv()


def work_until_error(all_reduces, timeout):
    """Call all_reduce on several groups in rotation; return the first error and the failed call."""
    data = array.array("i", [1]) * COUNT
    deadline = time.monotonic() + 60
    calls = 0
    while time.monotonic() < deadline:
        call = all_reduces[calls % len(all_reduces)]
        calls += 1
        try:
            call(data, timeout)
        except dldist.DistError as error:
            return error, call
        data[:] = array.array("i", [1]) * COUNT
    raise AssertionError("no call has failed")


def check(all_reduce, size):
    for _ in range(3):
        data = array.array("i", [1]) * COUNT
        all_reduce(data, LIMIT_S)
        assert data[0] == data[-1] == size


class Worlds:
    """The object front end. `hold`: "closed" closes the old groups, "failed" leaves them open."""

    def __init__(self, store, rank, size, name):
        self.world = dldist.World(
            store=store, rank=rank, world_size=size, name=name, timeout=3.0, connect_timeout=LIMIT_S
        )
        self.part = self.world.split(list(range(size)))

    def all_reduces(self):
        return [
            lambda data, timeout: self.world.all_reduce(data, timeout=timeout),
            lambda data, timeout: self.part.all_reduce(data, timeout=timeout),
        ]

    def end(self, hold):
        if hold == "closed":
            attempt(self.part.close, timeout=1)
            attempt(self.world.close, timeout=1)


class C10d:
    """The names of torch.distributed. Destroys all groups, and keeps a handle from new_group."""

    def __init__(self, store, rank, size, name):
        dldist.init_process_group("gloo", store=dldist.PrefixStore(name, store), rank=rank, world_size=size, timeout=LIMIT_S)
        self.part = dldist.new_group(list(range(size)))

    def all_reduces(self):
        def of(group):
            def all_reduce(data, timeout):
                dldist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout), group)
                dldist.all_reduce(data, group=group)

            return all_reduce

        return [of(None), of(self.part)]

    def end(self, hold):
        dldist.destroy_process_group()


FRONTS = {"world": Worlds, "c10d": C10d}


def survive_partition(channel, front, hold, rank, size, address):
    server, port = open_store(channel, rank, address)
    store = server or dldist.TCPStore(address, port, timeout=LIMIT_S)
    old = FRONTS[front](store, rank, size, "old")
    check(old.all_reduces()[0], size)
    channel.send("works")
    error, failed = work_until_error(old.all_reduces(), 3.0)
    began = time.monotonic()
    old.end(hold)
    channel.send({**describe(error), "closing_took": time.monotonic() - began})
    channel.recv()  # the network is restored
    store = server or dldist.TCPStore(address, port, timeout=LIMIT_S)
    new = FRONTS[front](store, rank, size, "new")
    for all_reduce in new.all_reduces():
        check(all_reduce, size)
    again = attempt(failed, array.array("i", [1]) * COUNT, 3.0) if hold == "failed" else None
    channel.send("together")
    channel.recv()  # all ranks have detected it
    new.end("closed")
    del error
    return again["text"] if again else None
