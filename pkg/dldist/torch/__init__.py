"""The backend "dldist" of torch.distributed, and other parts of dldist for PyTorch programs.

    import dldist.torch  # optional: PyTorch finds an installed dldist
    torch.distributed.init_process_group("dldist")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from _dldist_torch import register, set_as_gloo

from dldist.torch._bucket_hook import SharedBuckets, average_in_shared_memory
from dldist.torch._runner import runner_of
from dldist.world import World

if TYPE_CHECKING:
    from dldist.torch._python_group import ProcessGroup
    from dldist.torch._work import Work

__all__ = ["ProcessGroup", "Work", "empty", "install", "share_buckets", "world_of"]

register()


def __getattr__(name: str) -> Any:
    """Import the classes of groups in Python at first use: the C++ backend needs none."""
    if name not in ("ProcessGroup", "Work"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dldist.torch._python_group import ProcessGroup
    from dldist.torch._work import Work

    globals().update(ProcessGroup=ProcessGroup, Work=Work)
    return globals()[name]


def install(as_gloo: bool = False) -> None:
    """Register the backend "dldist", as importing this package does.

    Args:
        as_gloo: True if the backend name "gloo" selects dldist from now on, as with
            DLDIST_TORCH_AS_GLOO=1. False restores PyTorch's backend. Existing groups do not change.

    Raises:
        RuntimeError: This PyTorch has no Gloo.

    Example:
        >>> dldist.torch.install(as_gloo=True)
        >>> dist.init_process_group("gloo")
    """
    register()
    set_as_gloo(as_gloo)


def world_of(group: Any = None) -> World:
    """Return the dldist.World of a group of torch.distributed, by default of the default group."""
    group = dist.group.WORLD if group is None else group
    return _runner_of(group, "world_of(): argument 'group' must be a group").group


def empty(shape: Any, dtype: torch.dtype = torch.float32, group: Any = None) -> torch.Tensor:
    """Create a tensor of zeros in memory that a host's ranks share; its collectives need no copy.

    The call is local: other ranks need not create such a tensor, or may use another shape.
    """
    return torch.from_dlpack(world_of(group).empty(shape, str(dtype).removeprefix("torch.")))


def share_buckets(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Keep the buckets of a model's gradients in memory that a host's ranks share, to save copies.

    All ranks must call this before the first backward pass. It registers the model's only
    communication hook. A bucket moves when it is first reduced. With gradient_as_bucket_view=True,
    the gradients move too: before the move, the program must not take a gradient's address, as
    DLPack and data_ptr() do. (After x.numpy(), a bucket does not move.)
    """
    group = model.process_group
    runner = _runner_of(group, "share_buckets(): argument 'model' must have a process_group")
    model.register_comm_hook(SharedBuckets(group, runner.buckets), average_in_shared_memory)


def _runner_of(group: Any, subject: str) -> Any:
    runner = runner_of(group)
    if runner is None:
        raise TypeError(f'{subject} of the backend "dldist", not {group!r}')
    return runner
