"""Make rank 1 fail as its argument names, while the other ranks wait: in a group, in a world,
printing, or ignoring SIGTERM."""

import os
import signal
import sys
import time

import dldist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
how = sys.argv[1]
store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)


def write_after_a_signal(_number, _frame):
    for index in range(200):
        print("line", index, file=sys.stderr)
    os._exit(1)


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
elif how == "world":
    dldist.init_process_group(timeout=20)
    if rank == 1:
        fail()
    dldist.barrier()
else:
    if rank == 0:
        signal.signal(signal.SIGTERM, write_after_a_signal if how == "talkers" else signal.SIG_IGN)
    store.barrier("ready", size)
    if rank == 1:
        fail()
    time.sleep(60)
