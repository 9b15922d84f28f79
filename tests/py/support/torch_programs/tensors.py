"""DTensor: from every placement to every other, and the placements that operations produce."""

import itertools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, ones, zeros

from torch_programs import program


def source(mesh, placements, shape):
    """Return a DTensor of these placements whose whole value follows from its local parts."""
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1
    sharded = distribute_tensor(values, mesh, [Replicate() if p.is_partial() else p for p in placements])
    if not any(p.is_partial() for p in placements):
        return sharded
    coordinate = mesh.get_coordinate()
    share = torch.tensor([float(coordinate[dim] + 1) for dim, p in enumerate(placements) if p.is_partial()]).prod()
    return DTensor.from_local(sharded.to_local() * share, mesh, placements, shape=sharded.shape, stride=sharded.stride())


def redistributions(mesh, kinds, shape):
    results = {}
    every = list(itertools.product(kinds, repeat=mesh.ndim))
    for before, after in itertools.product(every, every):
        if any(new.is_partial() and not old.is_partial() for old, new in zip(before, after, strict=True)):
            continue  # DTensor cannot make partial sums out of whole values
        moved = source(mesh, before, shape).redistribute(mesh, after)
        results[str(before), str(after)] = moved.to_local()
    return results


@program(worlds=[2, 4])
def redistribute():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    kinds = [Replicate(), Shard(0), Shard(1), Partial(), Partial("max"), Partial("avg")]
    kinds_of_one_sum = [kinds[:4], [*kinds[:3], kinds[4]], [*kinds[:3], kinds[5]]]
    # Even shards, uneven shards, and empty shards.
    shapes = [(8, 4), (5, 3), (1, 2)]
    return [redistributions(mesh, kinds, shape) for kinds in kinds_of_one_sum for shape in shapes]


@program(worlds=[4])
def redistribute_on_a_grid():
    mesh = init_device_mesh("cpu", (2, 2))
    return redistributions(mesh, [Replicate(), Shard(0), Shard(1), Partial()], (6, 5))


@program(worlds=[2, 4])
def operations():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    left = distribute_tensor(torch.arange(48.0).reshape(8, 6), mesh, [Shard(0)]).requires_grad_()
    right = distribute_tensor(torch.arange(30.0).reshape(6, 5), mesh, [Shard(0)]).requires_grad_()
    product = left @ right
    loss = (product.softmax(dim=0) * product.mean()).sum() + product.max()
    loss.backward()
    made = [ones(5, 3, device_mesh=mesh, placements=[Shard(0)]), zeros(4, 4, device_mesh=mesh)]
    return [tensor.full_tensor() for tensor in (product.detach(), left.grad, right.grad, loss.detach(), *made)]
