"""Registers the backend "dldist" with torch.distributed; the first group imports dldist.

This module is outside of the package, because importing any part of dldist loads the extension.
`import torch` calls the entry point autoload(), which must therefore be fast and must not fail.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import _dldist_torch_names as names


def autoload() -> None:
    """Register the backend: `import torch` calls this, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f'the backend "dldist" cannot be registered with torch.distributed: {error!r}', RuntimeWarning, stacklevel=2)


def register() -> None:
    """Register the backend, once, and replace Gloo if the environment requests it.

    PyTorch 2.15 calls this when a program creates a "dldist" group before registration.
    """
    import torch.distributed as dist

    if dist.is_available() and "dldist" not in dist.Backend.backend_list:
        dist.Backend.register_backend("dldist", _create_group, extended_api=True, devices=_devices())
        _register_for_independent_groups()
        _skip_torch_recording()
    if os.environ.get("DLDIST_TORCH_AS_GLOO", "") not in ("", "0"):
        set_as_gloo(True)


def _devices() -> list[str]:
    """Return the device types that a group serves if its backend is just "dldist".

    Programs such as ShardedTensor expect all device types that a group serves.
    """
    import torch

    return ["cpu"] if torch.version.cuda is None and torch.version.hip is None else ["cpu", "cuda"]


def _register_for_independent_groups() -> None:
    backends = names.find("torch.distributed._dist2._BACKENDS")
    register_backend = names.find("torch.distributed._dist2.register_backend")
    if backends is not None and register_backend is not None and "dldist" not in backends:
        register_backend("dldist", _create_independent_group)


def _skip_torch_recording() -> None:
    """Keep PyTorch's flight recorder from recording dldist's calls: dldist has a recorder."""
    self_recording = names.find("torch.distributed.distributed_c10d._FR_SELF_RECORDING_BACKENDS")
    if self_recording is not None:
        self_recording.add("dldist")


def _create_group(opts: Any, backend_options: Any) -> Any:
    from dldist.torch._groups import create_group

    return create_group(opts)


def _create_independent_group(store: Any, rank: int, world_size: int, timeout: Any, device: Any, **options: object) -> Any:
    if options:
        raise TypeError(f'backend "dldist": unknown options: got {", ".join(options)}, expected none')
    from dldist.torch._groups import create_independent_group

    return create_independent_group(store, rank, world_size, timeout, device)


# ---- replacing Gloo


_CREATE_WRAPPER = "torch.distributed.distributed_c10d._create_process_group_wrapper"
_WRAPPER_NAMES = (
    _CREATE_WRAPPER,
    "torch.distributed.distributed_c10d._ProcessGroupWrapper",
    "torch.distributed.distributed_c10d.PG_WRAPPER_STORE_PREFIX",
)


class _GlooReplacement(type):
    """Metaclass of the class that replaces ProcessGroupGloo. The first group imports dldist."""

    torch_class: Any
    """PyTorch's own ProcessGroupGloo."""
    torch_create_wrapper: Any
    """PyTorch's function that wraps a group for DETAIL debugging; None if it has none."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        from dldist.torch._groups import create_gloo

        return create_gloo(*args, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        if isinstance(instance, cls.torch_class):
            return True
        groups_module = sys.modules.get("dldist.torch._groups")
        return groups_module is not None and groups_module.replaces_gloo(instance)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.torch_class, name)  # take options and devices from PyTorch's class


def set_as_gloo(use_dldist: bool) -> None:
    """Make "gloo" groups use dldist, or PyTorch's Gloo again. Existing groups do not change."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise RuntimeError('set_as_gloo(): this PyTorch has no backend "gloo" to replace')
    from torch._C import _distributed_c10d
    from torch.distributed import distributed_c10d

    current: Any = distributed_c10d.ProcessGroupGloo
    if isinstance(current, _GlooReplacement) == use_dldist:
        return
    if use_dldist:
        originals = {"torch_class": current, "torch_create_wrapper": names.find(_CREATE_WRAPPER)}
        replacement, create_wrapper = _GlooReplacement("ProcessGroupGloo", (), originals), _make_create_wrapper(current)
    else:
        replacement, create_wrapper = current.torch_class, current.torch_create_wrapper
    modules: Any = (dist, distributed_c10d, _distributed_c10d)
    for module in modules:
        module.ProcessGroupGloo = replacement
    if create_wrapper is not None:
        distributed_c10d._create_process_group_wrapper = create_wrapper


def _make_create_wrapper(torch_class: Any) -> Any:
    """Return a function that creates PyTorch's wrapper for debug level DETAIL, or None if this
    PyTorch has no wrapper.

    The wrapper is in C++, and exchanges messages only through PyTorch's own ProcessGroupGloo.
    """
    if not names.are_present(*_WRAPPER_NAMES):
        return None
    from torch.distributed import distributed_c10d

    def create_wrapper(wrapped_pg: Any, store_prefix: str, store: Any, rank: int, world_size: int, timeout: Any = None) -> Any:
        prefix = f"{distributed_c10d.PG_WRAPPER_STORE_PREFIX}:{store_prefix}"
        limit = distributed_c10d.default_pg_timeout if timeout is None else timeout
        gloo_group = torch_class(distributed_c10d.PrefixStore(prefix, store), rank, world_size, timeout=limit)
        return distributed_c10d._ProcessGroupWrapper(wrapped_pg, gloo_group)

    return create_wrapper
