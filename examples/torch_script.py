"""A PyTorch training script, unchanged except for one import.

    dlrun --nproc-per-node 2 examples/torch_script.py  # or torchrun, mpirun -n 2 python ..., srun
    python examples/torch_script.py                    # on one process

Each rank trains on its share of the data; gradients are averaged in one operation per step.
"""

import dldist as dist  # was: import torch.distributed as dist
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 5
BATCH = 64  # total over all ranks


def average_gradients(model):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1024, 2, generator=generator) * 2 - 1
    return TensorDataset(x, (x[:, :1] * x[:, 1:]).sign())


def average(value):
    total = torch.tensor([value])
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(rank, size):
    torch.manual_seed(rank)  # initial weights differ between ranks, until the broadcast
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    # By default, the sampler would query torch.distributed for its ranks.
    sampler = DistributedSampler(data(), num_replicas=size, rank=rank)
    loader = DataLoader(data(), BATCH // size, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            average_gradients(model)
            optimizer.step()
            losses.append(loss.item())
        mean = average(sum(losses) / len(losses))
        if rank == 0:
            print(f"epoch {epoch}: loss {mean:.4f}", flush=True)

    sums = [None] * size
    dist.all_gather_object(sums, sum(parameter.double().sum().item() for parameter in model.parameters()))
    if rank == 0:
        print(f"{size} ranks, sums of their weights: {' '.join(f'{value:.6f}' for value in sums)}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
