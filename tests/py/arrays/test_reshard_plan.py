"""Plans of dldist.reshard: compared with NumPy's slices and a minimum number of bytes, counted
element by element."""

import math
import random
from collections import Counter

import pytest
from dldist.reshard import Replicate, Shard, Sharding, StridedShard, plan

np = pytest.importorskip("numpy", reason="NumPy is not installed")
CASES = 300


def random_sharding(rng, ndim):
    mesh = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    while math.prod(mesh) > 8:
        mesh[mesh.index(max(mesh))] -= 1

    def placement():
        kind = rng.random()
        if ndim == 0 or kind < 0.35:
            return Replicate()
        dim = rng.randrange(-ndim, ndim)
        return StridedShard(dim, rng.randint(1, 3)) if kind < 0.5 else Shard(dim)

    return Sharding(tuple(mesh), [placement() for _ in mesh])


def random_case(seed):
    rng = random.Random(seed)
    shape = tuple(rng.choice([0, 1, 2, 3, 5, 7, 8, 12]) for _ in range(rng.randint(0, 3)))
    sides = [random_sharding(rng, len(shape)) for _ in range(2)]
    ranks = list(range(16))
    rng.shuffle(ranks)
    first = tuple(ranks[: sides[0].size])
    # Some processes are on both sides.
    second = tuple(rng.sample(range(16), sides[1].size))
    hosts = {rank: rng.randrange(3) for rank in range(16)} if rng.random() < 0.5 else None
    return shape, *sides, first, second, hosts


def oracle_local(values, sharding, number):
    """Return a rank's part by cutting the array axis by axis, as torch does."""
    local, rest, at = values, number, []
    for length in reversed(sharding.mesh):
        rest, coordinate = divmod(rest, length)
        at.insert(0, coordinate)
    for length, coordinate, placement in zip(sharding.mesh, at, sharding.placements):
        if isinstance(placement, Replicate):
            continue
        parts = [local]
        if isinstance(placement, StridedShard):
            parts = chunks(local, placement.split_factor, placement.dim)
        local = np.concatenate([chunks(part, length, placement.dim)[coordinate] for part in parts], axis=placement.dim)
    return local


