"""Two processes exchange values through a TCPStore.

    python examples/store_demo.py

Rank 0 runs the store's server on a free loopback port, and starts rank 1 with that port as an
argument. In a real job the launcher passes the address, as torchrun does in MASTER_ADDR and
MASTER_PORT.
"""

import os
import subprocess
import sys
import time
from datetime import timedelta

from dldist import TCPStore

WORLD_SIZE = 2
HOST = "127.0.0.1"
TIMEOUT = timedelta(seconds=20)
started = time.monotonic()


def say(rank: int, text: str) -> None:
    # One write per line, as both processes share the terminal.
    sys.stdout.write(f"[{time.monotonic() - started:6.3f} s] rank {rank}: {text}\n")
    sys.stdout.flush()


def meet(store: TCPStore, rank: int) -> None:
    """Run on both ranks; only the numbers differ."""
    other = 1 - rank
    store.set(f"hello/{rank}", f"greetings from rank {rank}, pid {os.getpid()}")
    # get waits for the other rank's set: no polling, and no agreed order.
    say(rank, f"reads {store.get(f'hello/{other}').decode()!r}")

    total = store.add("sum", rank + 1)
    say(rank, f"adds {rank + 1}, the counter is now {total}")
    store.barrier("added", WORLD_SIZE)
    say(rank, f"passes the barrier; both see the sum {store.add('sum', 0)}")

    if rank == 0:
        for task in ("wash", "dry"):
            store.queue_push("tasks", task)
        say(0, "queues two tasks")
    else:
        say(1, f"takes {[store.queue_pop('tasks').decode() for _ in range(2)]} from the queue")

    say(rank, f"looks up a key that is never set: try_get returns {store.try_get('unset')}")
    store.barrier("done", WORLD_SIZE)


def rank_0() -> int:
    store = TCPStore(HOST, 0, WORLD_SIZE, is_master=True, timeout=TIMEOUT, wait_for_workers=False)
    say(0, f"runs the store on {HOST}, port {store.port}")
    peer = subprocess.Popen([sys.executable, __file__, str(store.port), str(started)])
    try:
        meet(store, 0)
        return peer.wait(timeout=TIMEOUT.total_seconds())
    finally:
        peer.kill()
        peer.wait()


def rank_1(port: int) -> int:
    say(1, f"connects to port {port}")
    meet(TCPStore(HOST, port, WORLD_SIZE, is_master=False, timeout=TIMEOUT, wait_for_workers=False), 1)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(rank_0())
    started = float(sys.argv[2])  # one clock for both outputs
    sys.exit(rank_1(int(sys.argv[1])))
