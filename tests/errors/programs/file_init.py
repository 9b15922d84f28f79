"""Initialize ranks through a file."""

import os
from array import array

import dldist as dist

path = os.path.join(os.environ["ERRORS_FOLDER"], "meeting")
dist.init_process_group(init_method=f"file://{path}", rank=int(os.environ["RANK"]), world_size=2, timeout=60)
x = array("d", [1.0])
dist.all_reduce(x)
assert x[0] == 2.0, x
dist.destroy_process_group()
