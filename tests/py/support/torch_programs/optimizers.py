"""Optimizers that communicate, and averaging of models."""

from collections import OrderedDict

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from torch_programs import ADAM, program
from torch_programs.ddp import mlp, train


@program(worlds=[2, 4])
def zero_redundancy():
    """Train with momenta distributed over ranks, and gather the state on one rank at the end."""
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, **ADAM)
    result = train(model, optimizer=optimizer)
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        result["optimizer"] = optimizer.state_dict()["state"]
    return result


@program(worlds=[2, 4])
def join_of_several():
    """Train with DDP and its optimizer, both joined by ranks without inputs."""
    model = DistributedDataParallel(mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        losses = train(model, steps=dist.get_rank() + 1, optimizer=optimizer)["losses"]
    return {"losses": losses, "state": model.state_dict()}


@program(worlds=[2, 4])
def local_sgd():
    """Train two steps with averaged gradients, then each rank separately, with models averaged
    every two steps."""
    subgroup, _ = dist.new_subgroups(group_size=1)
    model = DistributedDataParallel(mlp())
    model.register_comm_hook(PostLocalSGDState(None, subgroup, start_localSGD_iter=2), post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), PeriodicModelAverager(period=2, warmup_steps=2)
    )
    return train(model, steps=7, optimizer=optimizer)


@program(worlds=[4])
def hierarchical_averaging():
    model = mlp()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += dist.get_rank()
            parameter.grad = torch.zeros_like(parameter)  # without a gradient it is not averaged
    averager = HierarchicalModelAverager(period_group_size_dict=OrderedDict([(2, 2), (4, 4)]))
    seen = []
    for _ in range(4):
        averager.average_parameters(model.parameters())
        seen.append([parameter.detach().clone() for parameter in model.parameters()])
    return seen
