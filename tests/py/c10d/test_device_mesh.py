"""DeviceMesh: the groups of each rank along each dimension, from arrays of any library, over worlds
of all kinds."""

import array
import copy
import pickle
import subprocess
import sys
from datetime import timedelta

import dldist
import numpy as np
import pytest
from dldist import device_mesh
from dldist._api import mesh_layout
from dldist.device_mesh import DeviceMesh, init_device_mesh
from thread_ranks import error_of, in_worlds, on_threads, total, vector

CUBE = {"mesh_dim_names": ("dp", "cp", "tp")}


@pytest.fixture
def fake_world():
    """Return a function that makes a world of eight in which this process has the given rank."""

    def become(rank, size=8):
        if dldist.is_initialized():
            dldist.destroy_process_group()
        dldist.init_process_group("fake", rank=rank, world_size=size)

    yield become
    if dldist.is_initialized():
        dldist.destroy_process_group()


# ---- groups that carry data


def test_groups_of_a_mesh_have_the_ranks_along_each_dimension():
    """Sums along each dimension must be over the ranks in that dimension of a NumPy array."""
    grid = np.arange(8).reshape(2, 2, 2)

    def case(rank):
        mesh = init_device_mesh("cpu", (2, 2, 2), **CUBE)
        flat = mesh["dp", "tp"]._flatten()
        sums = [total(group, rank) for group in [*mesh.get_all_groups(), flat.get_group()]]
        return mesh.get_coordinate(), sums, mesh.get_group("dp_tp") is flat.get_group()

    for rank, (coordinate, sums, is_same) in enumerate(in_worlds(8, case)):
        at = tuple(int(index[0]) for index in np.nonzero(grid == rank))
        assert coordinate == at and is_same
        expected = [grid[:, at[1], at[2]], grid[at[0], :, at[2]], grid[at[0], at[1], :], grid[:, at[1], :]]
        assert sums == [part.sum() for part in expected]


def test_non_members_of_a_mesh_have_no_coordinate_or_groups():
    """All ranks make the mesh; a non-member has no coordinate or groups, and queries must raise."""

    def case(rank):
        mesh = DeviceMesh("cpu", [[3, 1], [0, 4]], mesh_dim_names=("a", "b"))
        if mesh.get_coordinate() is None:
            errors = [error_of(ask) for ask in (lambda: mesh.get_group("a"), lambda: mesh["a"].mesh)]
            return mesh.mesh.tolist(), [(type(error), str(error)) for error in errors]
        return mesh.get_coordinate(), total(mesh.get_group("a"), rank), mesh["b"].mesh.tolist()

    found = in_worlds(5, case)
    assert found[0] == ((1, 0), 3.0, [0, 4]) and found[1] == ((0, 1), 5.0, [3, 1])
    assert found[3] == ((0, 0), 3.0, [3, 1]) and found[4] == ((1, 1), 5.0, [0, 4])
    ranks, ((kind, text), (other, why)) = found[2]
    assert ranks == [[3, 1], [0, 4]]
    assert kind is IndexError and text.startswith("get_group(): got rank 2, expected a rank of DeviceMesh((a=2, b=2)")
    assert other is RuntimeError and "got rank 2, expected a rank of the mesh" in why


def test_mesh_dimension_with_all_ranks_uses_the_group_of_the_world():
    def case(rank):
        mesh = init_device_mesh("cpu", (2,))
        return mesh.get_group() is dldist.group.WORLD, dldist.get_pg_count()

    assert in_worlds(2, case) == [(True, 1)] * 2


