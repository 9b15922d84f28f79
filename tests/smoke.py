"""A first look at an installation: two processes, or those that a launcher starts, with nothing but Python's own library.

    python tests/smoke.py
    dlrun --nproc-per-node 2 tests/smoke.py
"""

import os
import sys
from array import array

import dldist


def reduce(rank, size):
    """Of sizes that take different ways: with the signature, through the arena, in shares."""
    for count in (1, 1000, 300_000):
        for typecode in "bhifdqQ":
            numbers = array(typecode, [rank + 1]) * count
            dldist.all_reduce(numbers)
            assert numbers == array(typecode, [size * (size + 1) // 2]) * count, (typecode, count)


def pass_round(rank, size):
    """Each rank's number goes to the next one."""
    mine, theirs = array("q", [rank]), array("q", [-1])
    sending = dldist.isend(mine, (rank + 1) % size)
    dldist.recv(theirs, (rank - 1) % size)
    sending.wait()
    assert theirs[0] == (rank - 1) % size


def gather_objects(rank, size):
    pids = [None] * size
    dldist.all_gather_object(pids, (rank, os.getpid()))
    assert [of for of, _ in pids] == list(range(size))
    assert len({pid for _, pid in pids}) == size


def main(_=None):
    dldist.init_process_group()
    rank, size = dldist.get_rank(), dldist.get_world_size()
    assert size >= 2
    for part in (reduce, pass_round, gather_objects):
        part(rank, size)
    dldist.destroy_process_group()
    assert "numpy" not in sys.modules
    # One write a line, as the processes share the terminal.
    sys.stdout.write(f"rank {rank} of {size}: all as it should be\n")


if __name__ == "__main__":
    if dldist.is_launched():
        main()
    else:
        dldist.spawn(main, nprocs=2)
