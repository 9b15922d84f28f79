"""Move sharded arrays between ranks with different shardings, such as from trainers to servers.

    link = Link(world, source=Layout({"w": ((8192, 4096), "bfloat16", [Shard(0)])}, mesh=3))
    link.push({"w": my_rows})  # on three trainers

    link = Link(world, destination=Layout({"w": ((8192, 4096), "bfloat16", [Shard(1)])}, mesh=2))
    link.receive()             # on two servers
    torch.from_dlpack(link.arrays["w"])

See docs/reshard.md. plan() computes what each rank sends. Links need NumPy.
"""

from dldist.reshard.layouts import ArraySpec, Layout
from dldist.reshard.link import Link, Pushed, redistribute
from dldist.reshard.placements import Replicate, Shard, Sharding, StridedShard
from dldist.reshard.plans import Piece, ReshardPlan, plan

__all__ = [
    "ArraySpec",
    "Layout",
    "Link",
    "Piece",
    "Pushed",
    "Replicate",
    "ReshardPlan",
    "Shard",
    "Sharding",
    "StridedShard",
    "plan",
    "redistribute",
]
