"""Functional forms on traced arrays: in jax.jit, jax.grad, jax.vmap, jax.lax.scan and similar.

A collective is a JAX primitive with an ordered effect: JAX keeps all collectives, in program order,
which must be the same on every rank. Compiled for the CPU, a collective is a call through XLA's
foreign function interface: the extension holds a program that lists the calls and their array
parts, and runs the program on the computation's memory, without Python. Other devices use a
callback into Python, as do groups whose calls need Python (hooks, or a third-party backend).
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

# The effect of ordered callbacks has no public name, so read it from a function that has it.
(_ORDERED,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects

_TOKEN = jax_internals.find("abstract_token")

_collective = Primitive("dldist_collective")
_collective.multiple_results = True


def run(form: Form, arrays: Sequence[Any]) -> list[Any]:
    """Bind the JAX primitive for a form with at least one traced array."""
    return _collective.bind(*map(jax.numpy.asarray, arrays), form=form)


def flush() -> None:
    """Wait for collectives of earlier compiled calls, so that later calls keep the order."""
    jax.effects_barrier()


def _describe_results(*avals: Any, form: Form) -> tuple[list[Any], set[Any]]:
    results = [] if form.shapes is None else zip(form.shapes, avals, strict=True)
    return [jax.core.ShapedArray(shape, aval.dtype) for shape, aval in results], {_ORDERED}


def _differentiate(primals: Any, tangents: Any, *, form: Form) -> Any:
    if form.transpose is None:
        raise NotImplementedError(f"{form.name}() has no derivative")
    return _differentiate_linear(primals, tangents, form=form)


def _transpose(cotangents: list[Any], *_: Any, form: Form) -> list[Any]:
    assert form.transpose is not None  # forms without one have been rejected before
    return form.transpose(*map(ad.instantiate_zeros, cotangents))


def _batch(arrays: Sequence[Any], axes: Sequence[Any], *, form: Form) -> tuple[list[Any], list[int]]:
    """Run a vmapped form as one call. Move the batch axis last, to keep other axes' numbers."""
    (size,) = {x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None}

    def put_last(x: Any, axis: Any) -> Any:
        if axis is None:
            return jax.numpy.broadcast_to(x[..., None], (*x.shape, size))
        return jax.numpy.moveaxis(x, axis, -1)

    results = form.call_batched(*map(put_last, arrays, axes))
    return results, [result.ndim - 1 for result in results]


def _lower_to_callback(ctx: Any, *operands: Any, form: Form) -> Any:
    def call_back(*arrays: Any) -> tuple[Any, ...]:
        return tuple(form.run_eagerly([numpy.asarray(x) for x in arrays]))

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


class _Program:
    """The program of one compiled call, which the executable keeps alive."""

    def __init__(self, form: Form, group: _core.Group, avals_in: Sequence[Any], avals_out: Sequence[Any]) -> None:
        # These placeholders for arrays are never accessed, so no memory is committed for them.
        sources, results = ([numpy.empty(aval.shape, aval.dtype) for aval in avals] for avals in (avals_in, avals_out))
        recorder = _PlanRecorder(group)
        form.describe(recorder, sources, results)
        self.number = _program_number(form, group, avals_in)
        self._form = form
        self._program = _core._ffi_program(
            self.number, group, [*map(_memory_of, sources)], [*map(_memory_of, results)], form.fill, recorder.calls
        )
        if form.group is None:
            _default_world_programs.add(self)

    def use_group(self, world: _core.Group) -> None:
        """Use another default world. If the rank or size differs, the call will raise an error."""
        if (world.rank, world.size) == (self._form.rank, self._form.size):
            _core._ffi_set_group(self._program, world)


def _program_number(form: Form, group: _core.Group, avals: Sequence[Any]) -> int:
    """Return the program's number in the compiled function. It must be the same in every run, so
    that JAX's compilation cache matches. On lowering, each process registers its own program."""
    description = f"{next(_count)} {form.name} {group.name} {group.rank} {group.size} {[str(aval) for aval in avals]}"
    return int.from_bytes(hashlib.sha256(description.encode()).digest()[:7])


_count = itertools.count()
_default_world_programs: WeakSet[_Program] = WeakSet()


def follow_default_world(world: Any) -> None:
    """Make compiled calls without an explicit group use the new default world."""
    if isinstance(world, _core.Group):
        for program in list(_default_world_programs):
            program.use_group(world)


class _PlanRecorder:
    """Stands in for a group: its methods record plans (lists of steps) instead of running calls."""

    def __init__(self, group: _core.Group) -> None:
        self._group = group
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        plan = getattr(self._group.plan, name)

        def record(*arguments: Any, timeout: Any, async_op: bool = False) -> None:
            self.calls.append(plan(*arguments, timeout=timeout))

        return record

    def send(self, array: Any, dst: int, tag: int, *, timeout: Any) -> None:
        self.calls.append((True, _memory_of(array), dst, tag, timeout))

    def recv(self, array: Any, src: int, tag: int, *, timeout: Any) -> None:
        self.calls.append((False, _memory_of(array), src, tag, timeout))


def _memory_of(array: Any) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _lower(ctx: Any, *operands: Any, form: Form) -> Any:
    group = form.current_operations()
    if not isinstance(group, _core.Group) or isinstance(group, _core.NcclGroup):
        return _lower_to_callback(ctx, *operands, form=form)
    program = _Program(form, group, ctx.avals_in, ctx.avals_out)
    ctx.module_context.add_keepalive(program)
    context_with_token = ctx.replace(avals_in=[_TOKEN, *ctx.avals_in], avals_out=[_TOKEN, *ctx.avals_out])
    call = jax.ffi.ffi_lowering(_TARGET, has_side_effect=True)
    token, *results = call(context_with_token, ctx.tokens_in.get(_ORDERED), *operands, program=numpy.int64(program.number))
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_ORDERED: token})))
    return results


_collective.def_impl(lambda *arrays, form: form.run_eagerly([*map(jax.numpy.asarray, arrays)]))
_collective.def_effectful_abstract_eval(_describe_results)
ad.deflinear2(_collective, _transpose)
_differentiate_linear = ad.primitive_jvps[_collective]
ad.primitive_jvps[_collective] = _differentiate
batching.primitive_batchers[_collective] = _batch
jax.ffi.register_ffi_target(_TARGET, _core._ffi_handler(), platform="cpu")
# Not cacheable, because two calls are distinct even if their arguments are the same.
mlir.register_lowering(_collective, _lower_to_callback, cacheable=False)
mlir.register_lowering(_collective, _lower, platform="cpu", cacheable=False)
