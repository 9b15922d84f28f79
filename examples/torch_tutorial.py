"""The programs of a well-known torch.distributed tutorial, which run here with one changed import.

    python examples/torch_tutorial.py                # two processes
    python examples/torch_tutorial.py 4

Messages, a reduction in a group, a ring all-reduce built from messages, and training with averaged
gradients; with rendezvous by env://, tcp:// and file://. With `import torch.distributed as dist` in
the marked line, the output is the same.
"""

import math
import os
import socket
import sys
import tempfile

import dldist as dist  # the only line that differs
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn, optim

HOST = "127.0.0.1"


def say(text):
    # One write per line, as the processes share the terminal.
    sys.stdout.write(f"rank {dist.get_rank()}: {text}\n")
    sys.stdout.flush()


# ---- messages


def blocking_message(rank, size):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor=tensor, src=0)
    say(f"send and recv: has {tensor[0].item()}")


def non_blocking_message(rank, size):
    tensor = torch.zeros(1)
    request = None
    if rank == 0:
        tensor += 1
        request = dist.isend(tensor=tensor, dst=1)
    elif rank == 1:
        request = dist.irecv(tensor=tensor, src=0)
    if request is not None:
        request.wait()
    say(f"isend and irecv: has {tensor[0].item()}")


# ---- collectives


def reduction_in_a_group(rank, size):
    group = dist.new_group([0, 1])
    tensor = torch.ones(1)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
    say(f"all_reduce in the group of ranks 0 and 1: has {tensor[0].item()}")


def all_collectives(rank, size):
    mine = torch.full((2,), float(rank))
    everybody = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(everybody, mine)
    say(f"all_gather: {torch.cat(everybody).tolist()}")

    dist.gather(mine, everybody if rank == 0 else None, dst=0)
    dist.scatter(mine, [part + 1 for part in everybody] if rank == 0 else None, src=0)
    say(f"gather and scatter: {mine.tolist()}")

    dist.broadcast(mine, src=size - 1)
    dist.reduce(mine, dst=0, op=dist.ReduceOp.MAX)
    if rank == 0:
        say(f"broadcast and reduce: {mine.tolist()}")
    dist.barrier()


def ring_all_reduce(send, recv):
    """Implement all_reduce: every part travels around the ring once, and each rank adds it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    here, there = send.clone(), torch.zeros_like(send)
    total = send.clone()
    for _ in range(size - 1):
        request = dist.isend(here, right)
        dist.recv(there, left)
        total += there
        request.wait()
        here, there = there, here
    recv[:] = total


def ring(rank, size):
    mine = torch.arange(4.0) + rank
    by_hand = torch.zeros(4)
    ring_all_reduce(mine, by_hand)
    dist.all_reduce(mine)
    say(f"ring: {by_hand.tolist()}, all_reduce: {mine.tolist()}")


# ---- distributed training


class Partition(torch.utils.data.Dataset):
    """A subset of a data set."""

    def __init__(self, data, index):
        self.data = data
        self.index = index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, index):
        return self.data[self.index[index]]


def partition_dataset(rank, size):
    """Return this rank's part of the points, and its batch size. All ranks together use 128 points
    per step."""
    generator = torch.Generator().manual_seed(1234)
    inputs = torch.randn(512, 8, generator=generator)
    labels = (inputs.sum(dim=1) > 0).long()
    order = torch.randperm(512, generator=generator).tolist()
    part = Partition(torch.utils.data.TensorDataset(inputs, labels), order[rank::size])
    batch_size = 128 // size
    return torch.utils.data.DataLoader(part, batch_size=batch_size), batch_size


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.output = nn.Linear(16, 2)

    def forward(self, x):
        return F.log_softmax(self.output(torch.relu(self.hidden(x))), dim=1)


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def train(rank, size):
    torch.manual_seed(1234)
    train_set, batch_size = partition_dataset(rank, size)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    steps = math.ceil(len(train_set.dataset) / batch_size)
    for epoch in range(4):
        epoch_loss = 0.0
        for data, target in train_set:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        say(f"epoch {epoch}: loss {epoch_loss / steps:.5f}")
    say(f"weights {sum(parameter.double().sum().item() for parameter in model.parameters()):.5f}")


# ---- rendezvous


def all_of_it(rank, size, port, tcp_port, file):
    """Run all programs in each process, with three kinds of rendezvous."""
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = HOST
    os.environ["MASTER_PORT"] = str(port)
    meetings = {
        "env://": (blocking_message, non_blocking_message),
        f"tcp://{HOST}:{tcp_port}": (reduction_in_a_group, all_collectives, ring),
        f"file://{file}": (train,),
    }
    for init_method, functions in meetings.items():
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=size)
        for function in functions:
            function(rank, size)
        dist.barrier()
        dist.destroy_process_group()


def free_ports(count):
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as folder:
        args = size, *free_ports(2), os.path.join(folder, "meeting")
        # Forked, so that torch is imported once.
        mp.start_processes(all_of_it, args, nprocs=size, start_method="fork")


if __name__ == "__main__":
    main()
