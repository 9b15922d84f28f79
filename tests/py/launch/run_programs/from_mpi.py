"""Worlds of mpi4py's communicators, for four processes of mpirun."""

import dldist
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
world = dldist.World.from_mpi(comm, timeout=60)
assert (world.rank, world.size) == (comm.rank, comm.size) == (comm.rank, 4)
part = comm.Split(comm.rank % 2, key=-comm.rank)  # in reverse order
with dldist.World.from_mpi(part, name="part") as half, dldist.World.from_mpi(MPI.COMM_SELF) as single:
    assert (half.rank, half.size, single.size) == (part.rank, 2, 1)
    x = np.full(2, float(comm.rank))
    half.all_reduce(x)
    assert x.tolist() == [2.0 + comm.rank % 2 * 2] * 2
    assert world.all_gather_object(comm.rank) == comm.allgather(comm.rank)

inter = comm.Split(comm.rank % 2).Create_intercomm(0, comm, 1 - comm.rank % 2)
merged = inter.Merge()
for wrong in (MPI.COMM_NULL, inter):
    try:
        dldist.World.from_mpi(wrong)
    except ValueError as error:
        print(error)
with dldist.World.from_mpi(merged) as both:
    both.barrier()
world.close()
print("done")
