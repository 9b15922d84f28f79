"""The communication hook of DistributedDataParallel that share_buckets() registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dldist.torch._runner import runner_of

if TYPE_CHECKING:
    from dldist.torch._buckets import Buckets


def averaged_in_shared_memory(group, bucket):  # type: ignore[no-untyped-def]  # DDP wants its own annotations, or none
    """A communication hook of DDP: the mean over the ranks of `group`, in the bucket."""
    tensor = bucket.buffer()
    buckets: Buckets = runner_of(group).buckets
    opts = dist.AllreduceOptions()
    if tensor.layout is torch.strided:
        opts.reduceOp = dist.ReduceOp.AVG
    else:
        tensor.div_(group.size())  # sparse tensors can only be summed

    def result(done: Any) -> Any:
        done.value()  # raises if the call has failed
        return tensor

    return group.allreduce([buckets.in_shared_memory(tensor)], opts).get_future().then(result)