def test_init_device_mesh_creates_a_world_if_there_is_none():
    done = subprocess.run(
        [sys.executable, "-c", "import dldist as d; m = d.init_device_mesh('cpu', (1,)); print(d.is_initialized(), m.mesh.tolist())"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "True [0]\n", done.stderr


def test_mesh_works_between_processes():
    def case():
        import dldist

        mesh = dldist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = array.array("d", [dldist.get_rank()])
        dldist.all_reduce(x, group=mesh.get_group("tp"))
        dldist.all_reduce(x, group=mesh["dp"].get_group())
        return x[0], mesh.get_local_rank("dp"), mesh["tp"].get_local_rank()

    from dldist.testing import run_ranks

    assert run_ranks(case, 4) == [(6.0, 0, 0), (6.0, 0, 1), (6.0, 1, 0), (6.0, 1, 1)]


def test_backends_of_mesh_dimensions_can_be_chosen_by_number_or_name():
    """Backends and options of dimensions may be given by number, by name, or both."""
    options = dldist.ProcessGroupGloo.Options()
    options._timeout = timedelta(seconds=7)

    def case(rank):
        mesh = init_device_mesh("cpu", (2, 2, 1), backend_override={"dp": "fake", 1: options, 2: ("gloo", options)}, **CUBE)
        flat = mesh["dp", "cp"]._flatten(backend_override="fake")
        split = flat._unflatten(0, (2, 2), ("x", "y"), {"y": ("gloo", options)})
        groups = [*mesh.get_all_groups(), flat.get_group(), *split.get_all_groups()]
        return [(dldist.get_backend(group), group.get_timeout().total_seconds()) for group in groups]

    for found in in_worlds(4, case, timeout=9.0):
        backends, timeouts = zip(*found, strict=True)
        assert backends == ("fake", "undefined", "gloo", "fake", "undefined", "gloo")
        assert timeouts[1] == timeouts[2] == timeouts[5] == 7.0


# ---- Worlds


def test_meshes_of_several_worlds_have_their_own_groups():
    """Several Worlds in one process must each have their own groups, without a default world."""
    stores = [dldist.HashStore() for _ in range(2)]

    def case(rank):
        found = []
        for store, turn in zip(stores, (rank, 3 - rank), strict=True):
            with dldist.World(store, turn, 4, timeout=10.0) as world:
                mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), world=world)
                x = vector(turn)
                mesh.get_group("tp").all_reduce(x)
                dldist.all_reduce(x, group=mesh.get_group("dp"))
                flat = mesh._flatten("all").get_group()
                found.append((mesh.get_coordinate(), x[0], mesh.get_local_rank("tp"), flat is world, mesh.get_rank()))
        return found

    for rank, found in enumerate(on_threads(4, case)):
        for turn, (coordinate, value, local, is_world, own) in zip((rank, 3 - rank), found, strict=True):
            assert coordinate == divmod(turn, 2) and value == 6.0 and local == turn % 2 and is_world and own == turn
    assert not dldist.is_initialized()


@pytest.mark.parametrize("shape", [(2, 2), (1, 4)], ids=["parts", "with the default world"])
def test_abort_ends_the_groups_of_the_root_mesh(shape):
    def case(rank):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        groups = mesh.get_all_groups()
        dldist.barrier()
        if rank == 0:
            assert "on a submesh" in str(error_of(mesh["tp"].abort))
            mesh.abort()
        errors = [error_of(dldist.barrier, group) for group in groups if rank == 0 or 0 in dldist.get_process_group_ranks(group)]
        assert errors or rank == 3  # shares no group with rank 0
        assert all(isinstance(error, dldist.DistAbortedError) for error in errors), errors
        return dldist.is_initialized()

    assert in_worlds(4, case)[0] == (shape == (2, 2))


# ---- neighbours


