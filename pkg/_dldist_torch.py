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
        dist.Backend.register_backend("dldist", _create_group, extended_api=True, devices=["cpu", "cuda"])


def _create_group(opts: Any, backend_options: Any) -> Any:
    from dldist.torch._group import create_group

    return create_group(opts)
