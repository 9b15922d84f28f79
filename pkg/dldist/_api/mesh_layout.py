"""The layout of a mesh's dimensions: sizes and strides in the flat list of its ranks.

A dimension is an Axis: pairs of a size and a stride, the outermost first. One pair is enough if the
dimension's positions are evenly spaced in the list; a dimension flattened from several may need
more. The pairs are canonical: none has size 1, and evenly spaced neighbours are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

Axis = tuple[tuple[int, int], ...]
Layout = tuple[Axis, ...]


def merge_axes(axes: Iterable[Axis]) -> Axis:
    """Merge several dimensions into one, in row-major order."""
    pairs: list[tuple[int, int]] = []
    for axis in axes:
        for size, stride in axis:
            if size == 1:
                continue
            if pairs and pairs[-1][1] == size * stride:
                pairs[-1] = (pairs[-1][0] * size, stride)
            else:
                pairs.append((size, stride))
    return tuple(pairs)


def row_major(shape: Sequence[int]) -> Layout:
    """Return the layout of a list of ranks that is in row-major order of this shape."""
    return tuple(merge_axes([((size, prod(shape[dim + 1 :])),)]) for dim, size in enumerate(shape))


def size_of(axis: Axis) -> int:
    return prod(size for size, _ in axis)


def shape_of(layout: Layout) -> tuple[int, ...]:
    return tuple(map(size_of, layout))


def _offsets(axis: Axis) -> list[int]:
    return [sum(steps) for steps in product(*([step * stride for step in range(size)] for size, stride in axis))]


def rows(layout: Layout, count: int) -> list[list[int]]:
    """Divide the list positions 0 to count - 1 into rows along the dimensions of a layout."""
    steps = _offsets(merge_axes(layout))
    covered: set[int] = set()
    result = []
    for first in range(count):
        if first not in covered:
            row = [first + step for step in steps]
            covered.update(row)
            result.append(row)
    return result


def is_sorted(layout: Layout) -> bool:
    """Return True if the dimensions are ordered by decreasing stride, as in row-major order."""
    strides = [stride for _, stride in merge_axes(layout)]
    return strides == sorted(strides, reverse=True)


def has_overlap(layout: Layout) -> bool:
    """Return True if two of the dimensions share list positions besides position 0."""
    pairs = sorted(merge_axes(layout), key=lambda pair: pair[1], reverse=True)
    return any(outer[1] % (inner[0] * inner[1]) != 0 for outer, inner in zip(pairs, pairs[1:], strict=False))


def split(axis: Axis, sizes: Sequence[int]) -> Layout | None:
    """Split a dimension into dimensions of these sizes; None if its pairs are not divisible."""
    remaining = list(axis)
    parts: list[Axis] = []
    for remaining_size in reversed(sizes):
        pairs: list[tuple[int, int]] = []
        while remaining_size > 1:
            size, stride = remaining.pop()
            if remaining_size % size != 0 and size % remaining_size != 0:
                return None
            part_size = min(size, remaining_size)
            pairs.insert(0, (part_size, stride))
            if part_size < size:
                remaining.append((size // part_size, stride * part_size))
            remaining_size //= part_size
        parts.insert(0, merge_axes([tuple(pairs)]))
    return tuple(parts)


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a flat index in a row-major array of this shape."""
    coordinates = []
    for size in reversed(shape):
        index, coordinate = divmod(index, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))


def nest(values: Sequence[int], shape: Sequence[int]) -> list[Any] | int:
    """Return a flat list as nested lists of this shape."""
    if not shape:
        return values[0]
    step = len(values) // shape[0]
    return [nest(values[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]
