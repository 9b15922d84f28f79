"""Make rank 0 wait for rank 1, which does something else."""

import array
import os
import time

import dldist as dist

dist.init_process_group(timeout=60)
x = array.array("d", [1.0])
dist.barrier()
print("pid", os.getpid(), flush=True)
if dist.get_rank() == 0:
    dist.all_reduce(x)
else:
    time.sleep(60)