@pytest.mark.parametrize("kind", ["default world", "World", "given Worlds"])
@pytest.mark.parametrize("wrap", [True, False])
def test_neighbours_are_the_next_ranks_along_a_dimension(kind, wrap):
    """Ranks of the mesh are not in ascending order, so that places and ranks differ."""
    grid = np.array([[4, 1, 0], [5, 2, 3]])
    store = dldist.HashStore()

    def case(rank):
        world = None if kind == "default world" else dldist.World(store, rank, 6, timeout=20)
        mesh = DeviceMesh("cpu", grid, mesh_dim_names=("y", "x"), world=world)
        at = tuple(int(index[0]) for index in np.nonzero(grid == rank))
        if kind == "given Worlds":
            lines = [world.split(grid[:, at[1]].tolist()), world.split(grid[at[0]].tolist())]
            mesh = DeviceMesh.from_group(lines, "cpu", grid, mesh_dim_names=("y", "x"))
        for dim, name in enumerate("yx"):
            line, place = np.moveaxis(grid, dim, 0)[:, at[1 - dim]], at[dim]
            size = len(line)
            for steps in (1, -1, 2, size):
                ends = [place - steps, place + steps]
                inside = [wrap or 0 <= end < size for end in ends]
                expected = [int(line[end % size]) if here else dldist.NO_RANK for end, here in zip(ends, inside, strict=True)]
                assert mesh.shift(name, steps, wrap=wrap) == tuple(expected)
            low, high = mesh.exchange(np.array([rank, 0.5]), np.array([[rank + 10], [rank + 20]]), name, wrap=wrap)
            has_low, has_high = wrap or place > 0, wrap or place < size - 1
            assert low.tolist() == [[line[place - 1] + 10], [line[place - 1] + 20]] if has_low else low is None
            assert high.tolist() == [line[(place + 1) % size], 0.5] if has_high else high is None
        if kind == "World":  # ranks of shift() are ranks of the World
            source, destination = mesh.shift("x", wrap=wrap)
            got = np.array([-1])
            work = world.isend(np.array([rank]), destination)
            world.recv(got, source)
            work.wait()
            assert got[0] == (-1 if source == dldist.NO_RANK else source)
        return True

    run = in_worlds if kind == "default world" else on_threads
    assert run(6, case) == [True] * 6


def test_exchange_between_two_ranks_does_not_swap_the_edges():
    """Both neighbours are the same rank. The edges are larger than the buffers of a connection."""
    nbytes = 5 << 20

    def case(rank):
        mesh = init_device_mesh("cpu", (2, 1))
        low, high = mesh.exchange(np.full(nbytes, 2 * rank, "u1"), np.full(nbytes, 2 * rank + 1, "u1"), 0)
        assert (set(low.tolist()), set(high.tolist())) == ({2 * (1 - rank) + 1}, {2 * (1 - rank)})
        alone = mesh.exchange(array.array("d", [1]), array.array("d", [2]), -1)
        assert alone == (array.array("d", [2]), array.array("d", [1]))
        assert mesh.exchange(vector(1), vector(2), 1, wrap=False) == (None, None)
        return True

    assert in_worlds(2, case) == [True] * 2


def test_neighbours_of_wrong_dimensions_and_non_members_are_rejected(fake_world):
    fake_world(5)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("y", "x"))
    for call in (mesh.shift, lambda dim: mesh.exchange(vector(0), vector(0), dim)):
        assert isinstance(error_of(call, "z"), KeyError)
        assert "out of range: got 2, expected -2 to 1" in str(error_of(call, 2))
        assert "got rank 5, expected a rank of DeviceMesh((y=2, x=2)" in str(error_of(call, "x"))


def test_abort_ends_the_worlds_of_a_mesh():
    store = dldist.HashStore()

    def case(rank):
        world = dldist.World(store, rank, 2, timeout=10.0)
        mesh = init_device_mesh("cpu", (2, 1), world=world)
        world.barrier()
        if rank == 0:
            mesh.abort()
        assert isinstance(error_of(world.barrier), dldist.DistAbortedError)

    on_threads(2, case)


