"""One rank: runs programs on the requested backends, one after another, each in its own world."""

import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import torch_programs

TIMEOUT = timedelta(seconds=30)
# Keep groups of Gloo. Freeing one may crash or deadlock.
#
# The process crashes if the last reference is dropped on a Gloo thread, with a future that PowerSGD
# has chained. Freeing may wait forever for a Gloo thread that drops a future.
kept_works = []


def serve(channel, rank, store_file):
    """Answer (program, backend, ranks, key) with ("done", result) or ("failed", traceback), until
    None is received."""
    torch.set_num_threads(1)
    while (command := channel.recv(timeout=600)) is not None:
        try:
            channel.send(("done", run(rank, store_file, *command)))
        except Exception:
            channel.send(("failed", traceback.format_exc()))


def run_on_front(rank, store_file, name, world):
    """Run a program in a dldist world, with DDP on dldist's Reducer."""
    import dldist

    from torch_programs import front

    with front.substituted():
        store = dldist.FileStore(store_file, world)
        dldist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
        try:
            return plain(torch_programs.load(name)())
        finally:
            dldist.destroy_process_group()


def run(rank, store_file, name, way, world, key):
    if way in ("dldist", torch_programs.AS_GLOO):
        # registers the backend, like the entry point of an installed dldist
        import dldist.torch

        dldist.torch.install(as_gloo=way == torch_programs.AS_GLOO)
    elif "dldist.torch" in sys.modules:
        sys.modules["dldist.torch"].install(as_gloo=False)
    torch.manual_seed(0)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    if way == torch_programs.FRONT:
        return run_on_front(rank, f"{store_file}-{key}", name, world)
    backend = "dldist" if way == "dldist" else "gloo"
    # A store per world: torch needs new keys, and a file needs no port.
    store = dist.FileStore(f"{store_file}-{key}", world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        assert dist.get_backend() == backend
        assert uses_dldist(dist.group.WORLD) == (way != "gloo")
        return plain(torch_programs.load(name)())
    finally:
        if way == "gloo":
            kept_works.extend(dist.distributed_c10d._world.pg_map)
        dist.destroy_process_group()


def uses_dldist(group):
    return "dldist.torch" in sys.modules and sys.modules["dldist.torch._runner"].runner_of(group) is not None


def plain(tree):
    """Replace the tree's tensors by NumPy arrays, to send them without torch's shared memory."""
    if isinstance(tree, AsyncCollectiveTensor):
        tree = tree.wait()
    if isinstance(tree, torch.Tensor):
        tensor = tree.detach().cpu()
        # NumPy has no bfloat16; every bfloat16 value is exact in float32.
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    return tree
