"""Layouts: the named arrays of one side of a link, and their sharding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dldist import _core
from dldist._base import argument_names
from dldist.reshard.placements import Sharding


@dataclass(frozen=True)
class ArraySpec:
    """The shape, dtype and sharding of one array in a layout.

    Example:
        >>> from dldist.reshard import Layout, Shard
        >>> Layout({"w": ((8, 4), "float32", [Shard(0)])}, mesh=2).arrays["w"].dtype
        'float32'
    """

    shape: tuple[int, ...]
    """The shape of the global array."""
    dtype: str
    sharding: Sharding


class Layout:
    """Named arrays and their sharding over a mesh of ranks.

    Args:
        arrays: For each name, the shape of the global array, its dtype (a name or a library's
            dtype) and its placements, one per mesh axis.
        mesh: The mesh's axis lengths, or one length. Ranks with this layout fill it in rank order.

    Raises:
        ValueError: `arrays` is empty, or placements do not match a shape or the mesh.
        TypeError: A placement is of an unknown type.

    Example:
        >>> from dldist.reshard import Layout, Replicate, Shard
        >>> Layout({"w": ((8, 4), "float32", [Shard(0)]), "b": ((4,), "float32", [Replicate()])}, mesh=2).local_shapes(1)
        {'w': (4, 4), 'b': (4,)}
    """

    def __init__(self, arrays: Mapping[str, tuple[Sequence[int], Any, Sequence[Any]]], mesh: int | Sequence[int]) -> None:
        if not arrays:
            raise _core.DistArgumentError("Layout(): argument 'arrays' is empty: got 0 arrays, expected at least 1")
        self.arrays = {
            name: argument_names.convert(f"arrays[{name!r}]", lambda spec: _spec(mesh, *spec), spec, "(shape, dtype, placements)")
            for name, spec in arrays.items()
        }
        for name, spec in self.arrays.items():
            try:
                spec.sharding.runs(spec.shape, 0)
            except _core.DistArgumentError as error:
                raise _core.DistArgumentError(f"Layout(): array {name!r}: {error}") from None

    @property
    def size(self) -> int:
        """The number of ranks in the mesh."""
        return next(iter(self.arrays.values())).sharding.size

    def local_shapes(self, rank: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a rank's local arrays, by name.

        Args:
            rank: The rank's number in the mesh.

        Example:
            >>> from dldist.reshard import Layout, Shard
            >>> Layout({"w": ((3,), "int8", [Shard(0)])}, mesh=2).local_shapes(1)
            {'w': (1,)}
        """
        return {name: spec.sharding.local_shape(spec.shape, rank) for name, spec in self.arrays.items()}


def _spec(mesh: Any, shape: Any, dtype: Any, placements: Any) -> ArraySpec:
    return ArraySpec(argument_names.integers("shape", shape), dtype_name(dtype), Sharding(mesh, placements))


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype, which may be an object of any library."""
    return str(getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2])


def layout_to_dict(layout: Layout) -> dict[str, Any]:
    """Convert a layout to plain types, which every serializer supports."""
    placements = {
        name: [[type(item).__name__, getattr(item, "dim", 0), getattr(item, "split_factor", 1)] for item in spec.sharding.placements]
        for name, spec in layout.arrays.items()
    }
    return {
        "mesh": list(next(iter(layout.arrays.values())).sharding.mesh),
        "arrays": {name: [list(spec.shape), spec.dtype, placements[name]] for name, spec in layout.arrays.items()},
    }


def layout_from_dict(values: Mapping[str, Any]) -> Layout:
    """Convert the result of layout_to_dict() to a layout."""
    from dldist.reshard.placements import Replicate, Shard, StridedShard

    def placement(kind: str, dim: int, split_factor: int) -> Any:
        if kind == "StridedShard":
            return StridedShard(dim, split_factor)
        return Shard(dim) if kind == "Shard" else Replicate()

    arrays = {
        name: (shape, dtype, [placement(*item) for item in placements]) for name, (shape, dtype, placements) in values["arrays"].items()
    }
    return Layout(arrays, values["mesh"])


def difference(first: Layout, second: Layout) -> str | None:
    """Describe the first array that differs in shape or dtype; return None if there is none."""
    for name in [*first.arrays, *(name for name in second.arrays if name not in first.arrays)]:
        if _describe_array(first, name) != _describe_array(second, name):
            return f"{name!r} is {_describe_array(first, name)} and {_describe_array(second, name)}"
    return None


def _describe_array(layout: Layout, name: str) -> str:
    spec = layout.arrays.get(name)
    return "not there" if spec is None else f"{spec.shape} of {spec.dtype}"
