"""Functional forms on arrays that are being traced: in jax.jit, jax.grad, jax.vmap, jax.lax.scan and the like.

A collective is a primitive of JAX with an ordered effect: nothing is left out, and all collectives run in the order in which the program
has them, as every rank has to call the same in the same order. Compiled for the CPU, it is a call of XLA's foreign function interface: the
extension has a program that says what is called on which part of which array, and runs it on the memory of the computation, without
Python. Groups whose calls go through Python (those with hooks, or another package's backend), and other devices, get a callback instead.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import jax
import numpy
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from dldist import _core
from dldist._base import jax_internals
from dldist.functional.form import Form

_TARGET = "dldist_collective"

# The effect of ordered callbacks has no public name, but a function that has it shows it.
(_ORDERED,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects

_TOKEN = jax_internals.find("abstract_token")

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


def _batch(arrays: Sequence[Any], axes: Sequence[Any], *, form: Form) -> tuple[list[Any], list[int]]:
    """Calls of vmap in one: the axis of the batch becomes the last, which no call looks at."""
    (size,) = {x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None}

    def put_last(x: Any, axis: Any) -> Any:
        if axis is None:
            return jax.numpy.broadcast_to(x[..., None], (*x.shape, size))
        return jax.numpy.moveaxis(x, axis, -1)

    results = form.again(*map(put_last, arrays, axes))
    return results, [result.ndim - 1 for result in results]


def _lower_to_callback(ctx: Any, *operands: Any, form: Form) -> Any:
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


# ---- on the CPU, without Python


class _Program:
    """What a compiled call runs. It lives as long as the executable."""

    def __init__(self, form: Form, group: _core.Group, avals_in: Sequence[Any], avals_out: Sequence[Any]) -> None:
        # Memory that stands for the arrays: nobody touches it, so that it costs nothing.
        sources, results = ([numpy.empty(aval.shape, aval.dtype) for aval in avals] for avals in (avals_in, avals_out))
        plans = _Plans(group)
        form.describe(plans, sources, results)
        self.number = _number_of(form, group, avals_in)
        self._form = form
        self._program = _core._ffi_program(
            self.number, group, [*map(_memory_of, sources)], [*map(_memory_of, results)], form.fill, plans.calls
        )
        if form.group is None:
            _of_default_world.add(self)

    def move_to(self, world: _core.Group) -> None:
        """The default world is another one now. One of other ranks is for the call to refuse."""
        if (world.rank, world.size) == (self._form.rank, self._form.size):
            _core._ffi_set_group(self._program, world)


def _number_of(form: Form, group: _core.Group, avals: Sequence[Any]) -> int:
    """A number of the call, which is in the compiled function: the same each time that a program runs, so that JAX's compilation cache
    finds it again. The program behind it is always one of this process, made when the function was lowered."""
    told = f"{next(_count)} {form.name} {group.name} {group.rank} {group.size} {[str(aval) for aval in avals]}"
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:7])


_count = itertools.count()
_of_default_world: WeakSet[_Program] = WeakSet()


def follow_default_world(world: Any) -> None:
    """Compiled calls that were given no group run on this one from now on."""
    if isinstance(world, _core.Group):
        for program in list(_of_default_world):
            program.move_to(world)


class _Plans:
    """A group's methods, which note what they would do."""

    def __init__(self, group: _core.Group) -> None:
        self._group = group
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        plan = getattr(self._group, f"plan_{name}")

        def note(*arguments: Any, timeout: Any, async_op: bool = False) -> None:
            self.calls.append(plan(*arguments, timeout=timeout))

        return note

    def send(self, array: Any, dst: int, tag: int, *, timeout: Any) -> None:
        self.calls.append((True, _memory_of(array), dst, tag, timeout))

    def recv(self, array: Any, src: int, tag: int, *, timeout: Any) -> None:
        self.calls.append((False, _memory_of(array), src, tag, timeout))


def _memory_of(array: Any) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _lower(ctx: Any, *operands: Any, form: Form) -> Any:
    group = form.operations_now()
    if not isinstance(group, _core.Group) or isinstance(group, _core.NcclGroup):
        return _lower_to_callback(ctx, *operands, form=form)
    program = _Program(form, group, ctx.avals_in, ctx.avals_out)
    ctx.module_context.add_keepalive(program)
    with_token = ctx.replace(avals_in=[_TOKEN, *ctx.avals_in], avals_out=[_TOKEN, *ctx.avals_out])
    call = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)
    token, *results = call(with_token, ctx.tokens_in.get(_ORDERED), *operands, program=numpy.int64(program.number))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_ORDERED: token})))
    return results


_collective.def_impl(_run_now)
_collective.def_effectful_abstract_eval(_describe_results)
ad.deflinear2(_collective, _transpose)
_differentiate_linear = ad.primitive_jvps[_collective]
ad.primitive_jvps[_collective] = _differentiate
batching.primitive_batchers[_collective] = _batch
jax.ffi.register_ffi_target(_TARGET, _core._ffi_handler(), platform="cpu")
# Two calls are never the same one, even if they look alike.
mlir.register_lowering(_collective, _lower_to_callback, cacheable=False)
mlir.register_lowering(_collective, _lower, platform="cpu", cacheable=False)
