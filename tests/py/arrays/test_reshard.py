"""Links of dldist.reshard: data in each library, when they become visible, and failures."""

import threading

import dldist
import netns
import pytest
from dldist.reshard import Layout, Link, Replicate, Shard, Sharding, redistribute
from test_reshard_plan import oracle_local, random_sharding
from thread_ranks import error_of, on_threads

np = pytest.importorskip("numpy", reason="NumPy is not installed")
import random  # noqa: E402

import reshard_workers as workers  # noqa: E402

SIZE = workers.SOURCES + workers.DESTINATIONS


def in_world(size, call):
    store = dldist.HashStore()

    def run(rank):
        with dldist.World(store, rank, size, timeout=10) as world:
            return call(world)

    return on_threads(size, run)


# ---- data


@pytest.mark.deadline(120)
@pytest.mark.parametrize("seed", range(12))
def test_resharding_of_random_layouts_matches_numpy_slices(seed):
    rng = random.Random(seed)
    dtypes = ["float32", "int8", "float16", "complex128", "bool", "int64"]
    shapes = {f"a{i}": tuple(rng.choice([0, 1, 3, 6, 8]) for _ in range(rng.randint(0, 3))) for i in range(6)}
    values = {name: np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtypes[i]) for i, (name, shape) in enumerate(shapes.items())}
    sides = [random_sides(rng, shapes, mesh) for mesh in ((rng.choice([(2,), (3,), (2, 2)])), rng.choice([(1,), (2,), (3,)]))]
    layouts = [
        Layout({name: (shapes[name], values[name].dtype, its) for name, its in side[1].items()}, side[0]) for side in sides
    ]
    sources = layouts[0].size

    def run(world):
        number = world.rank if world.rank < sources else world.rank - sources
        side = 0 if world.rank < sources else 1
        own = {name: oracle_local(value, layouts[side].arrays[name].sharding, number) for name, value in values.items()}
        with Link(world, **{("source", "destination")[side]: layouts[side]}, delta=seed % 2 == 1) as link:
            for _ in range(3):
                if side == 0:
                    link.push(own)
                else:
                    link.receive()
                    for name, part in own.items():
                        got = np.asarray(link.arrays[name])
                        assert got.dtype == part.dtype and got.shape == part.shape and (got == part).all(), (seed, name)
            world.barrier()

    in_world(sources + layouts[1].size, run)


def random_sides(rng, shapes, mesh):
    placements = {}
    for name, shape in shapes.items():
        while True:
            made = random_sharding(rng, len(shape))
            if len(made.mesh) == len(mesh):
                break
        placements[name] = made.placements
    return mesh, placements


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_redistribute_returns_arrays_of_the_same_library(library):
    module = pytest.importorskip({"jax": "jax.numpy"}.get(library, library))
    whole = np.arange(30, dtype="float32").reshape(5, 6)

    def run(world):
        x = module.asarray(whole[2 * world.rank : 2 * world.rank + 2])
        y = redistribute(world, x, (5, 6), Sharding(3, [Shard(0)]), Sharding(3, [Shard(1)]))
        assert type(y) is type(x)
        assert (np.asarray(y) == whole[:, 2 * world.rank : 2 * world.rank + 2]).all()

    in_world(3, run)


def test_torch_bfloat16_tensors_can_be_resharded():
    torch = pytest.importorskip("torch")
    whole = torch.arange(16).to(torch.bfloat16).reshape(4, 4)
    layout = Layout({"w": ((4, 4), torch.bfloat16, [Shard(0)])}, 1)
    columns = Layout({"w": ((4, 4), torch.bfloat16, [Shard(1)])}, 2)

    def run(world):
        if world.rank == 0:
            with Link(world, source=layout) as link:
                link.push({"w": whole})
                world.barrier()
            return
        with Link(world, destination=columns) as link:
            link.receive()
            got = torch.from_dlpack(link.arrays["w"])
            assert got.dtype == torch.bfloat16 and got.equal(whole[:, 2 * world.rank - 2 : 2 * world.rank])
            world.barrier()

    in_world(3, run)


