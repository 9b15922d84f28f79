"""Converts arguments in torch's form: options, reductions, and the flat forms of c10d's calls."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d

import dldist
from dldist._backends.low_level import LowLevelCalls

OPTIONS = frozenset(
    kind for name, kind in vars(_distributed_c10d).items() if name.endswith("Options") and isinstance(kind, type)
)
"""The classes of options in torch."""

_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_DLDIST_REDUCTIONS: dict[int, dldist.ReduceOp] = {
    hash(dist.ReduceOp(getattr(dist.ReduceOp, name))): getattr(dldist.ReduceOp, name) for name in _REDUCTIONS
}
_REDUCTION_TYPES = (dist.ReduceOp, type(dist.ReduceOp.SUM))


def reduction_of(op: Any) -> Any:
    """Convert a reduction of torch to dldist's. A dldist reduction is returned unchanged."""
    if type(op) is dldist.ReduceOp:
        return op
    if type(op) is not dist.ReduceOp:
        op = dist.ReduceOp(op)
    reduction = _DLDIST_REDUCTIONS.get(hash(op))
    return dldist.ReduceOp.PREMUL_SUM(op.__getstate__()[1]) if reduction is None else reduction


class TorchOptionsMixin:
    """A mixin for dldist's backends, so that they accept torch's options."""

    backend_name = "dldist"
    """The backend name under which torch knows this backend."""

    def getBackendName(self) -> str:
        return self.backend_name

    def _op(self, opts: Any) -> Any:
        op = getattr(opts, "reduceOp", None)
        return None if op is None else reduction_of(op)

    def _call_options(self, opts: Any) -> dict[str, Any]:
        timeout = opts.timeout
        # Before PyTorch 2.8, some options have no attribute asyncOp.
        return {"timeout": None if timeout.days < 0 else timeout, "async_op": getattr(opts, "asyncOp", True)}


class _ArgumentsOnly(LowLevelCalls):
    """Low-level calls that only return their arguments, as lists and options."""

    def _perform(self, method: str, *arguments: Any) -> Any:
        return arguments


_arguments_only = _ArgumentsOnly()


def to_list_form(method: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Convert arguments of any c10d overload to the form with lists and options."""
    opts = next((value for value in (*args, *named.values()) if type(value) in OPTIONS), None)
    args = tuple(_convert_value(opts, value) for value in args)
    named = {name: _convert_value(opts, value) for name, value in named.items()}
    arguments = getattr(_arguments_only, method)(*args, **named)
    return arguments if opts is None else (*arguments[:-1], opts)


def _convert_value(opts: Any, value: Any) -> Any:
    if value is opts:
        return None
    return reduction_of(value) if isinstance(value, _REDUCTION_TYPES) else value
