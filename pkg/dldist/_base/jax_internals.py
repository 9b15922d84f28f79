"""Finds names of JAX that are private or have moved between versions.

PLACES has the modules that define each name in the supported versions (0.10 to 0.12), newest first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PLACES = {
    "abstract_token": ("jax.ffi", "jax.core"),  # jax.core: before 0.11
    # Compilation and execution of programs, for dldist.jax.
    "compile_or_get_cached": ("jax._src.compiler",),
    "ExecuteReplicated": ("jax._src.interpreters.pxla",),
    "global_state": ("jax._src.distributed",),
    # Reductions of float16.
    "_lowerings": ("jax.interpreters.mlir",),
    "psum_p": ("jax._src.lax.parallel",),
    "psum_invariant_p": ("jax._src.lax.parallel",),
    "pmax_p": ("jax._src.lax.parallel",),
    "pmin_p": ("jax._src.lax.parallel",),
    "reduce_scatter_p": ("jax._src.lax.parallel",),
    "all_gather_p": ("jax._src.lax.parallel",),
    "all_gather_invariant_p": ("jax._src.lax.parallel",),
}


def place_of(name: str) -> Any:
    """Return the module that has a name of PLACES.

    Raises:
        ImportError: The installed JAX has the name in no known module.
    """
    for module_name in PLACES[name]:
        try:
            module = import_module(module_name)
        except ImportError:
            continue
        if hasattr(module, name):
            return module
    import jax

    raise ImportError(f"JAX {jax.__version__} has no {' or '.join(f'{each}.{name}' for each in PLACES[name])}, which dldist needs")


def find(name: str) -> Any:
    """Return the object that a name of PLACES has in the installed JAX."""
    return getattr(place_of(name), name)