# ---- visibility


def test_receiver_keeps_a_version_until_it_takes_the_next_and_pushes_wait_for_it():
    layout = Layout({"w": ((4,), "int32", [Replicate()])}, 1)
    received = threading.Event()

    def run(world):
        if world.rank == 0:
            with Link(world, source=layout) as link:
                link.push({"w": np.full(4, 1, "int32")}, version=10)
                link.push({"w": np.full(4, 2, "int32")}, version=11)
                assert received.wait(10)
                late = error_of(link.push, {"w": np.full(4, 3, "int32")}, version=12, timeout=0.2)
                assert isinstance(late, dldist.DistTimeoutError) and "rank 1 (" in str(late) and "pid" in str(late)
                world.barrier()
            return
        with Link(world, destination=layout) as link:
            assert link.receive() == 10
            old = np.asarray(link.arrays["w"])
            assert link.receive(flip=False) == 11
            assert link.version == 10 and old.tolist() == [1] * 4 and np.asarray(link.arrays["w"]).tolist() == [1] * 4
            assert link.flip() == 11 and np.asarray(link.arrays["w"]).tolist() == [2] * 4
            assert old.tolist() == [1] * 4
            received.set()
            world.barrier()

    in_world(2, run)


def test_receiver_can_get_a_version_after_an_attempt_timed_out():
    layout = Layout({"w": ((4,), "int32", [Shard(0)])}, 1)
    asked = threading.Event()

    def run(world):
        if world.rank == 0:
            with Link(world, source=layout) as link:
                assert asked.wait(10)
                link.push({"w": np.arange(4, dtype="int32")})
                world.barrier()
            return
        with Link(world, destination=layout, in_place=True) as link:
            late = error_of(link.receive, timeout=0.1)
            assert isinstance(late, dldist.DistTimeoutError) and "rank 0 (" in str(late)
            asked.set()
            assert link.receive() == 1 and np.asarray(link.arrays["w"]).tolist() == [0, 1, 2, 3]
            world.barrier()

    in_world(2, run)


def test_version_that_one_source_did_not_push_is_skipped():
    layout = Layout({"w": ((2,), "int32", [Shard(0)])}, 2)
    whole = Layout({"w": ((2,), "int32", [Replicate()])}, 1)
    skipped = threading.Event()

    def run(world):
        if world.rank < 2:
            with Link(world, source=layout) as link:
                if world.rank == 0:
                    link.push({"w": np.full(1, 5, "int32")}, version=5)  # rank 1 skips this version
                    skipped.set()
                assert skipped.wait(10)
                link.push({"w": np.full(1, 6, "int32")}, version=6)
                world.barrier()
            return
        with Link(world, destination=whole) as link:
            assert link.receive() == 6
            assert np.asarray(link.arrays["w"]).tolist() == [6, 6]
            world.barrier()

    in_world(3, run)


def test_push_after_a_timed_out_push_has_a_different_version():
    one, two = (Layout({"w": ((4,), "int32", [Replicate()])}, mesh) for mesh in (1, 2))
    late = threading.Event()

    def run(world):
        if world.rank == 0:
            with Link(world, source=one) as link:
                error = error_of(link.push, {"w": np.full(4, 1, "int32")}, timeout=0.3)
                assert isinstance(error, dldist.DistTimeoutError) and "rank 2 (" in str(error)
                late.set()
                assert link.push({"w": np.full(4, 2, "int32")}).version == 2
                world.barrier()
            return
        with Link(world, destination=two) as link:
            assert link.receive() == 1 if world.rank == 1 else late.wait(10)
            assert link.receive() == 2 and np.asarray(link.arrays["w"]).tolist() == [2] * 4
            world.barrier()

    in_world(3, run)


