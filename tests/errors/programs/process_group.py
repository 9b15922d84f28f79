"""Use torch.distributed's calls with the default process group."""

from array import array

import dldist as dist

dist.init_process_group(timeout=60)
rank = dist.get_rank()
x = array("d", [1.0] * 1000)
dist.all_reduce(x)
assert x[0] == 2.0, x[0]
work = dist.all_reduce(x, async_op=True)
work.wait()
part = dist.new_group([0, 1])
dist.broadcast(x, 0, group=part)
dist.monitored_barrier()
dist.barrier()
dist.destroy_process_group()
