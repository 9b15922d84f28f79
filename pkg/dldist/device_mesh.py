"""DeviceMesh: arrange the ranks of a world in an array, with a group along each dimension.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(gradient, group=mesh.get_group("dp"))

docs/device-mesh.md lists the differences from torch.distributed.device_mesh.
"""

from __future__ import annotations

import operator
import os
from _thread import _local
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Self, TypeVar

from dldist import _core
from dldist._api import mesh_groups
from dldist._api.mesh_arguments import AnyOverride, as_array, as_override, check_names, check_overrides, library_of, overrides_by_dim, read_mesh
from dldist._api.mesh_groups import DefaultWorldGroups, ExistingGroups, GroupSource, Override, WorldGroups, abort_groups
from dldist._api.mesh_layout import Layout, has_overlap, is_sorted, merge_axes, nest, row_major, rows, shape_of, size_of, split, unravel
from dldist._api.ranks import get_process_group_ranks, get_rank
from dldist._backends.process_group import ProcessGroup
from dldist._base import argument_names
from dldist._base.array_types import Tensor, Timeout
from dldist._base.arrays import find_family
from dldist._base.probes import NO_RANK
from dldist.world import World

__all__ = ["DeviceMesh", "init_device_mesh"]

ArrayT = TypeVar("ArrayT", bound=Tensor)


