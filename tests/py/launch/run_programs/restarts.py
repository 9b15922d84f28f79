"""Fail on the last rank at its first start."""

import os
import sys

import dldist

rank, size, count = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)
assert store.add("arrived", 1) <= size, "there is something of the attempt before"
store.barrier("ready", size)
if count == 0:
    if rank == size - 1:
        sys.exit(5)
    store.get("never")
print(f"attempt {count} of rank {rank} in machine {os.environ['GROUP_RANK']}")
