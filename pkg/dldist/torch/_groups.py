"""Creates groups of the backend "dldist", with the C++ backend if available, else in Python."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from dldist.torch import _for_our_groups, _native
from dldist.torch._compiler import not_compiled
from dldist.torch._runner import Runner


@not_compiled
def create_group(opts: Any) -> Any:
    """Create a backend or group for torch's _DistributedBackendOptions. All ranks call this."""
    is_default = not opts.global_ranks_in_group
    ranks = list(range(opts.group_size)) if is_default else list(opts.global_ranks_in_group)
    if getattr(opts, "enable_reconfigure", False):  # the attribute exists since PyTorch 2.14
        return _over(Runner.without_members(opts.store, opts.group_id, ranks, opts.group_rank, opts.timeout))
    label = "default" if is_default else ""
    return _over(Runner.meeting(opts.store, opts.group_id, ranks, opts.group_rank, opts.timeout, label))


@not_compiled
def create_independent_group(store: Any, rank: int, size: int, timeout: timedelta, device: torch.device) -> Any:
    """Create a group for torch.distributed._dist2.new_group, which torch does not register."""
    # All groups of a process get the same store, so add a count of this rank's groups to the name.
    name = f"dist2:{store.add(f'dldist/groups_of/{rank}', 1)}"
    own_store = dist.PrefixStore(f"dldist/{name}/", store)
    made = _over(Runner.meeting(own_store, name, list(range(size)), rank, timeout), device.type)
    group: Any = made
    if not isinstance(made, dist.ProcessGroup):
        group = dist.ProcessGroup(own_store, rank, size)  # type: ignore[call-arg]
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        for served in {"cpu", device.type}:
            group._register_backend(torch.device(served), kind, made)
    group._set_group_name(name)
    group._set_group_desc("undefined")
    return group


@not_compiled
def create_gloo(
    store: Any, rank: int, size: int, options: Any = None, *, timeout: timedelta | None = None, enable_reconfigure: bool = False
) -> Any:
    """Create the group for ProcessGroupGloo(...) if dldist replaces Gloo.

    Args:
        options: Gloo's options, or a timeout.
        enable_reconfigure: True if the group must support reconfigure(). PyTorch 2.14 passes it.
    """
    given = timeout if options is None else getattr(options, "_timeout", options)
    limit = default_pg_timeout if given is None else given
    ranks = list(getattr(options, "global_ranks_in_group", ())) or list(range(size))
    create = Runner.without_members if enable_reconfigure else Runner.meeting
    return _over(create(store, "gloo", ranks, rank, limit, serves_as="gloo"))


def is_in_place_of_gloo(thing: Any) -> bool:
    """True if create_gloo() created this object."""
    return getattr(thing, "serves_as", "") == "gloo"


def _over(runner: Runner, device_type: str = "cpu") -> Any:
    _for_our_groups.answer()
    native = _native.load()
    if native is not None:
        return native.Backend(runner, runner.cpu.options._timeout)
    if runner.group is None:
        raise RuntimeError("enable_reconfigure=True: needs the backend in C++ (python -m dldist.torch --build)")
    from dldist.torch._plain import ProcessGroup

    config = ",".join(f"{served}:{runner.serves_as}" for served in dict.fromkeys(("cpu", device_type)))
    return ProcessGroup(runner, config)
