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
            mlir.register_lowering(primitive, _via_type(lowerings[primitive].rule, other, convert), platform="cpu")


def _via_type(rule: Any, other: Any, convert: Any) -> Any:
    """Wrap a lowering rule to convert float16 arrays to another type and back."""

    def lower(ctx: Any, x: Any, **options: Any) -> Any:
        (input_aval,), (output_aval,) = ctx.avals_in, ctx.avals_out
        if input_aval.dtype != "float16":
            return rule(ctx, x, **options)
        converted_input, converted_output = input_aval.update(dtype=other), output_aval.update(dtype=other)
        context = ctx.replace(avals_in=[converted_input], avals_out=[converted_output])
        (y,) = rule(context, convert_array(ctx, input_aval, converted_input, x), **options)
        return [convert_array(ctx, converted_output, output_aval, y)]

    def convert_array(ctx: Any, from_aval: Any, to_aval: Any, x: Any) -> Any:
        lowered = mlir.lower_fun(lambda x: convert(x, to_aval.dtype), multiple_results=False)
        (y,) = lowered(ctx.replace(primitive=None, avals_in=[from_aval], avals_out=[to_aval]), x)
        return y

    return lower
