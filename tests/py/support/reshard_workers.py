"""Workers of the ranks of test_reshard.py, in dedicated processes. See procs.py."""

import time

import dldist
import numpy as np
from dldist.reshard import Layout, Link, Shard
from host_workers import describe

SHAPE = (90, 14)
SOURCES, DESTINATIONS = 3, 2


def values(version):
    return np.arange(SHAPE[0] * SHAPE[1], dtype="float32").reshape(SHAPE) + version


def link_of(world, **options):
    """Make the link: ranks 0 to 2 have rows, and ranks 3 and 4 receive columns."""
    if world.rank < SOURCES:
        return Link(world, source=Layout({"w": (SHAPE, "float32", [Shard(0)]), "b": ((7,), "int64", [Shard(0)])}, SOURCES), **options)
    return Link(world, destination=Layout({"w": (SHAPE, "float32", [Shard(1)]), "b": ((7,), "int64", [Shard(0)])}, DESTINATIONS))


def mine(rank, version):
    return {"w": values(version)[30 * rank : 30 * rank + 30], "b": np.arange(7)[3 * rank : 3 * rank + 3] + version}


def check(link, rank, version):
    at = rank - SOURCES
    assert link.version == version
    assert (np.asarray(link.arrays["w"]) == values(version)[:, 7 * at : 7 * at + 7]).all()
    assert np.asarray(link.arrays["b"]).tolist() == [v + version for v in range(7)[4 * at : 4 * at + 4]]


def serve_store(channel, rank, address="127.0.0.1"):
    """Make the store. Rank 0 serves it; the parent passes its port to the other ranks."""
    if rank:
        return dldist.TCPStore(address, channel.recv())
    store = dldist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    channel.send(store.port)
    channel.recv()
    return store


def push_often(channel, rank, size, address, delta):
    """Push four versions; return the bytes that each push moved."""
    with dldist.World(serve_store(channel, rank, address), rank, size, timeout=20) as world, link_of(world, delta=delta) as link:
        moved = []
        for version in (1, 2, 3, 4):
            content = version if version < 3 else 2  # versions 3 and 4 equal version 2
            if rank < SOURCES:
                moved.append(link.push(mine(rank, content), version).nbytes)
            else:
                assert link.receive() == version
                assert (np.asarray(link.arrays["w"]) == values(content)[:, 7 * (rank - SOURCES) :][:, :7]).all()
        world.barrier()
        return moved


def receive_nothing(channel, rank, size, address):
    """Rank 0 has one element, for rank 1; the other ranks have empty parts."""
    with dldist.World(serve_store(channel, rank, address), rank, size, timeout=10) as world:
        layout = Layout({"w": ((1,), "int32", [Shard(0)])}, size - 1 if rank else 1)
        with Link(world, **{"destination" if rank else "source": layout}) as link:
            version = link.receive() if rank else link.push({"w": np.full(1, 5, "int32")}).version
            assert version == 1
            world.barrier()
            return np.asarray(link.arrays["w"]).tolist() if rank else None


def lose(channel, rank, size, victim):
    """After one version, the victim stops until it is killed, and the other ranks try two more."""
    world = dldist.World(serve_store(channel, rank), rank, size, timeout=15)
    link = link_of(world)
    link.push(mine(rank, 1)) if rank < SOURCES else link.receive()
    channel.send("ready")
    if rank == victim:
        time.sleep(60)
    channel.recv()
    outcome = []
    for version in (2, 3):
        try:
            if rank < SOURCES:
                pushed = link.push(mine(rank, version), version)
                outcome.append([describe(error) for error in pushed.lost])
            else:
                link.receive()
                check(link, rank, version)
                outcome.append(None)
        except dldist.DistPeerLostError as error:
            check(link, rank, 1)  # the visible version remains
            outcome.append(describe(error))
    # No rank leaves before all are done, because leaving is also a loss for waiting ranks.
    channel.send(outcome)
    channel.recv()
