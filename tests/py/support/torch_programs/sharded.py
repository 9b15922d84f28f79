"""Sharded models: FSDP in both forms, tensor parallelism, checkpoints."""

import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from torch_programs import ADAM, program
from torch_programs.ddp import batch, mlp, steps_of

# Not a multiple of any number of ranks, so that shards are uneven.
WIDTH = 45


def same_batch(step):
    """Return the same data on all ranks, as tensor parallelism needs."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 64, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def whole(state):
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}


def sharded_mlp(mesh=None, **options):
    model = mlp(WIDTH)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@program(worlds=[2, 4])
def fsdp2():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = sharded_mlp(mesh)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    losses = steps_of(model, optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    shards = {name: value.to_local() for name, value in model.state_dict().items()}
    return [losses, norm, shards, whole(model.state_dict())]


@program(worlds=[2, 4], tolerance=2e-2)  # sums in bfloat16
def fsdp2_mixed_precision():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = sharded_mlp(mesh, mp_policy=policy, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        inputs, labels = batch(step)
        loss = F.cross_entropy(model(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [losses, whole(model.state_dict())]


@program(worlds=[4])
def fsdp2_hybrid():
    """Train with shards within pairs of ranks, and replicas of them between pairs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = sharded_mlp(mesh)
    losses = steps_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return [losses, whole(model.state_dict())]


@program(worlds=[2, 4])
def fsdp1():
    results = []
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        torch.manual_seed(0)
        model = FullyShardedDataParallel(
            mlp(WIDTH), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), sharding_strategy=strategy, device_id=torch.device("cpu")
        )
        losses = steps_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with FullyShardedDataParallel.summon_full_params(model):
            results.append([losses, [parameter.detach().clone() for parameter in model.parameters()]])
    return results


@program(worlds=[2, 4])
def tensor_parallel():
    """Train with the first layer split by columns, the second by rows: one all_reduce per pass."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = steps_of(model, torch.optim.SGD(model.parameters(), lr=0.1), data=same_batch)
    return [losses, whole(model.state_dict())]


@program(worlds=[2, 4])
def sequence_parallel():
    """Train with activations split along the sequence, and the loss along the classes."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.Linear(64, 8))
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(),
        "4": ColwiseParallel(use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        inputs, labels = same_batch(step)
        optimizer.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(model(distribute_tensor(inputs, mesh, [Shard(0)])), labels)
            loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().item())
    return [losses, whole(model.state_dict())]


@program(worlds=[4])
def two_dimensions():
    """Train with tensor parallelism within pairs, and FSDP2 across them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    model = parallelize_module(mlp(), mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    coordinate = mesh.get_local_rank("data")
    losses = steps_of(model, torch.optim.SGD(model.parameters(), lr=0.1), data=lambda step: same_batch(2 * step + coordinate))
    return [losses, whole(model.state_dict())]


def common_folder():
    """Return a folder known to all ranks."""
    names = [tempfile.mkdtemp(prefix="dldist-checkpoint-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    return names[0]


def remove_folder(folder):
    dist.barrier()
    if dist.get_rank() == 0:
        for name in os.listdir(folder):
            os.remove(os.path.join(folder, name))
        os.rmdir(folder)


def trained():
    model = sharded_mlp(init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    steps_of(model, optimizer, count=2)
    return model, optimizer


@program(worlds=[2, 4])
def checkpoint():
    """Save on all ranks, load into another model, and continue training both."""
    model, optimizer = trained()
    folder = common_folder()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state, "step": 2}, checkpoint_id=folder)

    torch.manual_seed(1)
    other, other_optimizer = trained()
    model_state, optimizer_state = get_state_dict(other, other_optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(other, other_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    remove_folder(folder)

    after, after_other = steps_of(model, optimizer), steps_of(other, other_optimizer)
    assert after == after_other and state["step"] == 2
    return [after, whole(other.state_dict())]


@program(worlds=[2, 4])
def checkpoint_in_background():
    """Run async_save during a step, whose changes must not reach the file. Each thread uses its own
    group.
    """
    model, optimizer = trained()
    folder = common_folder()
    saved = copy.deepcopy(whole(model.state_dict()))
    pending = dcp.async_save(
        {"model": get_model_state_dict(model)}, checkpoint_id=folder, process_group=dist.new_group()
    )
    steps_of(model, optimizer, count=1)
    pending.result()
    dist.barrier()
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder)
    remove_folder(folder)
    loaded = whole(state["model"])
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    return loaded


@program(worlds=[2, 4])
def full_state():
    """Gather the whole state on rank 0 and send it back to all ranks, by broadcasts of tensors and
    objects."""
    model, optimizer = trained()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model_state = get_model_state_dict(model, options=options)
    optimizer_state = get_optimizer_state_dict(model, optimizer, options=options)
    torch.manual_seed(1)
    other, other_optimizer = trained()
    from_rank_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, dict(model_state), options=from_rank_0)
    set_optimizer_state_dict(other, other_optimizer, optimizer_state, options=from_rank_0)
    return [model_state, whole(other.state_dict()), steps_of(other, other_optimizer)]
