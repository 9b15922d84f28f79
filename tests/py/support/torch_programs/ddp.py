"""DistributedDataParallel, with every way in which the reducer combines gradients."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from torch_programs import program

STEPS = 4
BATCH = 8


class WithBuffers(nn.Module):
    """A convolution and two batch norms, whose statistics rank 0 broadcasts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        )

    def forward(self, x):
        return self.layers(x.view(-1, 1, 8, 8))


class WithBranches(nn.Module):
    """A model in which ranks use different branches in every step, and no rank uses one of them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.branches = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.never = nn.Linear(32, 32)
        self.last = nn.Linear(32, 4)
        self.steps = 0

    def forward(self, x):
        branch = self.branches[(self.steps + dist.get_rank()) % len(self.branches)]
        self.steps += 1
        return self.last(F.relu(branch(F.relu(self.first(x)))))


def mlp(width=96):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def batch(step):
    """Return this rank's part of the data."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(BATCH, 64, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)


def steps_of(model, optimizer, count=3, data=batch):
    """Train; return the losses."""
    losses = []
    for step in range(count):
        inputs, labels = data(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train(model, steps=STEPS, optimizer=None):
    """Train; return the losses and the model's state."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return {"losses": steps_of(model, optimizer, steps), "state": model.state_dict()}


def assert_same_on_all_ranks(model):
    for parameter in model.parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        assert torch.equal(of_rank_0, parameter)


@program(worlds=[2, 4])
def buffers():
    torch.manual_seed(dist.get_rank())  # DDP's constructor must make the models equal
    model = DistributedDataParallel(WithBuffers())
    result = train(model)
    assert_same_on_all_ranks(model)
    return result


@program(worlds=[2, 4])
def unused_parameters():
    model = DistributedDataParallel(WithBranches(), find_unused_parameters=True)
    result = train(model)
    assert_same_on_all_ranks(model)
    return result


@program()
def many_buckets():
    """Train with buckets of a few KiB, rebuilt in the order of the first backward pass."""
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.02)
    return train(model)


@program()
def double_precision():
    model = DistributedDataParallel(mlp().double())
    loss = model(batch(0)[0].double()).square().mean()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@program()
def no_sync():
    """Accumulate gradients of three passes, of which only the last communicates."""
    model = DistributedDataParallel(mlp())
    for step in range(3):
        inputs, labels = batch(step)
        with contextlib.nullcontext() if step == 2 else model.no_sync():
            F.cross_entropy(model(inputs), labels).backward()
    return [parameter.grad for parameter in model.parameters()]


@program()
def gradient_views():
    model = DistributedDataParallel(mlp(), gradient_as_bucket_view=True, bucket_cap_mb=0.02)
    return train(model)


@program()
def static_graph():
    """Train with a layer used twice, whose activations are recomputed in the backward pass."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(64, 64)
            self.outer = nn.Linear(64, 4)

        def forward(self, x):
            x = checkpoint(self.inner, x, use_reentrant=False)
            return self.outer(checkpoint(self.inner, F.relu(x), use_reentrant=False))

    return train(DistributedDataParallel(Twice(), static_graph=True))


def halved_hook(group, bucket):
    """Return half of the average, by a future with a continuation. A hook in Python."""
    averaged = bucket.buffer().div_(dist.get_world_size(group))
    work = dist.all_reduce(averaged, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0].div_(2))


def gathering_hook(group, bucket):
    """Gather all ranks' buckets and average them. A hook without all_reduce."""
    buffer = bucket.buffer()
    parts = [torch.empty_like(buffer) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(parts, buffer, group=group, async_op=True)
    return work.get_future().then(lambda _: torch.stack(parts).mean(dim=0))


@program(worlds=[2, 4])
def hooks_of_python():
    results = {}
    for hook in (default_hooks.allreduce_hook, halved_hook, gathering_hook):
        torch.manual_seed(0)
        model = DistributedDataParallel(mlp(), bucket_cap_mb=0.02)
        model.register_comm_hook(dist.group.WORLD, hook)
        results[hook.__name__] = train(model)
    return results


@program(worlds=[2, 4], tolerance=2e-2)  # float16 sums round by 2^-11 in each step
def compressing_hook():
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


@program()
def built_in_hook():
    """Train with a hook written in C++."""
    model = DistributedDataParallel(mlp())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return train(model)


@program(worlds=[2, 4], tolerance=2e-2)
def built_in_compression():
    model = DistributedDataParallel(mlp())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train(model)


@program()
def power_sgd():
    model = DistributedDataParallel(mlp())
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, steps=6)


@program(worlds=[2, 4])
def uneven_inputs():
    """Train with r + 1 batches on rank r. A rank without inputs joins the other ranks' collectives
    with zeros."""
    results = {}
    for is_divided_by_all in (True, False):
        model = DistributedDataParallel(mlp())
        with model.join(divide_by_initial_world_size=is_divided_by_all):
            losses = train(model, steps=dist.get_rank() + 1)["losses"]
        results[str(is_divided_by_all)] = {"losses": losses, "state": model.state_dict()}
    return results


