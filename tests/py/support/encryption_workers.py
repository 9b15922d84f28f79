"""Workers of the ranks of test_encryption.py. See procs.py."""

import array
import logging
import os
import subprocess
import sys
import time

import dldist
from host_workers import attempt, describe

MARKER = b"a marker that nobody else sends. "


def start(channel, job, *args):
    return globals()[job](channel, *args)


def open_world(channel, rank, size, address):
    if rank == 0:
        store = dldist.TCPStore(address, 0, is_master=True, timeout=20, wait_for_workers=False)
        channel.send(store.port)
        channel.recv()
    else:
        store = dldist.TCPStore(address, channel.recv(), timeout=20)
    return store, dldist.World(store=store, rank=rank, world_size=size, timeout=20)


def everything(channel, rank, size, address):
    """Send the marker in every possible way."""
    store, world = open_world(channel, rank, size, address)
    text = MARKER * 40
    other = (rank + 1) % size
    store.set(f"key of {rank} " + MARKER.decode(), text)
    world.barrier()
    assert store.get(f"key of {other} " + MARKER.decode()) == text
    for nbytes in (len(MARKER), 4000, 300_000):
        block = array.array("B", (text * (nbytes // len(text) + 1))[:nbytes])
        world.broadcast(block, 0)
        work = world.isend(block, other)
        world.recv(array.array("B", bytes(nbytes)), other)
        work.wait()
        world.all_gather([array.array("B", bytes(nbytes)) for _ in range(size)], block)
        world.all_reduce(block, "max")
    assert world.all_gather_object({"rank": MARKER, "big": text * 500})[other]["rank"] == MARKER
    transports = {member.transport for member in world.members if member.rank != rank}
    world.close(timeout=5)
    return transports


def everything_with_secret(channel, rank, size, address):
    """Pass the secret to the store, with no secret in the environment."""
    given = dldist.TCPStore
    dldist.TCPStore = lambda *args, **options: given(*args, secret="a secret of the store", **options)
    return everything(channel, rank, size, address)


def log(channel, rank, size, address):
    """Return the log records about the cipher."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("dldist").addHandler(handler)
    logging.getLogger("dldist").setLevel(logging.INFO)
    dldist.set_log_level("info")
    _store, world = open_world(channel, rank, size, address)
    world.barrier()
    world.close(timeout=5)
    deadline = time.monotonic() + 5
    while not any("encrypted" in message for message in records) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [message for message in records if "encrypted" in message]


def meet(channel, rank, size, address):
    """Make a world with ranks that do not agree; return the error."""
    try:
        _store, world = open_world(channel, rank, size, address)
    except dldist.DistError as error:
        return describe(error)
    world.close(timeout=5)
    return None


def meet_over_file(_channel, rank, size, path):
    store = dldist.FileStore(path, size)
    failure = attempt(dldist.World, store=store, rank=rank, world_size=size, timeout=20, connect_timeout=5)
    return failure


def inspect_children(channel, rank, size, address):
    """Return the DLDIST_SECRET of child processes, before and after this process becomes a rank."""
    show = [sys.executable, "-c", "import os; print(os.environ.get('DLDIST_SECRET'))"]

    def shown():
        return subprocess.run(show, capture_output=True, text=True, timeout=20).stdout.strip()

    before = shown()
    _store, world = open_world(channel, rank, size, address)
    after = shown()
    again = dldist.World(store=dldist.PrefixStore("again", _store), rank=rank, world_size=size, timeout=20)
    again.barrier()
    again.close(timeout=5)
    use = "import dldist\ntry:\n  dldist.TCPStore('127.0.0.1', 1, timeout=1)\nexcept ValueError as error:\n  print(error)"
    refusal = subprocess.run([sys.executable, "-c", use], capture_output=True, text=True, timeout=20).stdout
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        from dldist._base import settings

        os.write(writing, settings.secret())
        os._exit(0)
    os.waitpid(child, 0)
    forked = os.read(reading, 100)
    world.close(timeout=5)
    return before, after, refusal, forked, os.getpid()