def test_timed_out_push_can_be_repeated_for_the_late_destination():
    one, two = (Layout({"w": ((4,), "int32", [Replicate()])}, mesh) for mesh in (1, 2))
    late = threading.Event()

    def run(world):
        if world.rank == 0:
            with Link(world, source=one) as link:
                assert isinstance(error_of(link.push, {"w": np.full(4, 7, "int32")}, 7, timeout=0.3), dldist.DistTimeoutError)
                assert isinstance(error_of(link.push, {"w": np.full(4, 6, "int32")}, 6), ValueError)
                late.set()
                # rank 1 does not receive version 7 again
                assert link.push({"w": np.full(4, 7, "int32")}, 7).nbytes == 16
                world.barrier()
            return
        with Link(world, destination=two) as link:
            assert world.rank == 1 or late.wait(10)
            assert link.receive() == 7 and np.asarray(link.arrays["w"]).tolist() == [7] * 4
            world.barrier()

    in_world(3, run)


def test_receiver_takes_no_version_while_a_newer_one_is_being_written():
    layout = Layout({"w": ((4,), "int32", [Shard(0)])}, 2)
    whole = Layout({"w": ((4,), "int32", [Replicate()])}, 1)
    pushed, looked = threading.Event(), threading.Event()

    def run(world):
        if world.rank < 2:
            with Link(world, source=layout) as link:
                link.push({"w": np.full(2, 1, "int32")})
                if world.rank == 0:
                    link.push({"w": np.full(2, 2, "int32")})  # rank 1 checks only after this
                    pushed.set()
                assert looked.wait(10)
                if world.rank == 1:
                    link.push({"w": np.full(2, 2, "int32")})
                world.barrier()
            return
        with Link(world, destination=whole) as link:
            assert link.receive(flip=False) == 1
            assert isinstance(error_of(link.receive, timeout=0.5, flip=False), dldist.DistTimeoutError) and pushed.wait(10)
            assert link.flip() == 0 and np.asarray(link.arrays["w"]).tolist() == [0] * 4
            looked.set()
            assert link.receive() == 2 and np.asarray(link.arrays["w"]).tolist() == [2] * 4
            world.barrier()

    in_world(3, run)


def test_sources_that_push_different_versions_are_an_error():
    rows = Layout({"w": ((4,), "int32", [Shard(0)])}, 2)
    whole = Layout({"w": ((4,), "int32", [Replicate()])}, 2)

    def run(world):
        with Link(world, source=rows, destination=whole) as link:
            error = error_of(link.exchange, {"w": np.full(2, world.rank, "int32")}, version=1 + world.rank, timeout=1)
            if world.rank == 0:
                assert isinstance(error, dldist.DistMismatchError)
                assert "got 1 on rank 0, expected 2, as on ranks [1]" in str(error)
            else:  # waits for rank 0 to catch up
                assert isinstance(error, dldist.DistTimeoutError)
            assert link.version == 0
            world.barrier()
            assert link.exchange({"w": np.full(2, world.rank, "int32")}, version=3) == 3
            assert np.asarray(link.arrays["w"]).tolist() == [0, 0, 1, 1]
            world.barrier()

    in_world(2, run)


# ---- deltas


def test_delta_push_writes_only_changed_blocks():
    rows = 64
    layout = Layout({"w": ((rows, 16384), "uint8", [Shard(0)])}, 1)

    def run(world):
        if world.rank == 0:
            moved, x = [], np.zeros((rows, 16384), "uint8")
            with Link(world, source=layout, delta=True) as link:
                for change in (None, None, None, 7, None, None):
                    if change is not None:
                        x[change, change] += 1
                    moved.append(link.push({"w": x}).nbytes)
                world.barrier()
            return moved
        with Link(world, destination=layout) as link:
            for _ in range(6):
                link.receive()
            assert np.asarray(link.arrays["w"])[7, 7] == 1 and np.asarray(link.arrays["w"]).sum() == 1
            world.barrier()

    whole, block = rows * 16384, 64 << 10
    # Both slots are filled once, and both lack the change.
    assert in_world(2, run)[0] == [whole, whole, 0, block, block, 0]


