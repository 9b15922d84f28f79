"""Finds names of JAX that are private or have moved between versions.

For each name, MODULES lists the modules that define it in JAX 0.10 to 0.12, the newest first.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {
    "abstract_token": ("jax.ffi", "jax.core"),  # jax.core only for JAX before 0.11
    # Names that dldist.jax needs to observe the compilation and execution of programs.
    "compile_or_get_cached": ("jax._src.compiler",),
    "ExecuteReplicated": ("jax._src.interpreters.pxla",),
    "global_state": ("jax._src.distributed",),
    # Functions that JAX registers with atexit.
    "clean_up": ("jax._src.api",),
    "wait_for_tokens": ("jax._src.dispatch",),
    # Names that reductions of float16 need.
    "_lowerings": ("jax.interpreters.mlir",),
    "psum_p": ("jax._src.lax.parallel",),
    "psum_invariant_p": ("jax._src.lax.parallel",),
    "pmax_p": ("jax._src.lax.parallel",),
    "pmin_p": ("jax._src.lax.parallel",),
    "reduce_scatter_p": ("jax._src.lax.parallel",),
    "all_gather_p": ("jax._src.lax.parallel",),
    "all_gather_invariant_p": ("jax._src.lax.parallel",),
}


def module_of(name: str) -> Any:
    """Return the module that defines a name listed in MODULES.

    Raises:
        ImportError: The installed JAX does not define the name in any of the listed modules.
    """
    for module_name in MODULES[name]:
        try:
            module = import_module(module_name)
        except ImportError:
            continue
        if hasattr(module, name):
            return module
    import jax

    raise ImportError(f"JAX {jax.__version__} is unsupported: it lacks {' or '.join(f'{each}.{name}' for each in MODULES[name])}")


def find(name: str) -> Any:
    """Return the object that the installed JAX has under a name listed in MODULES."""
    return getattr(module_of(name), name)
