"""Errors for checkers: they must report exactly the marked lines. Never run."""

from array import array

import dldist as dist
import dldist.functional as F

x = array("f", [1])

dist.all_reduce(1.0)  # wrong
dist.all_reduce("x")  # wrong
dist.all_reduce([1.0, 2.0])  # wrong
dist.all_reduce([x, x])  # wrong
dist.all_reduce(x, 3)  # wrong
dist.all_reduce(x, "nope")  # wrong
dist.all_reduce(x, timeout="30 s")  # wrong
dist.all_reduce(x, group="default")  # wrong
dist.all_reduce(x).wait()  # wrong
dist.all_gather(x, x)  # wrong
dist.all_gather([1, 2], x)  # wrong
dist.all_gather(b"ab", x)  # wrong
dist.broadcast(x, src="0")  # wrong
dist.isend(x, 1, async_op=True)  # wrong
dist.new_group(timeout="long")  # wrong
dist.World(timeout="long")  # wrong
dist.World.from_torch(rank=0)  # wrong
dist.World().all_reduce(1.0)  # wrong
dist.World().all_reduce(x, "nope")  # wrong
dist.World().all_reduce(x, "land")  # wrong
dist.World().plan.reduce(x, op="nope")  # wrong
dist.World().all_reduce(x).wait()  # wrong
F.all_reduce("x")  # wrong
F.all_reduce(x, "nope")  # wrong
F.all_reduce(x).wait()  # wrong
