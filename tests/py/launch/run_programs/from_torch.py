"""Worlds of torch's groups, for four processes, with the backend of the first argument."""

import sys

import dldist
import torch
import torch.distributed as dist

if sys.argv[1] == "dldist":
    import dldist.torch  # noqa: F401 - registers the backend if dldist is not installed

dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
part = dist.new_group([1, 3])
with dldist.World.from_torch(timeout=60) as world:
    assert (world.rank, world.size) == (rank, 4)
    x = torch.full((2,), float(rank))
    world.all_reduce(x)
    dist.all_reduce(x)
    assert x.tolist() == [24.0, 24.0]
    if rank in (1, 3):
        with dldist.World.from_torch(part, name="part") as half:
            assert half.all_gather_object(rank) == [1, 3] and half.rank == dist.get_rank(part)
    else:
        try:
            dldist.World.from_torch(part)
        except ValueError as error:
            print(error)
dist.destroy_process_group()
print("done")
