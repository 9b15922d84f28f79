"""Lowers JAX's float16 reductions to float32, because XLA rejects float16 in its MPI collectives.

Sums are rounded once. Reductions that XLA itself inserts for a sharded array are not supported.
"""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.interpreters import mlir
from jax.numpy import dtype

from dldist._base import jax_internals

_REDUCTIONS = "psum_p pmax_p pmin_p psum_invariant_p reduce_scatter_p".split()
# Moves use uint16, because XLA may replace a move by a sum with zeros, which is exact for integers.
_MOVES = "all_gather_p all_gather_invariant_p".split()


def install() -> None:
    """Replace the lowering rules for CPUs."""
    lowerings = jax_internals.find("_lowerings")
    for names, other, convert in (
        (_REDUCTIONS, dtype("float32"), lax.convert_element_type),
        (_MOVES, dtype("uint16"), lax.bitcast_convert_type),
    ):
        for name in names:
            primitive = jax_internals.find(name)
            mlir.register_lowering(primitive, _in_other_type(lowerings[primitive].rule, other, convert), platform="cpu")


def _in_other_type(rule: Any, other: Any, convert: Any) -> Any:
    """Wrap a lowering rule to convert float16 arrays to another type and back."""

    def lower(ctx: Any, x: Any, **options: Any) -> Any:
        (given,), (wanted,) = ctx.avals_in, ctx.avals_out
        if given.dtype != "float16":
            return rule(ctx, x, **options)
        taken, made = given.update(dtype=other), wanted.update(dtype=other)
        (y,) = rule(ctx.replace(avals_in=[taken], avals_out=[made]), change(ctx, given, taken, x), **options)
        return [change(ctx, made, wanted, y)]

    def change(ctx: Any, given: Any, wanted: Any, x: Any) -> Any:
        changing = mlir.lower_fun(lambda x: convert(x, wanted.dtype), multiple_results=False)
        (y,) = changing(ctx.replace(primitive=None, avals_in=[given], avals_out=[wanted]), x)
        return y

    return lower
