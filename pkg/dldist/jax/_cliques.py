"""Determines the sets of devices that communicate in JAX's programs.

XLA creates an MPI communicator for each set of devices, a clique, when a program first needs it.
XLA calls MPI_Comm_split with only the clique's first device and the caller's rank in the clique,
and assumes that all processes take part, with one device each. To avoid this assumption, this
module records the cliques of each program that JAX starts, in the order of programs and
instructions. The two numbers then identify a clique: the first unused one that fits. A device that
has reached a program never returns to earlier programs. A clique in a branch, or in a loop that may
not run, may remain unused; if this makes the choice ambiguous, an error is raised.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

from dldist._base import jax_internals

Clique = tuple[int, ...]
Need = tuple[Clique, bool]
"""A clique, and True if the program is certain to use the clique."""

_COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-broadcast|collective-permute"
_INSTRUCTION = re.compile(rf"\b(?:{_COLLECTIVES})(?:-start)?\(.*")
_GROUPS = re.compile(r"\breplica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\].*?\{[^}]*\})")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"\b(?:condition|body|calls|to_apply|true_computation|false_computation|\w+_computations)=(\{[^}]*\}|%[\w.\-]+)")
_NAME = re.compile(r"%([\w.\-]+)")
_LISTS = re.compile(r"\{([\d,]+)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[(.*?)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{(.*)\}")
_AXIS = re.compile(r"'([^']+)'(?:=(\d+)|:\((\d+)\)(\d+))?")


class Programs:
    """The cliques of the programs that have started, each marked once XLA has created it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._begun: list[list[Need]] = []
        self._taken: set[tuple[Clique, int]] = set()
        self._latest: dict[int, int] = {}  # the latest program's number, by device

    def begin(self, needs: Iterable[Need]) -> None:
        """Record the cliques that a program needs, before the program runs."""
        if found := list(dict.fromkeys(needs)):
            with self._lock:
                self._begun.append(found)

    def take(self, first: int, place: int, own: set[int]) -> Clique:
        """Mark and return the next unused clique whose first device is `first` and whose device at
        index `place` is in `own`.

        Raises:
            LookupError: No program has such a clique, or several cliques fit.
        """
        with self._lock:
            fits = list(self._fitting(first, place, own))
            if not fits:
                raise LookupError(
                    f"XLA wants a communicator from device {first} on, and no program is known that has one: was it loaded instead of compiled?"
                )
            number, (clique, is_sure) = fits[0]
            others = {other for _, (other, _) in fits} - {clique}
            if others and not is_sure:
                raise LookupError(
                    f"XLA wants a communicator of the devices {clique} or {min(others)}, and does not say of which: the first are those of a "
                    "branch, or of a loop that may not run. A collective of either, before this program, makes it clear"
                )
            self._taken.add((clique, place))
            self._latest[clique[place]] = number
            return clique

    def _fitting(self, first: int, place: int, own: set[int]) -> Iterator[tuple[int, Need]]:
        for number, needs in enumerate(self._begun):
            for clique, is_sure in needs:
                fits = clique[0] == first and place < len(clique) and clique[place] in own
                if fits and (clique, place) not in self._taken and number >= self._latest.get(clique[place], 0):
                    yield number, (clique, is_sure)


def watch(programs: Programs) -> None:
    """Record in `programs` each program that JAX runs from now on."""
    compiler: Any = jax_internals.place_of("compile_or_get_cached")
    runner: Any = jax_internals.find("ExecuteReplicated")
    compile_or_get, execute = compiler.compile_or_get_cached, runner.__call__
    devices_of: dict[int, list[int]] = {}  # device numbers of executables, by id(), until they run

    @functools.wraps(compile_or_get)
    def compile_and_note(backend: Any, computation: Any, devices: Any, *arguments: Any, **options: Any) -> Any:
        executable = compile_or_get(backend, computation, devices, *arguments, **options)
        if backend.platform == "cpu":
            devices_of[id(executable)] = [device.id for device in devices.flat]
        return executable

    @functools.wraps(execute)
    def note_and_execute(self: Any, *arguments: Any) -> Any:
        executable = self.xla_executable
        ids = devices_of.pop(id(executable), None)
        if ids is not None:
            programs.begin(need for module in executable.hlo_modules() for need in needs_of(module.to_string(), ids))
        return execute(self, *arguments)

    compiler.compile_or_get_cached = compile_and_note
    runner.__call__ = note_and_execute


# ---- parsing a program's text


def needs_of(text: str, ids: Sequence[int]) -> Iterator[Need]:
    """Yield the cliques that an XLA program on these devices needs, by instruction order."""
    computations, entry = _computations(text)
    for instruction, is_sure in _walk(computations, entry, True, set()):
        for group in _groups_of(instruction, len(ids)):
            yield tuple(ids[place] for place in group), is_sure


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation by name, and the name of the ENTRY computation."""
    found: dict[str, list[str]] = {"": []}
    name = entry = ""
    for line in text.splitlines():
        if (head := _COMPUTATION.match(line)) is not None:
            name = head[2]
            found[name] = []
            entry = name if head[1] else entry
        else:
            found[name].append(line)
    return found, entry


def _walk(computations: dict[str, list[str]], name: str, is_sure: bool, seen: set[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Yield the collectives of a computation and its callees; True for each that always runs."""
    if (name, True) in seen or (name, is_sure) in seen:
        return
    seen.add((name, is_sure))
    for line in computations.get(name, ()):
        instruction = _INSTRUCTION.search(line)
        if instruction is not None:
            yield instruction[0], is_sure
            continue
        may_not_run = " conditional(" in line or (" while(" in line and '"known_trip_count"' not in line)
        for called in _CALLED.findall(line):
            for callee in _NAME.findall(called):
                yield from _walk(computations, callee, is_sure and not may_not_run, seen)


def _groups_of(instruction: str, ndevices: int) -> list[list[int]]:
    """Return an instruction's groups, as indices of the program's devices; by default, one group of
    all devices."""
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
    """Return the groups along axes of a mesh, such as "'a'=2,'b'=4". "'b':(2)2" is the part of axis
    b that has size 2, within an outer part of size 2."""
    sizes = {name: int(size) for name, size, _, _ in _AXIS.findall(axes)}
    places = _transposed(_numbers(shape), order) if shape else list(range(math.prod(sizes.values())))
    parts: dict[str, list[int]] = {name: [size] for name, size in sizes.items()}
    chosen: list[tuple[str, int]] = []  # pairs of an axis and the index of one of its parts
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
    """Return 0, 1, 2, ... as an array of this shape, read with its axes in this order."""
    axes = _numbers(order) if order else list(range(len(shape)))
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return [sum(strides[axis] * k for axis, k in zip(axes, index)) for index in _indices([shape[axis] for axis in axes])]
