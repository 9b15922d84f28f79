"""Moves sharded arrays from M ranks to N others that need them sharded in another way, as trainers do that give weights to servers."""

from dldist.reshard.placements import Replicate, Shard, Sharding, StridedShard
from dldist.reshard.plans import Piece, ReshardPlan, plan

__all__ = ["Piece", "Replicate", "ReshardPlan", "Shard", "Sharding", "StridedShard", "plan"]
