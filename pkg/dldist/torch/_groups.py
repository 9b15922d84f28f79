"""Creates groups of the backend "dldist", with the C++ backend if available, else in Python."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from dldist.torch import _native, _torch_patches
from dldist.torch._compiler import not_compiled
from dldist.torch._runner import Runner


@not_compiled
def create_group(opts: Any) -> Any:
    """Create a backend or group for torch's _DistributedBackendOptions. All ranks call this."""
    is_default = not opts.global_ranks_in_group
    ranks = list(range(opts.group_size)) if is_default else list(opts.global_ranks_in_group)
    if getattr(opts, "enable_reconfigure", False):  # the attribute exists since PyTorch 2.14
        return _create_native_or_python(Runner.before_reconfigure(opts.store, opts.group_id, ranks, opts.group_rank, opts.timeout))
    label = "default" if is_default else ""
    return _create_native_or_python(Runner.rendezvous(opts.store, opts.group_id, ranks, opts.group_rank, opts.timeout, label))


@not_compiled
def create_independent_group(store: Any, rank: int, size: int, timeout: timedelta, device: torch.device) -> Any:
    """Create a group for torch.distributed._dist2.new_group, which torch does not register."""
    # All groups of a process get the same store, so add a count of this rank's groups to the name.
    name = f"dist2:{store.add(f'dldist/groups_of/{rank}', 1)}"
    prefixed_store = dist.PrefixStore(f"dldist/{name}/", store)
    native_group = _create_native_or_python(Runner.rendezvous(prefixed_store, name, list(range(size)), rank, timeout), device.type)
    group: Any = native_group
    if not isinstance(native_group, dist.ProcessGroup):
        group = dist.ProcessGroup(prefixed_store, rank, size)  # type: ignore[call-arg]
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        for device_kind in {"cpu", device.type}:
            group._register_backend(torch.device(device_kind), kind, native_group)
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
    value = timeout if options is None else getattr(options, "_timeout", options)
    limit = default_pg_timeout if value is None else value
    ranks = list(getattr(options, "global_ranks_in_group", ())) or list(range(size))
    create = Runner.before_reconfigure if enable_reconfigure else Runner.rendezvous
    return _create_native_or_python(create(store, "gloo", ranks, rank, limit, backend_name="gloo"))


def replaces_gloo(object_: Any) -> bool:
    """True if create_gloo() created this object."""
    return getattr(object_, "backend_name", "") == "gloo"


def _create_native_or_python(runner: Runner, device_type: str = "cpu") -> Any:
    _torch_patches.install()
    native = _native.load()
    if native is not None:
        return native.Backend(runner, runner.cpu.options._timeout)
    if runner.group is None:
        raise RuntimeError("enable_reconfigure=True needs the backend in C++; run python -m dldist.torch --build")
    from dldist.torch._python_group import ProcessGroup

    config = ",".join(f"{device_kind}:{runner.backend_name}" for device_kind in dict.fromkeys(("cpu", device_type)))
    return ProcessGroup(runner, config)