def chunks(x, count, axis):
    step = -(-x.shape[axis] // count)
    return [x.take(range(min(i * step, x.shape[axis]), min((i + 1) * step, x.shape[axis])), axis) for i in range(count)]


@pytest.mark.deadline(120)
def test_reshard_plan_matches_numpy_slices_and_sends_nothing_twice():
    for seed in range(CASES):
        shape, source, destination, first, second, hosts = random_case(seed)
        values = np.arange(math.prod(shape)).reshape(shape)
        had = {rank: oracle_local(values, source, number) for number, rank in enumerate(first)}
        wanted = {rank: oracle_local(values, destination, number) for number, rank in enumerate(second)}
        made = plan(shape, source, destination, source_ranks=first, destination_ranks=second, hosts=hosts)
        filled = {rank: np.full(part.shape, -1) for rank, part in wanted.items()}
        written = Counter()
        for piece in made.pieces:
            assert piece.size > 0
            filled[piece.destination][piece.destination_box] = had[piece.source][piece.source_box]
            written[piece.destination] += piece.size
        for rank, part in wanted.items():
            assert (filled[rank] == part).all(), seed
            assert written[rank] == part.size, seed
        minimum = sum(np.isin(part, had[rank], invert=True).sum() if rank in had else part.size for rank, part in wanted.items())
        assert made.moved == minimum, seed
        assert [source.local_shape(shape, n) for n in range(source.size)] == [had[rank].shape for rank in first]


@pytest.mark.deadline(120)
def test_ranks_with_the_same_data_send_about_equal_parts_of_it():
    uneven = 0
    for seed in range(CASES):
        shape, source, destination, first, second, _ = random_case(seed)
        made = plan(shape, source, destination, source_ranks=first, destination_ranks=second)
        teams = {}
        for number, rank in enumerate(first):
            teams.setdefault(source.runs(shape, number), []).append(rank)
        for team in teams.values():
            loads = [made.sent_by(rank) for rank in team]
            # The longest side of a cut box is not known here, so use the largest slab of all boxes
            # that the team may send.
            slab = largest_slab(shape, source, destination, team)
            assert max(loads) <= math.ceil(sum(loads) / len(team)) + slab, (seed, loads, slab)
            uneven += max(loads) > sum(loads) / len(team)
    assert uneven  # otherwise the limit was not tested


def largest_slab(shape, source, destination, team):
    one_each = plan(shape, Sharding(1, [Replicate()]), destination)
    whole = [math.prod(piece.shape) // max([*piece.shape, 1]) for piece in one_each.pieces]
    return max(whole, default=0)


def test_rank_with_the_data_on_the_same_host_is_the_sender():
    source, destination = Sharding(4, [Replicate()]), Sharding(2, [Shard(0)])
    hosts = {0: "a", 1: "a", 2: "b", 3: "c", 4: "a", 5: "d"}
    made = plan((48, 2), source, destination, hosts=hosts)
    assert {piece.source for piece in made.pieces if piece.destination == 4} == {0, 1}
    assert {piece.source for piece in made.pieces if piece.destination == 5} == {2, 3}
    assert [made.sent_by(rank) for rank in range(4)] == [24] * 4


def test_number_of_pieces_does_not_depend_on_the_number_of_elements():
    sides = Sharding((2, 3), [Shard(0), Replicate()]), Sharding(4, [Shard(1)])
    small, large = plan((8, 8), *sides), plan((1 << 20, 1 << 20), *sides)
    # each destination requests a box from each team, which cuts twice
    assert len(large.pieces) <= 2 * 4 + 2 * 2
    assert large.moved == 1 << 40 and small.moved == 64
    assert plan((8, 8), *sides) is small


def test_reshard_plan_of_thousands_of_ranks_has_one_piece_a_rank():
    made = plan((1 << 20, 64), Sharding(4096, [Shard(0)]), Sharding(4096, [Shard(0)]))
    assert len(made.pieces) == 4096


@pytest.mark.torch
def test_torch_placements_split_arrays_as_torch_does():
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor import Replicate as TorchReplicate
    from torch.distributed.tensor import Shard as TorchShard
    from torch.distributed.tensor.placement_types import _StridedShard

    torch_sharding = Sharding((2, 2, 2), [_StridedShard(0, split_factor=2), TorchShard(0), TorchReplicate()])
    assert torch_sharding == Sharding((2, 2, 2), [StridedShard(0, 2), Shard(0), Replicate()])
    # FSDP over tensor parallelism: axis 1 has cut first.
    assert [torch_sharding.runs((8,), 2 * rank)[0] for rank in range(4)] == [((0, 2),), ((4, 2),), ((2, 2),), ((6, 2),)]
    with pytest.raises(TypeError, match="reduce Partial first"):
        Sharding(1, [Partial()])


@pytest.mark.parametrize("call, text", [
    (lambda: Sharding(2, []), "'placements' has another length: got 0, expected 1"),
    (lambda: Sharding((0,), [Shard(0)]), "axes of 1 rank or more"),
    (lambda: Sharding(2, ["rows"]), "'rows'"),
    (lambda: Sharding(2, [Shard(0)]).runs((4,), 2), "got 2, expected 0 to 1"),
    (lambda: Sharding(2, [Shard(2)]).runs((4, 4), 0), "expected -2 to 1"),
    (lambda: plan((4,), Sharding(2, [Shard(0)]), Sharding(1, [Shard(0)]), source_ranks=[1, 1]), "expected 2 different ranks"),
])  # fmt: skip
def test_reshard_plan_rejects_wrong_arguments(call, text):
    with pytest.raises(ValueError if "'rows'" not in text else TypeError, match=text):
        call()
