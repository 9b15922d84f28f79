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
        self._needs: list[list[Need]] = []
        self._claimed: set[tuple[Clique, int]] = set()
        self._latest: dict[int, int] = {}  # the latest program's number, by device

    def add(self, needs: Iterable[Need]) -> None:
        """Record the cliques that a program needs, before the program runs."""
        if new_needs := list(dict.fromkeys(needs)):
            with self._lock:
                self._needs.append(new_needs)

    def claim(self, first: int, index: int, own: set[int]) -> Clique:
        """Mark and return the next unused clique whose first device is `first` and whose device at
        index `index` is in `own`.

        Raises:
            LookupError: No program has such a clique, or several cliques fit.
        """
        with self._lock:
            candidates = list(self._candidates(first, index, own))
            if not candidates:
                raise LookupError(
                    f"XLA requests a communicator that begins at device {first}, for a program that this process has not compiled: "
                    "loaded programs are not supported"
                )
            number, (clique, is_certain) = candidates[0]
            others = {other for _, (other, _) in candidates} - {clique}
            if others and not is_certain:
                raise LookupError(
                    f"ambiguous communicator: XLA requests one of the devices {clique} or {min(others)}: the first are used in a "
                    "branch or a loop that may not run; run a collective of one of them before this program"
                )
            self._claimed.add((clique, index))
            self._latest[clique[index]] = number
            return clique

    def _candidates(self, first: int, index: int, own: set[int]) -> Iterator[tuple[int, Need]]:
        for number, needs in enumerate(self._needs):
            for clique, is_certain in needs:
                is_candidate = clique[0] == first and index < len(clique) and clique[index] in own
                if is_candidate and (clique, index) not in self._claimed and number >= self._latest.get(clique[index], 0):
                    yield number, (clique, is_certain)


def record_programs(programs: Programs) -> None:
    """Record in `programs` each program that JAX runs from now on."""
    compiler: Any = jax_internals.module_of("compile_or_get_cached")
    runner: Any = jax_internals.find("ExecuteReplicated")
    compile_or_get, execute = compiler.compile_or_get_cached, runner.__call__
    devices_of: dict[int, list[int]] = {}  # device numbers of executables, by id(), until they run

    @functools.wraps(compile_or_get)
    def compile_and_record(backend: Any, computation: Any, devices: Any, *arguments: Any, **options: Any) -> Any:
        executable = compile_or_get(backend, computation, devices, *arguments, **options)
        if backend.platform == "cpu":
            devices_of[id(executable)] = [device.id for device in devices.flat]
        return executable

    @functools.wraps(execute)
    def record_and_execute(self: Any, *arguments: Any) -> Any:
        executable = self.xla_executable
        ids = devices_of.pop(id(executable), None)
        if ids is not None:
            programs.add(need for module in executable.hlo_modules() for need in needs_of(module.to_string(), ids))
        return execute(self, *arguments)

    compiler.compile_or_get_cached = compile_and_record
    runner.__call__ = record_and_execute


# ---- parsing a program's text


def needs_of(text: str, ids: Sequence[int]) -> Iterator[Need]:
    """Yield the cliques that an XLA program on these devices needs, by instruction order."""
    computations, entry = _computations(text)
    for instruction, is_certain in _walk(computations, entry, True, set()):
        for group in _groups_of(instruction, len(ids)):
            yield tuple(ids[index] for index in group), is_certain


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation by name, and the name of the ENTRY computation."""
    computations: dict[str, list[str]] = {"": []}
    name = entry = ""
    for line in text.splitlines():
        if (head := _COMPUTATION.match(line)) is not None:
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
        else:
            computations[name].append(line)
    return computations, entry


def _walk(computations: dict[str, list[str]], name: str, is_certain: bool, visited: set[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Yield a computation's collectives and its callees', each with True if it always runs."""
    if (name, True) in visited or (name, is_certain) in visited:
        return
    visited.add((name, is_certain))
    for line in computations.get(name, ()):
        instruction = _INSTRUCTION.search(line)
        if instruction is not None:
            yield instruction[0], is_certain
            continue
        may_not_run = " conditional(" in line or (" while(" in line and '"known_trip_count"' not in line)
        for callees in _CALLED.findall(line):
            for callee in _NAME.findall(callees):
                yield from _walk(computations, callee, is_certain and not may_not_run, visited)


def _groups_of(instruction: str, ndevices: int) -> list[list[int]]:
    """Return an instruction's groups, as indices of the program's devices; by default, one group of
    all devices."""
    if "replica_groups=" not in instruction:
        return [list(range(ndevices))]
    match = _GROUPS.search(instruction)
    if match is None:
        raise ValueError(f"unknown form of device groups: {instruction[:300]}")
    text = match[1]
    if text.startswith("{"):
        return [_numbers(group) for group in _LISTS.findall(text)] or [list(range(ndevices))]
    if (iota := _IOTA.fullmatch(text)) is not None:
        count, size = _numbers(iota[1])
        devices = _transposed(_numbers(iota[2]), iota[3])
        return [devices[i * size : (i + 1) * size] for i in range(count)]
    mesh = _MESH.fullmatch(text)
    if mesh is None:
        raise ValueError(f"unknown form of device groups: {text}")
    return _along_axes(*mesh.groups())


def _along_axes(axes: str, shape: str | None, order: str | None, selected: str) -> list[list[int]]:
    """Return the groups along axes of a mesh, such as "'a'=2,'b'=4". "'b':(2)2" is the part of axis
    b that has size 2, within an outer part of size 2."""
    sizes = {name: int(size) for name, size, _, _ in _AXIS.findall(axes)}
    devices = _transposed(_numbers(shape), order) if shape else list(range(math.prod(sizes.values())))
    parts: dict[str, list[int]] = {name: [size] for name, size in sizes.items()}
    selected_parts: list[tuple[str, int]] = []  # pairs of an axis and the index of one of its parts
    for name, _, outer_size, size in _AXIS.findall(selected):
        if outer_size:
            parts[name] = [int(outer_size), int(size), sizes[name] // (int(outer_size) * int(size))]
        selected_parts.append((name, 1 if outer_size else 0))
    factors = [(name, i) for name, extents in parts.items() for i in range(len(extents))]
    extents = [parts[name][i] for name, i in factors]
    strides = [math.prod(extents[i + 1 :]) for i in range(len(extents))]
    inner = [factors.index(factor) for factor in selected_parts]
    outer = [i for i in range(len(factors)) if i not in inner]
    inner_indices = list(_indices([extents[i] for i in inner]))
    return [
        [devices[sum(strides[i] * k for i, k in zip(outer + inner, outer_index + index))] for index in inner_indices]
        for outer_index in _indices([extents[i] for i in outer])
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
