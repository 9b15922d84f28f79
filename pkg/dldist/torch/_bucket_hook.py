"""The communication hook of DistributedDataParallel that share_buckets() registers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dldist.torch._buckets import Buckets


class SharedBuckets(NamedTuple):
    """The state of the hook: a group, and the group's moved buckets."""

    group: Any
    buckets: Buckets


def average_in_shared_memory(state, bucket):  # type: ignore[no-untyped-def]  # DDP wants its own annotations, or none
    """Average a bucket over the group's ranks, in place. A communication hook of DDP."""
    group, buckets = state
    tensor = bucket.buffer()
    opts = dist.AllreduceOptions()
    if tensor.layout is torch.strided:
        opts.reduceOp = dist.ReduceOp.AVG
    else:
        tensor.div_(group.size())  # divide now, because sparse tensors can only be summed

    def result(done: Any) -> Any:
        done.value()  # raises the error if the call failed
        return tensor

    return group.allreduce([buckets.in_shared_memory(tensor)], opts).get_future().then(result)
