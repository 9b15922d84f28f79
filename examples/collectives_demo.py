"""Two processes create a group, and reduce, gather and send arrays; without NumPy.

    python examples/collectives_demo.py

Rank 0 runs the store that they use for rendezvous, and starts rank 1. The group uses shared memory,
as both ranks are on one host; between hosts it would use TCP, with the same program.
"""

import subprocess
import sys
from array import array

from dldist import Group, TCPStore

HOST = "127.0.0.1"
SIZE = 2
TIMEOUT_S = 20


def say(group: Group, text: str) -> None:
    # One write per line, as both processes share the terminal.
    sys.stdout.write(f"rank {group.rank}: {text}\n")
    sys.stdout.flush()


def work_together(group: Group) -> None:
    """Run on both ranks; only the numbers differ."""
    other = 1 - group.rank
    member = group.members[other]
    say(group, f"in a group with rank {other}, pid {member.pid}, by {member.transport}")

    numbers = array("d", [1.5, 2.5, 3.5]) if group.rank == 0 else array("d", [10, 20, 30])
    group.all_reduce(numbers)
    say(group, f"the sum of both is {numbers.tolist()}")

    # Asynchronous: the program may do other work until wait().
    together = array("i", [0] * SIZE)
    work = group.all_gather_single(together, array("i", [group.rank * 100]), async_op=True)
    work.wait()
    say(group, f"gathered {together.tolist()}")

    message = bytearray(5)
    if group.rank == 0:
        group.send(b"hello", other)
    else:
        source = group.recv(message)
        say(group, f"received {message.decode()!r} from rank {source}")


def run(store: TCPStore, rank: int) -> None:
    with Group(store, rank, SIZE, timeout=TIMEOUT_S) as group:
        work_together(group)
        group.barrier()


def rank_0() -> int:
    store = TCPStore(HOST, 0, is_master=True, timeout=TIMEOUT_S, wait_for_workers=False)
    peer = subprocess.Popen([sys.executable, __file__, str(store.port)])
    try:
        run(store, 0)
        return peer.wait(timeout=TIMEOUT_S)
    finally:
        peer.kill()
        peer.wait()


def rank_1(port: int) -> int:
    run(TCPStore(HOST, port, timeout=TIMEOUT_S, wait_for_workers=False), 1)
    return 0


if __name__ == "__main__":
    sys.exit(rank_0() if len(sys.argv) == 1 else rank_1(int(sys.argv[1])))
