"""Objects, messages, collectives for autograd and for the compiler, pipelines."""

import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from torch_programs import program


def ramp(*shape, dtype=torch.float32):
    """Return a tensor whose values differ on every rank."""
    return (torch.arange(torch.Size(shape).numel(), dtype=dtype) + 1).reshape(shape) * (dist.get_rank() + 1)


@program(worlds=[2, 4])
def objects():
    rank, world = dist.get_rank(), dist.get_world_size()
    own_value = {"rank": rank, "words": ["x" * rank], "tensor": ramp(3)}
    gathered = [None] * world
    dist.all_gather_object(gathered, own_value)
    at_root = [None] * world if rank == 1 else None
    dist.gather_object(own_value, at_root, dst=1)
    broadcasted = [own_value, rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(broadcasted, src=1)
    given = [None]
    dist.scatter_object_list(given, [{"for": peer} for peer in range(world)] if rank == 0 else None, src=0)
    passed = [None, None]
    if rank == 0:
        dist.send_object_list([own_value, "greetings"], dst=1)
    elif rank == 1:
        dist.recv_object_list(passed, src=0)
    return [gathered, at_root, broadcasted, given, passed]


@program(worlds=[2, 4])
def ring():
    """Exchange by batch_isend_irecv with both neighbours, then plain messages with tags out of
    order and from any source."""
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    from_before, from_after = torch.zeros(5), torch.zeros(7)
    for request in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, ramp(5), after, tag=1),
            dist.P2POp(dist.irecv, from_before, before, tag=1),
            dist.P2POp(dist.isend, ramp(7), before, tag=2),
            dist.P2POp(dist.irecv, from_after, after, tag=2),
        ]
    ):
        request.wait()
    first, second = torch.zeros(2), torch.zeros(2)
    senders = set()
    if rank == 0:
        for peer in range(1, world):
            dist.recv(second, src=peer, tag=8)
            dist.recv(first, src=peer, tag=7)
        senders = {dist.recv(first, tag=9) for _ in range(1, world)}
    else:
        requests = [dist.isend(ramp(2), 0, tag=7), dist.isend(ramp(2) + 1, 0, tag=8)]
        for request in requests:
            request.wait()
        dist.send(torch.ones(2), 0, tag=9)
    return [from_before, from_after, first, second, sorted(senders)]


@program(worlds=[2, 4])
def differentiable():
    """Differentiate collectives of torch.distributed.nn.functional."""
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD  # passed to each call: the default is the world at the import of torch

    def gradient_of(collective):
        x = ramp(world, 3).requires_grad_()
        y = collective(x)
        y = torch.stack(tuple(y)) if isinstance(y, (tuple, list)) else y
        (y * torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
        return [y.detach(), x.grad]

    return {
        "all_reduce": gradient_of(lambda x: dist_nn.all_reduce(x, group=group)),
        "broadcast": gradient_of(lambda x: dist_nn.broadcast(x * 1, 1, group)),
        "all_gather": gradient_of(lambda x: dist_nn.all_gather(x, group)),
        "gather": gradient_of(lambda x: dist_nn.gather(x, 0, group)),
        # the result is only defined at the root
        "reduce": gradient_of(lambda x: dist_nn.reduce(x, 0, group=group))[0 if rank == 0 else 1 :],
        "scatter": gradient_of(lambda x: dist_nn.scatter([x * peer for peer in range(world)], 0, group)),
        "all_to_all": gradient_of(lambda x: dist_nn.all_to_all([torch.empty(3) for _ in range(world)], list(x), group)),
        "all_to_all_single": gradient_of(lambda x: dist_nn.all_to_all_single(torch.empty_like(x), x, group=group)),
    }


@program(worlds=[2, 4])
def functional():
    """Call collectives as operators. They return new tensors that wait on first use."""
    world = dist.get_world_size()
    group = dist.group.WORLD
    x = ramp(world, 4)
    evenly = [1] * world
    return {
        "all_reduce": funcol.all_reduce(x, "sum", group),
        "average": funcol.all_reduce(x, "avg", group),
        "broadcast": funcol.broadcast(x, 1, group),
        "all_gather": funcol.all_gather_tensor(x, 0, group),
        "all_gather, dim 1": funcol.all_gather_tensor(x, 1, group),
        "reduce_scatter": funcol.reduce_scatter_tensor(x, "sum", 0, group),
        "all_to_all": funcol.all_to_all_single(x, evenly, evenly, group),
        "several": funcol.all_reduce_coalesced([x, x + 1], "max", group),
        "several gathered": funcol.all_gather_into_tensor_coalesced([x, x[:1]], group),
        "several scattered": funcol.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group),
    }


@program(worlds=[2, 4])
def functional_compiled():
    """Call collectives as operators in a compiled graph."""

    def step(x):
        total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        parts = funcol.reduce_scatter_tensor(total + 1, "sum", 0, dist.group.WORLD)
        return total, funcol.all_gather_tensor(parts.relu(), 0, dist.group.WORLD)

    torch._dynamo.reset()
    return torch.compile(step, backend="aot_eager", fullgraph=True)(ramp(dist.get_world_size(), 4))


