"""A first program: every rank has some numbers, and all ranks get the sum.

    python examples/all_reduce.py                    # starts two processes itself
    dlrun --nproc-per-node 2 examples/all_reduce.py  # or torchrun, mpirun -n 2 python ..., srun

The numbers are in an array.array; NumPy arrays and torch tensors work as well.
"""

import os
import sys
from array import array

import dldist


def say(text):
    # One write per line, as the processes share the terminal.
    sys.stdout.write(f"rank {dldist.get_rank()}: {text}\n")
    sys.stdout.flush()


def work_together():
    """Run on every rank; only the numbers differ."""
    rank, size = dldist.get_rank(), dldist.get_world_size()
    numbers = array("d", [rank + 1, 10 * (rank + 1), 100 * (rank + 1)])
    say(f"is process {os.getpid()}, one of {size}, and has the numbers {numbers.tolist()}")

    dldist.all_reduce(numbers)  # in place
    say(f"all_reduce: the sum over all ranks is {numbers.tolist()}")

    largest = array("q", [rank * rank])
    dldist.all_reduce(largest, op=dldist.ReduceOp.MAX)
    say(f"all_reduce: the largest of all squares of ranks is {largest[0]}")

    word = bytearray(b"hello" if rank == 0 else 5)
    dldist.broadcast(word, src=0)
    say(f"broadcast: the word of rank 0 is {word.decode()!r}")

    pids = [None] * size
    dldist.all_gather_object(pids, os.getpid())
    say(f"all_gather_object: we are the processes {pids}")


def main(_=None):
    """Run one rank. spawn() passes the rank, which the world also knows."""
    dldist.init_process_group()
    work_together()
    dldist.destroy_process_group()


if __name__ == "__main__":
    if dldist.is_launched():
        main()
    else:
        dldist.spawn(main, nprocs=2)