def test_mesh_uses_the_given_worlds():
    store = dldist.HashStore()

    def case(rank):
        with dldist.World(store, rank, 4, timeout=10.0) as world:
            row, column = world.split([rank // 2 * 2, rank // 2 * 2 + 1]), world.split([rank % 2, rank % 2 + 2])
            mesh = DeviceMesh.from_group([column, row], "cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
            alone = DeviceMesh.from_group(row, "cpu")
            x = vector(rank)
            mesh["dp"].get_group().all_reduce(x)
            of_three = error_of(DeviceMesh.from_group, [row], "cpu", [0, 1, 2], mesh_dim_names=("a",))
            kinds = [type(error_of(mesh._flatten)), type(of_three)]
            is_named = mesh._dim_group_names == [column.name, row.name]
            return mesh.get_coordinate(), x[0], alone.get_coordinate(), alone.size(), is_named, kinds

    for rank, (coordinate, value, own, size, is_named, kinds) in enumerate(on_threads(4, case)):
        assert coordinate == divmod(rank, 2) and value == rank % 2 * 2 + 2 and own == (rank % 2,) and size == 2 and is_named
        assert kinds == [RuntimeError, ValueError]


def test_choosing_a_backend_for_a_mesh_over_a_world_is_rejected():
    with dldist.World() as world:
        error = error_of(init_device_mesh, "cpu", (1,), backend_override={0: "fake"}, world=world)
        assert isinstance(error, ValueError) and "has no backend to override: got " in str(error)
        assert isinstance(error_of(init_device_mesh, "cpu", (2,), world=world), RuntimeError)


# ---- the array of ranks


def test_ranks_of_a_mesh_may_be_any_array_or_nested_sequence(fake_world):
    """Any array and any nesting must work; `mesh` must be an array of the given library."""
    fake_world(1, 4)
    lists = [[2, 1], [0, 3]]
    view = memoryview(np.array(lists, "int16")).cast("B").cast("h", (2, 2))
    for given in (lists, ((2, 1), (0, 3)), [range(2, 0, -1), (0, np.int64(3))], np.array(lists), np.array(lists, "uint8"), view):
        mesh = DeviceMesh("cpu", given)
        assert mesh.shape == (2, 2) and mesh.mesh.tolist() == lists and mesh.get_coordinate() == (0, 1)
    mesh = DeviceMesh("cpu", np.array(lists, order="F"))
    assert isinstance(mesh.mesh, np.ndarray) and mesh.mesh.dtype == "int32" and (mesh.mesh == lists).all()


@pytest.mark.torch
def test_ranks_of_a_mesh_may_be_a_torch_tensor(fake_world):
    import torch

    fake_world(0, 4)
    mesh = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]).t())
    assert mesh.mesh.dtype == torch.int32 and mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert isinstance(init_device_mesh("cpu", (2, 2)).mesh, torch.Tensor), "a program that has imported torch wants its tensors"


