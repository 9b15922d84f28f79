"""Rank 1 fails in the way of its argument, the others wait for it: in a group, or ignoring SIGTERM."""

import os
import signal
import sys
import time

import dldist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
how = sys.argv[1]
store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)


def fail():
    if how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "code":
        print("the last words", file=sys.stderr)
        sys.exit(7)
    try:
        {}["inner"]
    except KeyError as error:
        raise ValueError("the cause") from error


if how == "group":
    with dldist.Group(store, rank, size, timeout=20) as group:
        if rank == 1:
            fail()
        group.barrier()
else:
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store.barrier("ready", size)
    if rank == 1:
        fail()
    time.sleep(60)
