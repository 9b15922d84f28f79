"""A program for torch, with the backend of the first argument. With a second argument, a path that
does not exist, rank 1 creates it and fails."""

import os
import sys

import torch
import torch.distributed as dist

if sys.argv[1] == "dldist":
    import dldist.torch  # noqa: F401 - registers the backend if dldist is not installed

dist.init_process_group(sys.argv[1])
if len(sys.argv) > 2 and dist.get_rank() == 1 and not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "x").close()
    sys.exit(3)
x = torch.full((2,), float(os.environ["RANK"]) + 1)
dist.all_reduce(x)
print("sum", x.tolist())
dist.destroy_process_group()