@program(worlds=[2, 4])
def kinds_of_calls():
    """Call each collective of torch.distributed with several types, and wait late."""
    rank, world = dist.get_rank(), dist.get_world_size()
    results = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        name = str(dtype)
        for op in ("SUM", "PRODUCT", "MIN", "MAX"):
            results[name, op] = ramp(2, 3, dtype=dtype)
            dist.all_reduce(results[name, op], op=getattr(dist.ReduceOp, op))
        gathered = [torch.zeros(4, dtype=dtype) for _ in range(world)]
        works = [dist.all_gather(gathered, ramp(4, dtype=dtype), async_op=True)]
        joined, own_value = torch.zeros(3 * world, dtype=dtype), torch.zeros(2, dtype=dtype)
        works.append(dist.all_gather_into_tensor(joined, ramp(3, dtype=dtype), async_op=True))
        works.append(dist.reduce_scatter_tensor(own_value, ramp(2 * world, dtype=dtype), async_op=True))
        shuffled = torch.zeros(2 * world, dtype=dtype)
        works.append(dist.all_to_all_single(shuffled, ramp(2 * world, dtype=dtype), async_op=True))
        broadcasted = ramp(5, dtype=dtype)
        works.append(dist.broadcast(broadcasted, src=world - 1, async_op=True))
        for work in works:
            work.wait()
        results[name] = [gathered, joined, own_value, shuffled, broadcasted]
    uneven_in, uneven_out = [peer + 1 for peer in range(world)], [rank + 1] * world
    shuffled = torch.zeros(sum(uneven_out))
    dist.all_to_all_single(shuffled, ramp(sum(uneven_in)), uneven_out, uneven_in)
    complex_sum = torch.complex(ramp(3), -ramp(3))
    dist.all_reduce(complex_sum)
    bits = torch.tensor([0b1100 >> rank, 0b1010 << rank])
    dist.all_reduce(bits, op=dist.ReduceOp.BXOR)
    results["rest"] = [shuffled, complex_sum, bits]
    return results


@program(worlds=[2, 4])
def rooted():
    """Call rooted collectives. Only the root's results are defined."""
    rank, world = dist.get_rank(), dist.get_world_size()
    root = world - 1
    total = ramp(3)
    dist.reduce(total, dst=root)
    gathered = [torch.zeros(3) for _ in range(world)] if rank == root else None
    dist.gather(ramp(3), gathered, dst=root)
    given = torch.zeros(2)
    dist.scatter(given, [torch.full((2,), float(peer)) for peer in range(world)] if rank == 0 else None, src=0)
    dist.barrier()
    return [total if rank == root else None, gathered, given]


@program(worlds=[4])
def groups():
    """Use groups of some ranks, one in another order, alternately."""
    rank = dist.get_rank()
    pairs, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    odd_ones = dist.new_group([3, 1])
    x = ramp(4)
    dist.all_reduce(x, group=pairs)
    if rank in (1, 3):
        dist.broadcast(x, src=3, group=odd_ones)
    dist.all_reduce(x)
    dist.destroy_process_group(odd_ones)
    return [x, dist.get_rank(pairs), dist.get_process_group_ranks(pairs)]


@program()
def coalesced():
    """Run many all_reduces as one call."""
    tensors = [ramp(length) for length in (1, 100, 10_000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    return tensors


@program()
def sparse():
    """Reduce sparse gradients of an embedding, with different rows on each rank."""
    rank = dist.get_rank()
    rows = torch.sparse_coo_tensor([[rank, rank + 2]], ramp(2, 4), (6, 4))
    dist.all_reduce(rows)
    return rows.to_dense()


@program()
def futures():
    """Chain continuations of a work in Python."""
    x = ramp(4)
    future = dist.all_reduce(x, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.value() + 1)
    return [doubled.wait(), x]


@program()
def waiting_in_a_continuation():
    """Wait in a continuation, on a thread of the backend. Rank 1 is late both times."""
    late = dist.get_rank() * 0.2
    time.sleep(late)
    first = dist.all_reduce(ramp(4), async_op=True).get_future()

    def sum_again(done):
        time.sleep(late)
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    return first.then(sum_again).wait()


def pipeline(schedule_class):
    """Run a pipeline with one layer per rank: microbatches go forward, and their gradients back."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    layer = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    stage = PipelineStage(layer, rank, world, torch.device("cpu"))
    schedule = schedule_class(stage, n_microbatches=4, loss_fn=F.mse_loss)
    data = torch.randn(8, 16, generator=torch.Generator().manual_seed(7))
    losses = []
    if rank == 0:
        schedule.step(data)
    elif rank == world - 1:
        schedule.step(target=data, losses=losses)
    else:
        schedule.step()
    return [losses, [parameter.grad for parameter in layer.parameters()]]


@program(worlds=[2, 4])
def pipelines():
    return [pipeline(ScheduleGPipe), pipeline(Schedule1F1B)]