def test_equal_meshes_have_equal_hashes_and_dimensions(fake_world):
    fake_world(0, 4)
    one, other = (init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")) for _ in range(2))
    assert one == other and hash(one) == hash(other) and one["dp"] == other["dp"] and one["dp"] is not one["dp"]
    assert one["dp", "tp"] is one
    different = [
        DeviceMesh("cpu", [[0, 1], [2, 3]]),
        DeviceMesh("cuda", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp")),
        DeviceMesh("cpu", [[0, 1], [3, 2]], mesh_dim_names=("dp", "tp")),
        DeviceMesh("cpu", [[0, 1, 2, 3]], mesh_dim_names=("dp", "tp")),
        one["dp"],
        "mesh",
    ]
    assert all(one != each for each in different)
    with dldist.World() as world:
        assert init_device_mesh("cpu", (1,), world=world) != init_device_mesh("cpu", (1,))


def test_copy_of_a_mesh_has_the_same_groups(fake_world):
    """Copies must find the same groups, by name, as long as the groups exist."""
    fake_world(0, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for twin in (pickle.loads(pickle.dumps(mesh)), copy.deepcopy(mesh)):
        assert twin == mesh and twin.get_group("tp") is mesh.get_group("tp")
    dldist.destroy_process_group(mesh.get_group("tp"))
    assert isinstance(error_of(mesh.get_group, "tp"), RuntimeError)


def test_current_mesh_is_that_of_the_threads_innermost_with_block(fake_world):
    fake_world(0, 2)
    current = device_mesh._mesh_resources.get_current_mesh
    assert isinstance(error_of(current), RuntimeError)
    with init_device_mesh("cpu", (2,)) as outer:
        with init_device_mesh("cpu", (1, 2)) as inner:
            assert current() is inner
            assert isinstance(on_threads(1, lambda rank: error_of(current))[0], RuntimeError), "of each thread its own"
        assert current() is outer
    assert isinstance(error_of(current), RuntimeError)


def test_mesh_works_without_a_world_except_for_its_groups():
    """A mesh must work without a world, except for its groups."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"), _init_backend=False, _rank=2)
    assert mesh.get_coordinate() == (1, 0) and mesh["tp"].mesh.tolist() == [2, 3] and mesh.get_rank() == 2
    assert not dldist.is_initialized()
    for ask in (mesh.get_group, mesh["dp"].get_group, mesh.get_all_groups):
        assert isinstance(error_of(ask), RuntimeError)
    assert not hasattr(mesh, "_dim_group_names")
    unflattened = mesh._unflatten("tp", (1, 2), ("x", "y"))
    assert unflattened.shape == (2, 1, 2) and isinstance(error_of(unflattened.get_group, 0), RuntimeError)


def test_repr_of_a_mesh_has_more_fields_with_debug_level_detail(fake_world, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    mesh = DeviceMesh("cpu", [1, 0], _init_backend=False, _rank=0)
    assert repr(mesh) == "DeviceMesh((2,), 'cpu', stride=(1,), Mesh: [1, 0])"


# ---- errors

BAD = [
    (lambda: DeviceMesh("cpu"), TypeError, "'mesh' is missing"),
    (lambda: DeviceMesh("cpu", [0.5, 1]), TypeError, "got 0.5, expected ranks"),
    (lambda: DeviceMesh("cpu", "01"), TypeError, "got '01', expected ranks"),
    (lambda: DeviceMesh("cpu", np.zeros(2)), TypeError, "got 0.0, expected ranks"),
    (lambda: DeviceMesh("cpu", [[0, 1], [2]]), ValueError, "ragged"),
    (lambda: DeviceMesh("cpu", [0, [1]]), ValueError, "ragged"),
    (lambda: DeviceMesh("cpu", []), ValueError, "no ranks"),
    (lambda: DeviceMesh("cpu", [[], []]), ValueError, "no ranks"),
    (lambda: DeviceMesh("cpu", [0, -1]), ValueError, "negative rank: got -1"),
    (lambda: DeviceMesh("cpu", [[0, 1], [1, 2]]), ValueError, "repeated rank: got 1"),
    (lambda: DeviceMesh("cpu", [0, 8]), ValueError, "'mesh': .*got 8, expected 0 to 7"),
    (lambda: DeviceMesh("cpu", [0, 1], mesh_dim_names=("a", "b")), RuntimeError, "expected 1 names"),
    (lambda: DeviceMesh("cpu", [0, 1], backend_override=()), ValueError, "got 0, expected 1"),
    (lambda: init_device_mesh("cpu", (3, 3)), RuntimeError, "world size 8, but found 9 ranks"),
    (lambda: init_device_mesh("cuda:0", (8,)), RuntimeError, "not supported but got 'cuda:0'"),
    (lambda: init_device_mesh("cpu", (8,), mesh_dim_names=("a", "b")), RuntimeError, "expected 1 names"),
    (lambda: init_device_mesh("cpu", (2, 4), mesh_dim_names=("a", "a")), RuntimeError, "must be unique"),
    (lambda: init_device_mesh("cpu", (0, 8)), ValueError, r"'mesh_shape' is not valid: got \(0, 8\), expected sizes of 1 or more"),
    (lambda: init_device_mesh("cpu", (2.0, 4)), ValueError, "mesh_shape"),
    (lambda: init_device_mesh("cpu", (8,), backend_override={1: "gloo"}), RuntimeError, r"got \[1\], expected 0 to 0"),
    (lambda: cube(backend_override={0: "gloo", "dp": "gloo"}), RuntimeError, "{0: 'dp'}"),
    (lambda: cube()["pp"], KeyError, "got 'pp', expected one of"),
    (lambda: cube()["tp", "dp"], KeyError, "order of the dimensions"),
    (lambda: cube()["dp", "dp"], RuntimeError, "overlapping"),
    (lambda: init_device_mesh("cpu", (8,))["dp"], RuntimeError, "without mesh_dim_names"),
    (lambda: init_device_mesh("cpu", (8,))._flatten(), RuntimeError, "without mesh_dim_names"),
    (lambda: cube().get_group(), RuntimeError, "'mesh_dim' is missing"),
    (lambda: cube().get_local_rank(), RuntimeError, "'mesh_dim' is missing"),
    (lambda: cube().get_group("pp"), KeyError, "expected one of dp, cp, tp"),
    (lambda: init_device_mesh("cpu", (8,)).get_group("pp"), KeyError, "No `mesh_dim_names`"),
    (lambda: cube().get_group(3), IndexError, "got 3, expected -3 to 2"),
    (lambda: cube().get_group(1.0), AssertionError, "got float"),
    (lambda: cube().size(-4), IndexError, "got -4, expected -3 to 2"),
    (lambda: cube()["dp", "cp"]._flatten("tp"), ValueError, "got 'tp', a dimension of"),
    (lambda: flattened_twice(), ValueError, "got 'x', the flattened mesh"),
    (lambda: cube()._unflatten("pp", (2,), ("x",)), ValueError, "unknown dimension 'pp'"),
    (lambda: cube()._unflatten(3, (2,), ("x",)), ValueError, "got 3, expected -3 to 2"),
    (lambda: cube()._unflatten(0, (2,), ("x", "y")), RuntimeError, "same length"),
    (lambda: cube()._unflatten(0, (2, 2), ("x", "y")), ValueError, "whose product is 2"),
    (lambda: cube()._unflatten(0, (-1, -2), ("x", "y")), ValueError, "whose product is 2"),
    (lambda: init_device_mesh("cpu", (8,))._unflatten(0, (2, 4), ("x", "y")), RuntimeError, "without names, expected a mesh with mesh_dim_names"),
    (lambda: DeviceMesh._concatenate([cube()["dp"], cube()["dp"]]), RuntimeError, "overlapping"),
    (lambda: DeviceMesh._concatenate([cube()["dp"], square()["a"]]), RuntimeError, "derived from different"),
    (lambda: DeviceMesh.from_group([], "cpu"), ValueError, "at least one group"),
    (lambda: DeviceMesh.from_group(dldist.group.WORLD, "cpu", [0, 1]), ValueError, "other ranks than the group"),
    (lambda: DeviceMesh.from_group([dldist.group.WORLD], "cpu"), ValueError, "expected both for 1 groups"),
    (lambda: DeviceMesh.from_group([dldist.group.WORLD], "cpu", [[0]], mesh_dim_names=("a", "b")), ValueError, "dimensions: got 2, expected 1"),
]


def cube(**how):
    return init_device_mesh("cpu", (2, 2, 2), **CUBE, **how)


def square():
    return DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("a", "b"))


def flattened_twice():
    mesh = cube()
    mesh["dp", "cp"]._flatten("x")
    return mesh["cp", "tp"]._flatten("x")


@pytest.mark.parametrize(("ask", "kind", "text"), BAD)
def test_device_mesh_rejects_wrong_arguments(fake_world, ask, kind, text):
    fake_world(0)
    with pytest.raises(kind, match=text):
        ask()


def test_name_of_a_failed_flatten_of_a_mesh_can_be_used_again(fake_world):
    fake_world(0)
    mesh = cube()
    assert isinstance(error_of(mesh["dp", "cp"]._flatten, "x", "unheard_of"), AssertionError)
    assert mesh["cp", "tp"]._flatten("x").shape == (4,)


# ---- the arithmetic, against NumPy


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3), (1, 4), (3, 1, 2), (2, 2, 2, 3)])
def test_strided_layouts_of_meshes_match_numpy(shape):
    """Rows and order of all subsets of dimensions must match NumPy, and unflattening must restore
    the dimensions."""
    count = int(np.prod(shape))
    grid = np.arange(count).reshape(shape)
    layout = mesh_layout.row_major(shape)
    assert mesh_layout.shape_of(layout) == shape and not mesh_layout.has_overlap(layout)
    for mask in range(2 ** len(shape)):
        dims = [dim for dim in range(len(shape)) if mask >> dim & 1]
        others = [dim for dim in range(len(shape)) if dim not in dims]
        part = tuple(layout[dim] for dim in dims)
        expected = grid.transpose(*others, *dims).reshape(-1, int(np.prod([shape[dim] for dim in dims])))
        assert mesh_layout.rows(part, count) == expected.tolist()
        assert mesh_layout.is_sorted(part)
        flat = mesh_layout.merge_axes(part)
        assert mesh_layout.split(flat, [shape[dim] for dim in dims]) == part
        assert not mesh_layout.has_overlap((flat,))
    if len([size for size in shape if size > 1]) > 1:
        assert not mesh_layout.is_sorted(layout[::-1]) and mesh_layout.has_overlap((layout[-1], layout[-1]))


def test_layout_of_a_mesh_splits_only_along_matching_sizes():
    assert mesh_layout.split(((2, 6), (3, 1)), (3, 2)) is None
    assert mesh_layout.split(((6, 1),), (3, 2)) == (((3, 2),), ((2, 1),))
    assert mesh_layout.nest([3], ()) == 3 and mesh_layout.unravel(5, (2, 3)) == (1, 2)


# ---- against torch

MESHES = """
init("cpu", (8,))
init("cpu", (8,), mesh_dim_names=("dp",))
init("cpu", (4,))
init("cpu", (2, 4))
init("cpu", (1, 8))
init("cpu", (2, 2), mesh_dim_names=("a", "b"))
init("cpu", (2, 2, 2), **cube)
init("cpu", (2, 1, 4), **cube)
DM("cpu", [[0, 1], [2, 3], [4, 5], [6, 7]])
DM("cpu", [[7, 5], [6, 4]], mesh_dim_names=("a", "b"))
DM("cpu", [3, 1, 5])
DM("cpu", [[0, 2, 4, 6], [1, 3, 5, 7]], mesh_dim_names=["a", "b"])
init("cpu", (2, 2, 2), **cube)["dp"]
init("cpu", (2, 2, 2), **cube)["tp"]
init("cpu", (2, 2, 2), **cube)["dp", "tp"]
init("cpu", (2, 2, 2), **cube)["dp", "cp"]["cp"]
init("cpu", (2, 2, 2), **cube)["dp", "tp"]._flatten()
init("cpu", (2, 2, 2), **cube)["dp", "cp"]._flatten("x")
init("cpu", (2, 2, 2), **cube)._flatten()
init("cpu", (2, 2, 2), **cube)["tp"]._flatten()
init("cpu", (2, 2, 2), **cube)["tp"]._flatten("x")
init("cpu", (8,), mesh_dim_names=("w",))._unflatten(0, (2, 2, 2), ("dp", "cp", "tp"))
init("cpu", (8,), mesh_dim_names=("w",))._unflatten("w", (4, 2), ("x", "y"))["y"]
init("cpu", (2, 4), mesh_dim_names=("a", "b"))._unflatten("b", (2, 2), ("x", "y"))["a", "y"]
init("cpu", (2, 2, 2), **cube)["dp", "tp"]._flatten()._unflatten(0, (2, 2), ("x", "y"))
sliced_flat(init("cpu", (2, 2, 2), **cube))
concatenated(init("cpu", (2, 2, 2), **cube))
DM.from_group(WORLD(), "cpu")
DM.from_group(WORLD(), "cpu", mesh_dim_names=("w",))
DM.from_group(init("cpu", (2, 4), **ab).get_all_groups(), "cpu", [[0, 1, 2, 3], [4, 5, 6, 7]], **ab)
DM.from_group(init("cpu", (2, 4), **ab).get_group(1), "cpu")
init("cpu", (2, 4))["dp"]
init("cpu", (2, 4), **ab)["c"]
init("cpu", (2, 4), **ab)["b", "a"]
init("cpu", (2, 4), **ab)["a", "a"]
init("cpu", (2, 4), **ab).get_group()
init("cpu", (2, 4), **ab).get_group("c")
init("cpu", (2, 4), **ab).get_group(2)
init("cpu", (2, 4)).get_group("a")
init("cpu", (2, 4)).get_local_rank()
init("cpu", (2, 4))._flatten()
init("cpu", (2, 4), **ab)._flatten("a")
init("cpu", (2, 4), **ab)._unflatten("c", (2,), ("x",))
init("cpu", (2, 4), **ab)._unflatten(2, (2,), ("x",))
init("cpu", (2, 4), **ab)._unflatten(1, (2, 2), ("x",))
init("cpu", (2, 4), **ab)._unflatten(1, (2, 3), ("x", "y"))
init("cpu", (3, 4))
init("cpu", (2, 4), mesh_dim_names=("a",))
init("cpu", (2, 4), mesh_dim_names=("a", "a"))
init("cpu:0", (2, 4))
init("cpu", (8,), backend_override={1: "fake"})
init("cpu", (8,), mesh_dim_names=("w",), backend_override={0: "fake", "w": "fake"})
init("cpu", (8,), mesh_dim_names=("w",), backend_override={"w": "fake"})
DM("cpu")
DM("cpu", [[0, 1], [2]])
DM("cpu", [0, 8])
DM("cpu", [0, 0])
DM("cpu", [0, 1], backend_override=())
DM.from_group([], "cpu")
DM.from_group(WORLD(), "cpu", [0, 1])
DM.from_group([WORLD()], "cpu")
DM.from_group([WORLD()], "cpu", [[0]], mesh_dim_names=("a",))
DM._concatenate([init("cpu", (2, 4), **ab)["a"], init("cpu", (2, 4), **ab)["a"]])
DM._concatenate([init("cpu", (2, 4), **ab)["a"], init("cpu", (2, 2), **ab)["b"]])
DM("cpu", [[0, 1], [2, 3]], _init_backend=False, _rank=2).get_group(0)
DM("cpu", [[0, 1], [2, 3]], _init_backend=False, _rank=2)
""".strip().split("\n")


def sliced_flat(mesh):
    mesh["cp", "tp"]._flatten("x")
    return mesh["dp", "x"]


def concatenated(mesh):
    return type(mesh)._concatenate([mesh["dp"], mesh["tp"]])


def words_for(dist, module):
    return {
        "init": module.init_device_mesh,
        "DM": module.DeviceMesh,
        "WORLD": lambda: dist.group.WORLD,
        "cube": CUBE,
        "ab": {"mesh_dim_names": ("a", "b")},
        "sliced_flat": sliced_flat,
        "concatenated": concatenated,
    }


def facts(dist, words, text):
    """Return all properties of a mesh, or the type of the error."""
    try:
        mesh = eval(text, dict(words))
        known = [repr(mesh), mesh.shape, mesh.ndim, mesh.size(), mesh.size(-1), mesh.mesh_dim_names, mesh.device_type]
        known += [mesh.mesh.tolist(), str(mesh.mesh.dtype), mesh.get_coordinate(), dist.get_pg_count()]
        known += [repr(mesh._get_root_mesh()), mesh._is_current_rank_part_of_mesh()]
        known.append(sorted(mesh._get_root_mesh()._flatten_mapping))
    except Exception as error:
        return kind_of(error)
    try:
        groups = mesh.get_all_groups()
        known += [[dist.get_process_group_ranks(group) for group in groups], [group.group_desc for group in groups]]
        known += [[mesh.get_local_rank(dim) for dim in range(mesh.ndim)], len(mesh._dim_group_names)]
        known += [[dist.get_backend(group) for group in groups]]
    except Exception as error:
        known.append(kind_of(error))
    return known


def kind_of(error):
    kinds = (TypeError, ValueError, AssertionError, IndexError, KeyError, RuntimeError)
    return next(kind for kind in kinds if isinstance(error, kind))


@pytest.mark.torch
def test_device_mesh_has_the_names_of_torchs_class():
    from torch.distributed import device_mesh as torch_device_mesh

    public = {name for name in dir(torch_device_mesh.DeviceMesh) if not name.startswith("_")}
    public |= {"_flatten", "_unflatten", "_concatenate", "_get_root_mesh", "_get_all_submeshes", "_get_mesh_dim_by_name"}
    assert len(public) > 15 and public <= set(dir(DeviceMesh))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Slicing a flattened dim:UserWarning")
def test_device_mesh_gives_the_same_results_as_torchs(fake_world):
    import torch.distributed
    from torch.distributed import device_mesh as torch_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # An earlier test may have left groups, which torch counts.
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    torch.distributed.destroy_process_group()
    wrong = []
    for rank in range(8):
        for text in MESHES:
            fake_world(rank)
            dldist_facts = facts(dldist, words_for(dldist, device_mesh), text)
            torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=8)
            try:
                expected = facts(torch.distributed, words_for(torch.distributed, torch_device_mesh), text)
            finally:
                torch.distributed.destroy_process_group()
            if dldist_facts != expected:
                wrong.append(f"{text} on rank {rank}:\n  torch {expected}\n  dldist {dldist_facts}")
    assert not wrong, "\n".join(wrong)
