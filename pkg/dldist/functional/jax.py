"""Functional forms on arrays that are being traced: in jax.jit, jax.grad, jax.lax.scan and the like.

A collective is a primitive of JAX. Compiled, it is a callback with an ordered effect: nothing is left out, and all callbacks run
in the order in which the program has them, as every rank has to call the same in the same order. The callback gets the
memory of the computation as NumPy arrays and goes straight to the group.
"""

from __future__ import annotations

import jax
import numpy
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

TYPE_CHECKING = False  # as in the modules that have to be cheap to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dldist.functional.form import Form

# The effect of ordered callbacks has no public name, but a function that has it shows it.
(_ORDERED,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects

_collective = Primitive("dldist_collective")
_collective.multiple_results = True


def run(form: Form, arrays: Sequence[Any]) -> list[Any]:
    """The results of a form, of which at least one array is traced."""
    return _collective.bind(*arrays, form=form)


def flush() -> None:
    """Wait until compiled functions that were called before have made their collectives: ours would overtake them."""
    jax.effects_barrier()


def _run_now(*arrays: Any, form: Form) -> list[Any]:
    return form.run_now([jax.numpy.asarray(x) for x in arrays])


def _describe_results(*avals: Any, form: Form) -> tuple[list[Any], set[Any]]:
    results = [] if form.shapes is None else zip(form.shapes, avals, strict=True)
    return [jax.core.ShapedArray(shape, aval.dtype) for shape, aval in results], {_ORDERED}


def _differentiate(primals: Any, tangents: Any, *, form: Form) -> Any:
    if form.transpose is None:
        raise NotImplementedError(f"{form.name}() has no derivative")
    return _differentiate_linear(primals, tangents, form=form)


def _transpose(cotangents: list[Any], *_: Any, form: Form) -> list[Any]:
    assert form.transpose is not None  # or there would be no tangents
    return form.transpose(*map(ad.instantiate_zeros, cotangents))


def _lower(ctx: Any, *operands: Any, form: Form) -> Any:
    def call_back(*arrays: Any) -> tuple[Any, ...]:
        return tuple(form.run_now([numpy.asarray(x) for x in arrays]))

    results, token, _ = mlir.emit_python_callback(
        ctx,
        call_back,
        ctx.tokens_in.get(_ORDERED),
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=True,
    )
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_ORDERED: token})))
    return results


_collective.def_impl(_run_now)
_collective.def_effectful_abstract_eval(_describe_results)
ad.deflinear2(_collective, _transpose)
_differentiate_linear = ad.primitive_jvps[_collective]
ad.primitive_jvps[_collective] = _differentiate
# Two callbacks are never the same one, even if they look alike.
mlir.register_lowering(_collective, _lower, cacheable=False)