def test_digests_of_blocks_detect_every_changed_bit_and_every_swap():
    keys = bytes(random.Random(1).randbytes(4096))
    data = np.frombuffer(random.Random(2).randbytes(1001), "u1").copy()
    seen = {dldist._core._digest(data, keys)}
    for bit in range(0, 8008, 7):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(dldist._core._digest(data, keys))
        data[bit // 8] ^= 1 << bit % 8
    swapped = data.copy()
    swapped[:8], swapped[8:16] = data[8:16], data[:8]
    seen.add(dldist._core._digest(swapped, keys))
    assert len(seen) == 1146
    assert dldist._core._digest(data, keys) == expected_digest(data.tobytes(), keys)
    with pytest.raises(ValueError, match="as long as"):
        dldist._core._digest(data, keys[:1000])


def expected_digest(data, keys):
    data += bytes(-len(data) % 16)
    words, key_words = np.frombuffer(data, "<u8").tolist(), np.frombuffer(keys, "<u8").tolist()
    added = [(a + b) % 2**64 for a, b in zip(words, key_words)]
    return (sum(a * b for a, b in zip(added[::2], added[1::2])) % 2**128).to_bytes(16, "little")


# ---- refused calls


@pytest.mark.parametrize("other, text", [
    ({"w": ((4, 3), "float32", [Shard(0)])}, "'w' is (4, 2) of float32 and (4, 3) of float32"),
    ({"w": ((4, 2), "int32", [Shard(0)])}, "'w' is (4, 2) of float32 and (4, 2) of int32"),
    ({"v": ((4, 2), "float32", [Shard(0)])}, "'w' is (4, 2) of float32 and not there"),
])  # fmt: skip
def test_incompatible_layouts_of_source_and_destination_are_errors_on_both(other, text):
    sides = [{"source": Layout({"w": ((4, 2), "float32", [Shard(0)])}, 1)}, {"destination": Layout(other, 1)}]
    for error in in_world(2, lambda world: error_of(Link, world, **sides[world.rank])):
        assert isinstance(error, dldist.DistMismatchError) and text in str(error)
        assert "source (ranks [0])" in str(error) and "destination (ranks [1])" in str(error)


def test_ranks_that_disagree_on_a_layout_are_an_error_on_all_ranks():
    sides = [[Shard(0)], [Shard(1)], [Shard(0)]]

    def differ(world):
        return error_of(Link, world, source=Layout({"w": ((4, 2), "int8", sides[world.rank])}, 3))

    def lack(world):
        return error_of(Link, world, source=Layout({"w": ((4, 2), "int8", [Shard(0)])}, 4))

    assert {str(error) for error in in_world(3, differ)} == {
        "reshard.Link: layouts of the source differ between ranks 0 and 1: placements or meshes differ; "
        "no link was created"
    }
    assert all("got 3 ([0, 1, 2]), expected 4 for the mesh" in str(error) for error in in_world(3, lack))


def test_wrong_calls_of_a_link_are_rejected_immediately():
    layout = Layout({"w": ((4,), "float32", [Shard(0)])}, 1)
    with dldist.World() as world, Link(world, source=layout) as link:
        for arrays, text in (
            ({}, "'arrays' has other names: got"),
            ({"w": np.zeros(3, "float32")}, r"'w' does not fit the layout: got float32 \(3,\), expected float32 \(4,\)"),
            ({"w": np.zeros(4, "int32")}, "got int32"),
        ):
            with pytest.raises(ValueError, match=text):
                link.push(arrays)
        assert link.push({"w": np.zeros(4, "float32")}, version=3).version == 3
        with pytest.raises(ValueError, match="'version' must grow: got 3, expected 4 or more"):
            link.push({"w": np.zeros(4, "float32")}, version=3)
        with pytest.raises(ValueError, match="expected at most 18446744073709551615"):
            link.push({"w": np.zeros(4, "float32")}, version=2**64)
        with pytest.raises(ValueError, match="got nan"):
            link.push({"w": np.zeros(4, "float32")}, timeout=float("nan"))
        with pytest.raises(ValueError, match="calls exchange"):
            link.receive()
    with dldist.World() as world, pytest.raises(ValueError, match="neither 'source' nor 'destination'"):
        Link(world)


def test_destination_that_requests_an_invalid_buffer_is_treated_as_lost():
    layout = Layout({"w": ((4,), "float32", [Shard(0)])}, 1)

    def run(world):
        with Link(world, **{"destination" if world.rank else "source": layout}) as link:
            if world.rank:
                link._receivers[0].request(9)
            else:
                (loss,) = link.push({"w": np.zeros(4, "float32")}).lost
                assert loss.rank == 1 and "rank 1: got slot 9, expected 0 to 1" in str(loss)
            world.barrier()

    in_world(2, run)


# ---- processes: between hosts, and lost ranks


@pytest.mark.deadline(90)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.skipif(netns.why_unavailable() is not None, reason=f"no hosts: {netns.why_unavailable()}")
@pytest.mark.parametrize("places", [(0, 0, 0, 1, 1), (0, 1, 0, 0, 1)])
def test_pushes_between_hosts_arrive_and_delta_pushes_send_only_changes(procs, places, delta):
    with netns.Hosts(2) as hosts:
        address = hosts.address(places[0])
        children = [
            hosts.start(procs, place, workers.push_often, rank, SIZE, address, delta) for rank, place in enumerate(places)
        ]
        moved = results_of(children)[: workers.SOURCES]
        procs.close()
    assert all(one[0] == one[1] > 0 for one in moved)
    # Slot 0 gets version 3 after 1, and slot 1 gets 4 after 2, with equal content.
    assert all(one[3] == (0 if delta else one[0]) for one in moved)


@pytest.mark.deadline(60)
@pytest.mark.skipif(netns.why_unavailable() is not None, reason=f"no hosts: {netns.why_unavailable()}")
def test_rank_of_another_host_that_has_no_part_receives_version_numbers(procs):
    with netns.Hosts(2) as hosts:
        children = [
            hosts.start(procs, place, workers.receive_nothing, rank, 3, hosts.address(0)) for rank, place in enumerate((0, 1, 1))
        ]
        assert results_of(children) == [None, [5], []]
        procs.close()


def results_of(children):
    port = children[0].recv()
    for child in children:
        child.send(port)
    return [child.result(40) for child in children]


@pytest.mark.deadline(90)
@pytest.mark.parametrize("victim", [1, 4])
def test_dead_destination_of_a_push_is_named_and_the_others_continue(procs, victim):
    children = [procs.start(workers.lose, rank, SIZE, victim) for rank in range(SIZE)]
    port = children[0].recv()
    for child in children:
        child.send(port)
    assert [child.recv(40) for child in children] == ["ready"] * SIZE
    children[victim].kill()
    rest = [child for rank, child in enumerate(children) if rank != victim]
    for child in rest:
        child.send("go")
    outcomes = {child: child.recv(40) for child in rest}
    for child, outcome in outcomes.items():
        check_outcome(outcome, children.index(child), victim, children[victim].pid)
        child.send("end")
        child.result(20)


def check_outcome(outcome, rank, victim, pid):
    """Check the outcomes of versions 2 and 3: the errors of receive(), or the losses of push()."""
    if rank < workers.SOURCES and victim < workers.SOURCES:
        # No destination can continue, and each must report the reason.
        assert {(one["rank"], f"lost rank {victim} (" in one["text"]) for one in outcome[-1]} == {(3, True), (4, True)}
        return
    if rank >= workers.SOURCES and victim >= workers.SOURCES:
        assert outcome == [None, None]
        return
    for one in outcome:
        (loss,) = one if rank < workers.SOURCES else [one]
        assert (loss["rank"], loss["pid"], loss["kind"]) == (victim, pid, "DistPeerLostError")
        assert f"lost rank {victim} (" in loss["text"] and loss["host"]
