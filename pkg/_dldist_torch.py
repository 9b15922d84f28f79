"""Makes the backend "dldist" known to torch.distributed, which imports the rest with the first group that asks for it.

A module of its own, outside of the package: PyTorch calls autoload() whenever it is imported (an entry point says so), which must
neither take time nor fail, and importing anything of dldist loads its extension.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def autoload() -> None:
    """What PyTorch calls at the end of `import torch`, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f'the backend "dldist" could not be registered: {error!r}', RuntimeWarning, stacklevel=2)


def register() -> None:
    """Register the backend, once."""
    import torch.distributed as dist

    if dist.is_available() and "DLDIST" not in dist.Backend._plugins:
        dist.Backend.register_backend("dldist", _create_group, extended_api=True, devices=_devices())
        _register_for_independent_groups()


def _devices() -> list[str]:
    """Those that "dldist" alone stands for. Some programs, such as ShardedTensor, expect every device that a group serves."""
    import torch

    return ["cpu"] if torch.version.cuda is None and torch.version.hip is None else ["cpu", "cuda"]


def _register_for_independent_groups() -> None:
    try:
        from torch.distributed import _dist2
    except ImportError:
        return  # not before 2.8
    if "dldist" not in _dist2._BACKENDS:
        _dist2.register_backend("dldist", _create_independent_group)


def _create_group(opts: Any, backend_options: Any) -> Any:
    from dldist.torch._groups import create_group

    return create_group(opts)


def _create_independent_group(store: Any, rank: int, world_size: int, timeout: Any, device: Any, **options: object) -> Any:
    if options:
        raise TypeError(f'the backend "dldist" has no options {", ".join(options)}')
    from dldist.torch._groups import create_independent_group

    return create_independent_group(store, rank, world_size, timeout, device)