class DeviceMesh:
    """Ranks as an array of several dimensions, with a group along each dimension.

    All ranks of the world must create the same meshes in the same order, also ranks that are not in
    the mesh. If there is no default world, it is created by init_process_group().

    Args:
        device_type: The type of the arrays' device, such as "cpu" or "cuda". It has no effect.
        mesh: The ranks of the default world, as nested lists or an array of any library.
        mesh_dim_names: A name for each dimension.
        backend_override: For each dimension, a backend and its options; None for the world's.
        world: A World to take the ranks from, instead of the default world.

    Raises:
        TypeError: The mesh is missing, or an item is not an integer.
        ValueError: The mesh is ragged or empty, or a rank is repeated or not in the world.
        RuntimeError: The mesh has more ranks than the world.

    Example:
        >>> mesh = dist.DeviceMesh("cpu", [[0]], mesh_dim_names=("dp", "tp"))
        >>> mesh
        DeviceMesh((dp=1, tp=1), 'cpu', stride=((), ()))
        >>> mesh["tp"].get_local_rank()
        0
    """

    _device_type: str
    _layout: Layout
    _rank_map: tuple[int, ...]
    """The ranks of the root mesh in row-major order. The layout has indices into this list."""
    _mesh_dim_names: tuple[str, ...] | None
    _root_mesh: DeviceMesh | None
    _group_source: GroupSource
    _rank: int
    _group_refs: list[Any] | None
    """Stored groups by dimension; [] if this rank is not in the mesh, None if it has no groups."""
    _library: str | None
    """The library of the array that `mesh` returns, which is the library of the array passed."""

    def __init__(
        self,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Sequence[Override] | None = None,
        world: World | None = None,
        _init_backend: bool = True,
        _rank: int | None = None,
    ) -> None:
        if mesh is None:
            raise TypeError("DeviceMesh(): argument 'mesh' is missing: expected ranks, as nested lists or an array")
        group_source: DefaultWorldGroups | WorldGroups = DefaultWorldGroups() if world is None else WorldGroups(world)
        ranks, shape = read_mesh(mesh, group_source.check_size if _init_backend else None)
        names = check_names(mesh_dim_names, shape)
        overrides = check_overrides(backend_override, len(shape))
        if _init_backend:
            group_source.initialize(len(ranks))
        self._set_fields(device_type, row_major(shape), ranks, names, None, group_source, group_source.rank() if _rank is None else _rank)
        self._library = library_of(mesh)
        if _init_backend:
            self._add_groups(overrides)

    def _set_fields(
        self,
        device_type: str,
        layout: Layout,
        rank_map: tuple[int, ...],
        names: tuple[str, ...] | None,
        root: DeviceMesh | None,
        group_source: GroupSource,
        rank: int,
    ) -> None:
        self._device_type, self._layout, self._rank_map, self._mesh_dim_names = device_type, layout, rank_map, names
        self._root_mesh, self._group_source, self._rank = root, group_source, rank
        self._group_refs = None
        self._library = None
        self._flatten_mapping: dict[str, DeviceMesh] = {}
        self._coordinate_on_dim = self._find_coordinate()

    def _make_submesh(self, layout: Layout, names: tuple[str, ...], group_refs: list[Any] | None) -> DeviceMesh:
        """Create a mesh of some of the root's ranks, with this layout and these names."""
        root = self._get_root_mesh()
        submesh = DeviceMesh.__new__(DeviceMesh)
        submesh._set_fields(root._device_type, layout, root._rank_map, names, root, root._group_source, self._rank)
        submesh._group_refs, submesh._library = group_refs, root._library
        return submesh

    # ---- groups

    def _add_groups(self, overrides: Sequence[Override]) -> None:
        names = self._mesh_dim_names or [f"dim_{dim}" for dim in range(self.ndim)]
        self._group_refs = self._make_groups(self._layout, names, overrides)

    def _make_groups(self, layout: Layout, names: Sequence[str], overrides: Sequence[Override]) -> list[Any]:
        """Create a group for each dimension; all ranks must call this. Return names or Worlds."""
        refs = []
        for axis, name, override in zip(layout, names, overrides, strict=True):
            rank_rows = [[self._rank_map[place] for place in row] for row in rows((axis,), len(self._rank_map))]
            refs.append(self._group_source.make_groups(rank_rows, f"mesh_{name}", override))
        return [ref for ref in refs if ref is not None]

    @property
    def _dim_group_names(self) -> list[str]:
        """The names of the groups, by dimension; for c10d's groups."""
        if self._group_refs is None:
            raise AttributeError("the mesh was made without groups")
        return [ref if isinstance(ref, str) else ref.name for ref in self._group_refs]

    def get_group(self, mesh_dim: int | str | None = None) -> Any:
        """Return this rank's group along a dimension: a World if the mesh is made from a World.

        Args:
            mesh_dim: The number or name of the dimension, or the name of a flattened mesh. Optional
                if the mesh has one dimension.

        Raises:
            RuntimeError: `mesh_dim` is missing, or the mesh was made without groups.
            KeyError, IndexError: There is no such dimension. IndexError: This rank is not in the
                mesh.

        Example:
            >>> dist.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)).get_group("dp").size()
            1
        """
        if self._group_refs is None:
            raise RuntimeError("DeviceMesh process groups not initialized!")
        if mesh_dim is None:
            self._check_one_dimension("get_group")
            mesh_dim = 0
        flattened = self._get_root_mesh()._flatten_mapping.get(mesh_dim) if isinstance(mesh_dim, str) else None
        if flattened is not None:
            return flattened.get_group()
        dim = self._dim_of("get_group", mesh_dim)
        if not self._group_refs:
            raise IndexError(f"get_group(): got rank {self._rank}, expected a rank of {self!r}")
        return mesh_groups.find_group(self._group_refs[dim])

    def get_all_groups(self) -> list[Any]:
        """Return the groups of this rank along all dimensions, in a list. Raises like get_group.

        Example:
            >>> [group.size() for group in dist.init_device_mesh("cpu", (1, 1)).get_all_groups()]
            [1, 1]
        """
        return [self.get_group(dim) for dim in range(self.ndim)]

    def abort(self) -> None:
        """Abort the groups of all dimensions and flattened meshes, so that all waiting ranks stop.

        If one of the groups is the default world, all groups are aborted.

        Raises:
            RuntimeError: The mesh is a part of another mesh.

        Example:
            >>> part = dist.new_group([dist.get_rank()])
            >>> dist.DeviceMesh.from_group(part, "cpu").abort()
        """
        if self._root_mesh is not None:
            raise RuntimeError("abort(): unsupported on a submesh; call it on the root mesh")
        meshes = (self, *self._flatten_mapping.values())
        abort_groups(ref for mesh in meshes for ref in mesh._group_refs or ())

    def _check_one_dimension(self, call: str) -> None:
        if self.ndim != 1:
            raise RuntimeError(f"{call}(): argument 'mesh_dim' is missing: expected one of the {self.ndim} dimensions of {self!r}")

    def _dim_of(self, call: str, mesh_dim: int | str) -> int:
        """Return the index of a dimension, which is given by index or name."""
        if isinstance(mesh_dim, str):
            return self._get_mesh_dim_by_name(mesh_dim)
        if not isinstance(mesh_dim, int):
            raise AssertionError(f"{call}(): argument 'mesh_dim' must be a name or an int, got {type(mesh_dim).__name__}")
        if not -self.ndim <= mesh_dim < self.ndim:
            raise IndexError(f"{call}(): argument 'mesh_dim' is out of range: got {mesh_dim}, expected {-self.ndim} to {self.ndim - 1} for {self!r}")
        return mesh_dim % self.ndim

    def _get_mesh_dim_by_name(self, mesh_dim_name: str) -> int:
        """Return the index of the dimension with this name."""
        if not self._mesh_dim_names:
            raise KeyError("No `mesh_dim_names` found.")
        if mesh_dim_name not in self._mesh_dim_names:
            raise KeyError(f"unknown dimension {mesh_dim_name!r}: expected one of {', '.join(self._mesh_dim_names)}")
        return self._mesh_dim_names.index(mesh_dim_name)

    # ---- this rank's position

    def get_rank(self) -> int:
        """Return the rank of this process in the default world, or in the World of the mesh.

        Example:
            >>> dist.init_device_mesh("cpu", (1,)).get_rank()
            0
        """
        return self._rank

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the rank of this process in its group along a dimension.

        Args:
            mesh_dim: As in get_group, like the errors.

        Example:
            >>> dist.init_device_mesh("cpu", (1, 1)).get_local_rank(1)
            0
        """
        if mesh_dim is None:
            self._check_one_dimension("get_local_rank")
        return get_rank(self.get_group(mesh_dim))

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return this rank's index along each dimension, or None if the rank is not in the mesh.

        Example:
            >>> dist.init_device_mesh("cpu", (1, 1)).get_coordinate()
            (0, 0)
        """
        return self._coordinate_on_dim

    def _sym_get_coordinate(self, index: int) -> int:
        """Return this rank's coordinate along one dimension."""
        if self._coordinate_on_dim is None:
            raise AssertionError(f"got rank {self._rank}, expected a rank of {self!r}")
        return self._coordinate_on_dim[index]

    def _ranks_along(self, call: str, mesh_dim: int | str) -> tuple[list[int], int]:
        """Return the ranks along a dimension, in mesh order, and this rank's place among them."""
        dim = self._dim_of(call, mesh_dim)
        if self._coordinate_on_dim is None:
            raise IndexError(f"{call}(): got rank {self._rank}, expected a rank of {self!r}")
        rank_rows = ([self._rank_map[place] for place in row] for row in rows((self._layout[dim],), len(self._rank_map)))
        ranks = next(row for row in rank_rows if self._rank in row)
        return ranks, ranks.index(self._rank)

    def shift(self, mesh_dim: int | str, steps: int = 1, *, wrap: bool = True) -> tuple[int, int]:
        """Return the ranks to receive from and to send to, so that data moves along a dimension.

        Args:
            mesh_dim: The number or name of the dimension.
            steps: The number of places by which data moves; negative for lower places.
            wrap: If True, the last rank of the dimension is followed by the first one.

        Returns:
            The source and the destination, as ranks of the world of the mesh. Without `wrap`,
            dldist.NO_RANK beyond the border: messages with it move nothing.

        Raises:
            KeyError, IndexError: There is no such dimension, or this rank is not in the mesh.

        Example:
            >>> mesh = dist.init_device_mesh("cpu", (1,))
            >>> mesh.shift(0), mesh.shift(0, wrap=False) == (dist.NO_RANK, dist.NO_RANK)
            ((0, 0), True)
        """
        ranks, place = self._ranks_along("shift", mesh_dim)
        steps = argument_names.convert("steps", operator.index, steps, "an integer")

        def rank_at(other: int) -> int:
            return ranks[other % len(ranks)] if wrap or 0 <= other < len(ranks) else NO_RANK

        return rank_at(place - steps), rank_at(place + steps)

    def exchange(
        self, low: ArrayT, high: ArrayT, mesh_dim: int | str, *, wrap: bool = True, timeout: Timeout | None = None
    ) -> tuple[ArrayT | None, ArrayT | None]:
        """Exchange arrays with both neighbours along a dimension, such as the edges of a block.

        All ranks along the dimension must call this, with arrays of the same shapes and types.

        Args:
            low: The array for the lower neighbour.
            high: The array for the higher neighbour.
            mesh_dim: As in shift, like `wrap` and the errors.
            timeout: Seconds or a timedelta for each direction. None is the group's own.

        Returns:
            The lower neighbour's `high` and the higher neighbour's `low`, as new arrays; None
            instead of an array if there is no such neighbour.

        Example:
            >>> mesh = dist.init_device_mesh("cpu", (1,))
            >>> mesh.exchange(array("i", [1]), array("i", [2]), 0)
            (array('i', [2]), array('i', [1]))
        """
        from dldist.functional import permute

        for name, edge in (("low", low), ("high", high)):
            if find_family(edge) is None:
                raise TypeError(f"exchange(): argument {name!r} must be an array, not {type(edge).__name__}")
        ranks, place = self._ranks_along("exchange", mesh_dim)
        group = self.get_group(mesh_dim)
        members = ranks
        if not mesh_groups.is_world(group):
            members = get_process_group_ranks(group)
        elif not isinstance(self._group_source, ExistingGroups):
            members = sorted(ranks)
        order = [members.index(rank) for rank in ranks]
        upward = list(zip(order, order[1:] + order[:1], strict=True))[: None if wrap else -1]
        from_low: Any = permute(high, upward, group, timeout=timeout)
        from_high: Any = permute(low, [(higher, lower) for lower, higher in upward], group, timeout=timeout)
        return from_low if wrap or place > 0 else None, from_high if wrap or place < len(ranks) - 1 else None

    def _is_current_rank_part_of_mesh(self) -> bool:
        return self._coordinate_on_dim is not None

    def _find_coordinate(self) -> tuple[int, ...] | None:
        row = self._own_row()
        if row is None or self._rank not in row:
            return None
        return unravel(row.index(self._rank), self.shape)

    def _own_row(self) -> list[int] | None:
        """Return the mesh's ranks; in a slice, the row with this rank, or None if there is none."""
        rank_rows = [[self._rank_map[place] for place in row] for row in rows(self._layout, len(self._rank_map))]
        return rank_rows[0] if len(rank_rows) == 1 else next((row for row in rank_rows if self._rank in row), None)

    # ---- properties

    @property
    def device_type(self) -> str:
        """The type of device that the arrays are on."""
        return self._device_type

    @property
    def mesh(self) -> Any:
        """The ranks as an int32 array of the library of the array passed, or by default of PyTorch
        or NumPy if imported, else as a SharedArray."""
        row = self._own_row()
        if row is None:
            raise RuntimeError(
                f"mesh: the ranks of {self!r} are unknown: got rank {self._rank}, expected a rank of the mesh of "
                f"{len(self._rank_map)} ranks that it was sliced from"
            )
        return as_array(row, self.shape, self._library)

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of the dimensions."""
        return self._mesh_dim_names

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._layout)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of ranks along each dimension."""
        return shape_of(self._layout)

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the number of ranks of the mesh, or along one dimension.

        Args:
            mesh_dim: Count only along this dimension.

        Raises:
            IndexError: There is no such dimension.

        Example:
            >>> mesh = dist.init_device_mesh("cpu", (1, 1))
            >>> mesh.size(), mesh.size(0)
            (1, 1)
        """
        return prod(self.shape) if mesh_dim is None else self.shape[self._dim_of("size", mesh_dim)]

    def __repr__(self) -> str:
        shape = self.shape
        if self._mesh_dim_names:
            text = f"({', '.join(f'{name}={size}' for name, size in zip(self._mesh_dim_names, shape, strict=True))})"
        else:
            text = repr(shape)
        strides = [tuple(stride for _, stride in axis) for axis in self._layout]
        text = f"DeviceMesh({text}, {self.device_type!r}, stride={tuple(each[0] if len(each) == 1 else each for each in strides)}"
        row = self._own_row() if os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL" else None
        return f"{text})" if row is None else f"{text}, Mesh: {nest(row, shape)})"

    def _key(self) -> tuple[Any, ...]:
        return self._rank_map, self._layout, self._device_type, self._mesh_dim_names, self._group_source

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        """Return True if the other mesh has the same ranks, dimensions and names."""
        return self is other or (isinstance(other, DeviceMesh) and self._key() == other._key())

    def __enter__(self) -> Self:
        """Make this the current mesh of this thread, for libraries that use get_current_mesh()."""
        _mesh_resources.mesh_stack.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _mesh_resources.mesh_stack.pop()

    # ---- meshes made from this mesh

    def _get_root_mesh(self) -> DeviceMesh:
        """Return the mesh that this mesh was made from, or this mesh."""
        return self._root_mesh or self

    def _get_root_mesh_dim(self) -> int | None:
        """Return the index in the root of this mesh's only dimension; None if it has no name."""
        if not self._mesh_dim_names:
            return None
        if len(self._mesh_dim_names) != 1:
            raise AssertionError(f"got {self!r}, expected a mesh of one dimension")
        return self._get_root_mesh()._get_mesh_dim_by_name(self._mesh_dim_names[0])

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the mesh, with groups, of the ranks that differ from this rank only in these
        dimensions; this mesh if all of its names are given.

        Args:
            mesh_dim_names: A name, or a tuple in mesh order. A root also accepts names of flattened
                meshes.

        Raises:
            RuntimeError: The mesh has no names, or the dimensions overlap.
            KeyError: A name does not exist, or the names are in another order.
        """
        if not self._mesh_dim_names:
            raise RuntimeError(f"Cannot slice a DeviceMesh without mesh_dim_names: {self!r}")
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if names == self._mesh_dim_names:
            return self
        sources = [self._find_dim(name, names) for name in names]
        layout = tuple(mesh._layout[dim] for mesh, dim in sources)
        if not is_sorted(layout):
            raise KeyError(f"Invalid mesh_dim_names {names} specified: expected the order of the dimensions, {self._all_names()}")
        if has_overlap(layout):
            raise RuntimeError(f"Slicing overlapping dim_names {names} is not allowed")
        refs = None if self._group_refs is None else [mesh._group_refs[dim] for mesh, dim in sources if mesh._group_refs]
        return self._make_submesh(layout, names, refs)

    def _find_dim(self, name: str, names: tuple[str, ...]) -> tuple[DeviceMesh, int]:
        """Find a name in this mesh or the root's flattened meshes: return mesh and dimension."""
        if name in self._mesh_dim_names:  # type: ignore[operator]
            return self, self._get_mesh_dim_by_name(name)
        if self._root_mesh is None and name in self._flatten_mapping:
            return self._flatten_mapping[name], 0
        raise KeyError(f"Invalid mesh_dim_names {names} specified: got {name!r}, expected one of {self._all_names()}")

    def _all_names(self) -> list[str]:
        return [*(self._mesh_dim_names or ()), *(self._flatten_mapping if self._root_mesh is None else ())]

    def _get_all_submeshes(self, mesh_dim_name: str) -> list[DeviceMesh]:
        """Return a one-dimensional mesh for each row of ranks along a dimension."""
        dim = self._get_mesh_dim_by_name(mesh_dim_name)
        submeshes = []
        for row in rows((self._layout[dim],), len(self._rank_map)):
            ranks = tuple(self._rank_map[place] for place in row)
            submesh = DeviceMesh.__new__(DeviceMesh)
            submesh._set_fields(self._device_type, row_major((len(ranks),)), ranks, (mesh_dim_name,), None, self._group_source, self._rank)
            submesh._group_refs = [self._group_refs[dim]] if self._group_refs and self._rank in ranks else []
            submesh._library = self._library
            submeshes.append(submesh)
        return submeshes

    def _flatten(self, mesh_dim_name: str | None = None, backend_override: AnyOverride | None = None) -> DeviceMesh:
        """Return a one-dimensional mesh of the same ranks, with a group of all these ranks.

        All ranks of the world must call this. Later calls find the mesh by name, like `root[name]`.

        Args:
            mesh_dim_name: The name of the mesh; by default all names, joined by "_".
            backend_override: A backend, options, or both, for the mesh's group.

        Raises:
            RuntimeError: The mesh has no names.
            ValueError: The name is taken.
        """
        if not self._mesh_dim_names:
            raise RuntimeError(f"Cannot flatten a DeviceMesh without mesh_dim_names: {self!r}")
        name = mesh_dim_name or "_".join(self._mesh_dim_names)
        if self.ndim == 1 and name == self._mesh_dim_names[0]:
            return self
        root = self._get_root_mesh()
        layout = (merge_axes(self._layout),)
        if name in (root._mesh_dim_names or ()):
            raise ValueError(f"_flatten(): argument 'mesh_dim_name' is in use: got {name!r}, a dimension of {root!r}; pass another name")
        flattened = root._flatten_mapping.get(name)
        if flattened is None:
            flattened = self._make_submesh(layout, (name,), None)
            flattened._add_groups([as_override(backend_override)])
            root._flatten_mapping[name] = flattened
        elif flattened._layout != layout:
            raise ValueError(f"_flatten(): argument 'mesh_dim_name' is in use: got {name!r}, the flattened mesh {flattened!r}; pass another name")
        return flattened

    def _unflatten(
        self,
        dim: int | str,
        mesh_sizes: Sequence[int],
        mesh_dim_names: Sequence[str],
        backend_override: Mapping[str, AnyOverride] | None = None,
    ) -> DeviceMesh:
        """Return this mesh with one dimension split. All ranks of the world must call this.

        Args:
            dim: The dimension, by number or name.
            mesh_sizes: The sizes of the new dimensions; their product must be the old size.
            mesh_dim_names: The names of the new dimensions, which get their own groups.
            backend_override: For some groups, by dimension name: a backend, options, or both.

        Raises:
            ValueError: There is no such dimension, or the product of the sizes is wrong.
            RuntimeError: The numbers of names and sizes differ, or the mesh has no names.
        """
        try:
            index = self._dim_of("_unflatten", dim)
        except LookupError as error:
            raise ValueError(f"_unflatten(): {error.args[0]}") from None
        sizes, names = tuple(mesh_sizes), tuple(mesh_dim_names)
        if len(sizes) != len(names):
            raise RuntimeError(f"_unflatten(): mesh_dim_names must have same length as mesh_sizes: got {names} for {sizes}")
        if not self._mesh_dim_names:
            raise RuntimeError(f"_unflatten(): got {self!r} without names, expected a mesh with mesh_dim_names")
        axis = self._layout[index]
        fits = prod(sizes) == size_of(axis) and all(size > 0 for size in sizes)
        parts = split(axis, sizes) if fits else None
        if parts is None:
            raise ValueError(f"_unflatten(): argument 'mesh_sizes': got {sizes}, expected sizes whose product is {size_of(axis)} (dimension {dim})")
        overrides = overrides_by_dim(backend_override, len(sizes), names)
        group_refs = None
        if self._group_refs is not None:
            new_refs = self._make_groups(parts, names, overrides)
            group_refs = [*self._group_refs[:index], *new_refs, *self._group_refs[index + 1 :]]
        layout = (*self._layout[:index], *parts, *self._layout[index + 1 :])
        return self._make_submesh(layout, (*self._mesh_dim_names[:index], *names, *self._mesh_dim_names[index + 1 :]), group_refs)

    @staticmethod
    def _concatenate(device_mesh_list: Sequence[DeviceMesh]) -> DeviceMesh:
        """Return a mesh that has all dimensions of several meshes, which must have the same root.

        Args:
            device_mesh_list: The meshes.

        Raises:
            RuntimeError: The meshes have different roots, or overlap.
        """
        first = device_mesh_list[0]
        for mesh in device_mesh_list:
            if (mesh._rank_map, mesh._group_source) != (first._rank_map, first._group_source):
                raise RuntimeError(f"Cannot concatenate DeviceMeshes derived from different device meshes: {first!r} and {mesh!r}")
            if not mesh._mesh_dim_names:
                raise RuntimeError(f"Cannot concatenate a DeviceMesh without mesh_dim_names: {mesh!r}")
        layout = tuple(axis for mesh in device_mesh_list for axis in mesh._layout)
        if has_overlap(layout):
            raise RuntimeError(f"Cannot concatenate overlapping meshes: {list(device_mesh_list)}")
        names = tuple(name for mesh in device_mesh_list for name in mesh._mesh_dim_names or ())
        return first._make_submesh(layout, names, [ref for mesh in device_mesh_list for ref in mesh._group_refs or ()])

    @staticmethod
    def from_group(
        group: ProcessGroup | World | Sequence[ProcessGroup] | Sequence[World],
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """Create a mesh from existing groups. Its ranks are a World's ranks if made from a World.

        Args:
            group: A c10d group or a World, or a list with one for each dimension.
            device_type: As for DeviceMesh.
            mesh: The ranks, as for DeviceMesh. Required for several groups.
            mesh_dim_names: A name for each dimension. Required for several groups.

        Raises:
            ValueError: The mesh does not fit the groups, or is missing.

        Example:
            >>> with World() as world:
            ...     dist.DeviceMesh.from_group(world, "cpu", mesh_dim_names=("dp",))
            DeviceMesh((dp=1), 'cpu', stride=((),))
        """
        if isinstance(group, (ProcessGroup, _core.Group)):
            return _mesh_of_group(group, device_type, mesh, mesh_dim_names)
        groups = list(group)
        if not groups:
            raise ValueError("from_group(): argument 'group' is empty: expects at least one group to be passed")
        if mesh is None or mesh_dim_names is None:
            raise ValueError(f"from_group(): arguments 'mesh' and 'mesh_dim_names' are missing: expected both for {len(groups)} groups")
        return _mesh_of_groups(groups, device_type, mesh, mesh_dim_names)


def _mesh_of_group(group: Any, device_type: str, mesh: Any, mesh_dim_names: Sequence[str] | None) -> DeviceMesh:
    is_world = mesh_groups.is_world(group)
    ranks = list(range(group.size)) if is_world else get_process_group_ranks(group)
    if mesh is not None and read_mesh(mesh) != (tuple(ranks), (len(ranks),)):
        raise ValueError(f"from_group(): argument 'mesh' has other ranks than the group: got {mesh}, expected {ranks}")
    made = DeviceMesh(
        device_type, ranks, mesh_dim_names=mesh_dim_names, world=group if is_world else None, _init_backend=False
    )
    made._library = library_of(mesh)
    made._group_refs = [group if is_world else group.group_name]
    return made


def _mesh_of_groups(groups: list[Any], device_type: str, mesh: Any, mesh_dim_names: Sequence[str]) -> DeviceMesh:
    ranks, shape = read_mesh(mesh)
    if len(shape) != len(groups):
        raise ValueError(f"from_group(): argument 'mesh' has another number of dimensions: got {len(shape)}, expected {len(groups)}")
    are_worlds = {mesh_groups.is_world(group) for group in groups}
    if len(are_worlds) > 1:
        raise ValueError("from_group(): argument 'group': got Worlds and other groups, expected groups of one kind")
    if are_worlds == {False}:
        made = DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, _init_backend=False)
        made._group_refs = [group.group_name for group in groups]
        return made
    for dim, (group, size) in enumerate(zip(groups, shape, strict=True)):
        if group.size != size:
            raise ValueError(f"from_group(): dimension {dim} of argument 'mesh' has another size: got {size}, expected {group.size}, as its group")
    place = 0
    for group, size in zip(groups, shape, strict=True):
        place = place * size + group.rank
    made = DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, _init_backend=False, _rank=ranks[place])
    made._group_source = ExistingGroups(ranks[place])
    made._group_refs = groups
    return made


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Mapping[Any, AnyOverride] | None = None,
    world: World | None = None,
) -> DeviceMesh:
    """Create a mesh of ranks 0, 1, ... in row-major order. All ranks of the world must call this.

    Args:
        device_type: "cpu", "cuda" or the like, without an index.
        mesh_shape: The number of ranks along each dimension.
        mesh_dim_names: A name for each dimension.
        backend_override: Backends, options or pairs of both for some dimensions, by number or name.
        world: A World to take the ranks from, instead of the default world.

    Raises:
        RuntimeError: The world is too small, or a name, the device or an override is invalid.
        ValueError: A size is not a positive number.

    Example:
        >>> mesh = dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        >>> mesh["dp"].size()
        1
    """
    shape = tuple(mesh_shape)
    names = check_names(mesh_dim_names, shape)
    overrides = overrides_by_dim(backend_override, len(shape), names or ())
    if not device_type.isalpha():
        raise RuntimeError(f"Device type with index is not supported but got {device_type!r}: expected only letters, such as 'cuda'")
    for size in shape:
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"init_device_mesh(): argument 'mesh_shape' is not valid: got {shape}, expected sizes of 1 or more")
    mesh = nest(range(prod(shape)), shape)
    return DeviceMesh(device_type, mesh, mesh_dim_names=names, backend_override=overrides, world=world)


# ---- the current mesh


class _MeshEnv(_local):
    """The stack of meshes in whose `with` blocks this thread is."""

    def __init__(self) -> None:
        self.mesh_stack: list[DeviceMesh] = []

    def get_current_mesh(self) -> DeviceMesh:
        """Return the mesh of the innermost `with` block."""
        if not self.mesh_stack:
            raise RuntimeError("No device mesh is currently active!")
        return self.mesh_stack[-1]

    def get_root_mesh(self, device_mesh: DeviceMesh) -> DeviceMesh:
        """Return the root of a mesh."""
        return device_mesh._get_root_mesh()

    def _get_all_submeshes(self, device_mesh: DeviceMesh, mesh_dim_name: str) -> list[DeviceMesh]:
        """Call the mesh's method of this name."""
        return device_mesh._get_all_submeshes(mesh_dim_name)


_mesh_resources = _MeshEnv()