@program()
def sparse_gradients():
    """Look up one row that rank 0 and rank 1 share, and one of their own."""
    embedding = nn.Embedding(5, 3, sparse=True)
    model = DistributedDataParallel(embedding)
    model(torch.tensor([dist.get_rank(), 2])).sum().backward()
    return embedding.weight.grad.to_dense()


@program()
def sparse_gradients_in_views():
    embedding = nn.Embedding(5, 3, sparse=True)
    model = DistributedDataParallel(nn.Sequential(embedding, nn.Linear(3, 2)), gradient_as_bucket_view=True)
    for step in range(3):
        model(torch.tensor([dist.get_rank(), step])).sum().backward()
    return [embedding.weight.grad.to_dense(), model.module[1].weight.grad]


def halving_sum(group, bucket):
    """Sum and divide by four, for gradients of either kind."""
    return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future().then(lambda future: future.wait()[0] / 4)


@program()
def sparse_gradients_and_a_hook():
    embedding = nn.Embedding(5, 3, sparse=True)
    model = DistributedDataParallel(nn.Sequential(embedding, nn.Linear(3, 2)))
    model.register_comm_hook(dist.group.WORLD, halving_sum)
    model(torch.tensor([dist.get_rank(), 2])).sum().backward()
    return [embedding.weight.grad.to_dense(), model.module[1].weight.grad]


@program()
def reentrant_checkpoints():
    """Train with nested backward passes, twice through the same layer, and an unused parameter."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.inner = nn.Linear(64, 64)
            self.never = nn.Linear(4, 4)
            self.outer = nn.Linear(64, 4)

        def forward(self, x):
            x = checkpoint(self.inner, self.first(x), use_reentrant=True)
            return self.outer(checkpoint(self.inner, F.relu(x), use_reentrant=True))

    return train(DistributedDataParallel(Model(), static_graph=True))


@program(worlds=[2, 4])
def unused_parameters_in_views():
    """Accumulate gradients across steps, in bucket views, with unsynchronised passes in between."""
    model = DistributedDataParallel(WithBranches(), find_unused_parameters=True, gradient_as_bucket_view=True)
    for step in range(4):
        inputs, labels = batch(step)
        with model.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            F.cross_entropy(model(inputs), labels).backward()
    return [parameter.grad for parameter in model.parameters()]


@program()
def one_of_two_outputs():
    """Use only one output in the loss: the other's parameters get no gradient on any rank."""

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Linear(64, 4)
            self.right = nn.Linear(64, 4)

        def forward(self, x):
            return {"left": self.left(x), "right": [self.right(x)]}

    model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    for step in range(3):
        inputs, labels = batch(step)
        F.cross_entropy(model(inputs)["left" if step % 2 else "right"][0 if step % 2 == 0 else slice(None)], labels).backward()
    return [parameter.grad for parameter in model.parameters()]


@program()
def several_forward_passes():
    """Run a forward pass without a backward pass, and two before one backward pass."""
    model = DistributedDataParallel(mlp(), bucket_cap_mb=0.02)
    model(batch(0)[0])
    (model(batch(1)[0]) + model(batch(2)[0])).square().mean().backward()
    loss = model(batch(3)[0]).square().mean()
    loss.backward()
    return [loss, *(parameter.grad for parameter in model.parameters())]


@program()
def limits_for_each_bucket():
    model = DistributedDataParallel(mlp(), bucket_cap_mb_list=[0.01, 0.03], batched_grad_copy=True)
    return train(model)


@program()
def skipped_buckets():
    """Train with a bucket whose parameters no rank uses: it is not sent."""
    layers = nn.ModuleDict({"used": nn.Linear(64, 4), "never": nn.Linear(64, 64)})

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return self.layers["used"](x)

    model = DistributedDataParallel(Model(), find_unused_parameters=True, skip_all_reduce_unused_params=True, bucket_cap_mb=0.002)
    result = train(model)
    assert layers["never"].weight.grad is None
    return result


@program()
def other_memory_formats():
    model = DistributedDataParallel(WithBuffers().to(memory_format=torch.channels_last), gradient_as_bucket_view=True)
    return train(model)


@program()
def unfinished_reduction():
    """Leave out a parameter's gradient without find_unused_parameters: the next step must raise."""
    model = DistributedDataParallel(WithBranches())
    inputs, _ = batch(0)
    model(inputs).sum().backward()
    try:
        model(inputs)
    except RuntimeError as error:
        return str(error).find("Expected to have finished reduction in the prior iteration before starting a new one") >= 0
    return "nothing was raised"


@program()
def compiled():
    """Train a compiled model. The compiler breaks the graph where statistics are broadcast, and
    traces the code there."""
    torch._dynamo.reset()
    layers = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    return train(torch.compile(DistributedDataParallel(layers), backend="aot_eager"))


@program()
def logging_data():
    """Return DDP's logging data. Times are only checked for presence."""
    model = DistributedDataParallel(WithBranches(), find_unused_parameters=True)
    train(model)
    data = model._get_ddp_logging_data()
    # "custom" is PyTorch's word for third-party backends in C++; groups in Python are named
    # "dldist" even as gloo.
    assert data["backend_name"] in (dist.get_backend(), "custom", "dldist")
    return {name: value for name, value in data.items() if "time" not in name and "gloo" not in name and name != "backend_name"}
