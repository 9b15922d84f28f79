"""Which devices work together in JAX's programs.

XLA makes a communicator of MPI for each set of devices, a clique, when a program first needs it. It calls MPI_Comm_split for that, with the
clique's first device and the place of the own device in it; that all processes take part, and with one device each, is taken for granted.
So that neither has to be, this module notes the cliques of each program that JAX compiles, in the program's order, and tells by the two
numbers which one is meant. All processes run the same programs in the same order, and so come to the same answer; a wrong one could not go
unnoticed, since the members of a clique meet under the numbers of all its devices.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from threading import Lock

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

Clique = tuple[int, ...]

_COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-broadcast|collective-permute"
_INSTRUCTION = re.compile(rf"\b(?:{_COLLECTIVES})(?:-start)?\(.*")
_GROUPS = re.compile(r"\breplica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\].*?\{[^}]*\})")
_LISTS = re.compile(r"\{([\d,]+)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*)\}")
_AXIS = re.compile(r"'([^']+)'(?:=(\d+)|:\((\d+)\)(\d+))?")

_lock = Lock()
_known: list[Clique] = []  # in the order of programs
_taken: set[tuple[Clique, int]] = set()


def watch_compiler() -> None:
    """Have JAX note the cliques of what it compiles from now on."""
    from jax._src import compiler  # what compiles has no public name

    compile_or_get = compiler.compile_or_get_cached

    @functools.wraps(compile_or_get)
    def compile_and_note(backend: Any, computation: Any, devices: Any, *arguments: Any, **options: Any) -> Any:
        executable = compile_or_get(backend, computation, devices, *arguments, **options)
        ids = [device.id for device in devices.flat if device.platform == "cpu"]
        if len(ids) == 1:
            note(iter([(ids[0],)]))
        elif ids:
            note(clique for module in executable.hlo_modules() for clique in cliques_of(module.to_string(), ids))
        return executable

    compiler.compile_or_get_cached = compile_and_note


def note(cliques: Iterator[Clique]) -> None:
    """A program has these."""
    for clique in cliques:
        with _lock:
            if clique not in _known:
                _known.append(clique)


def take(first: int, place: int, own: set[int]) -> Clique:
    """The clique that begins with this device and has one of the own devices at this place: the first that has not been taken so.

    Raises:
        LookupError: No program has such a clique.
    """
    with _lock:
        for clique in _known:
            if clique[0] == first and place < len(clique) and clique[place] in own and (clique, place) not in _taken:
                _taken.add((clique, place))
                return clique
    raise LookupError(f"XLA wants a communicator from device {first} on, and no program is known that has one: was it loaded, not compiled?")


# ---- the text of a program


def cliques_of(text: str, ids: Sequence[int]) -> Iterator[Clique]:
    """Those of a program of XLA's that runs on the devices with these numbers, in its order."""
    for line in text.splitlines():
        instruction = _INSTRUCTION.search(line)
        if instruction is not None:
            for group in _groups_of(instruction[0], len(ids)):
                yield tuple(ids[place] for place in group)


def _groups_of(instruction: str, ndevices: int) -> list[list[int]]:
    """Places of devices in the program, group by group. An instruction that names no groups is for all."""
    if "replica_groups=" not in instruction:
        return [list(range(ndevices))]
    found = _GROUPS.search(instruction)
    if found is None:
        raise ValueError(f"these groups of devices are not known: {instruction[:300]}")
    text = found[1]
    if text.startswith("{"):
        return [_numbers(group) for group in _LISTS.findall(text)] or [list(range(ndevices))]
    if (iota := _IOTA.fullmatch(text)) is not None:
        count, size = _numbers(iota[1])
        places = _transposed(_numbers(iota[2]), iota[3])
        return [places[i * size : (i + 1) * size] for i in range(count)]
    mesh = _MESH.fullmatch(text)
    if mesh is None:
        raise ValueError(f"these groups of devices are not known: {text}")
    return _along_axes(*mesh.groups())


def _along_axes(axes: str, shape: str | None, order: str | None, wanted: str) -> list[list[int]]:
    """The groups along some axes of a mesh: "'a'=2,'b'=4", and "'a','b':(2)2", whose second is the part of size 2 of b behind one of 2."""
    sizes = {name: int(size) for name, size, _, _ in _AXIS.findall(axes)}
    places = _transposed(_numbers(shape), order) if shape else list(range(math.prod(sizes.values())))
    parts: dict[str, list[int]] = {name: [size] for name, size in sizes.items()}
    chosen: list[tuple[str, int]] = []  # an axis, and which of its parts
    for name, _, before, size in _AXIS.findall(wanted):
        if before:
            parts[name] = [int(before), int(size), sizes[name] // (int(before) * int(size))]
        chosen.append((name, 1 if before else 0))
    factors = [(name, i) for name, extents in parts.items() for i in range(len(extents))]
    extents = [parts[name][i] for name, i in factors]
    strides = [math.prod(extents[i + 1 :]) for i in range(len(extents))]
    inner = [factors.index(factor) for factor in chosen]
    outer = [i for i in range(len(factors)) if i not in inner]
    return [
        [places[sum(strides[i] * k for i, k in zip(outer + inner, above + below))] for below in _indices([extents[i] for i in inner])]
        for above in _indices([extents[i] for i in outer])
    ]


def _indices(extents: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, extents))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _transposed(shape: list[int], order: str | None) -> list[int]:
    """0, 1, 2, ... in this shape, read with its axes in this order."""
    axes = _numbers(order) if order else list(range(len(shape)))
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return [sum(strides[axis] * k for axis, k in zip(axes, index)) for index in _indices([shape[axis] for axis in axes])]
