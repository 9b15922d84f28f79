"""One rank: runs programs on the backends it is told, one after the other, each in a world of its own."""

import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor

import torch_programs

TIMEOUT = timedelta(seconds=30)
# A group of Gloo ends the process if the last to let go of it is one of its own threads, with a future that PowerSGD has chained; and
# freeing one may wait for ever for a thread of it that lets go of a future. They are kept.
kept = []


def serve(channel, rank, store_file):
    """Answers (program, backend, ranks, key) with ("done", result) or ("failed", traceback), until it hears None."""
    torch.set_num_threads(1)
    while (command := channel.recv(timeout=600)) is not None:
        try:
            channel.send(("done", run(rank, store_file, *command)))
        except Exception:
            channel.send(("failed", traceback.format_exc()))


def run_on_front(rank, store_file, name, world):
    """In a world of dldist, with DDP on dldist's Reducer."""
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
        import dldist.torch  # registers the backend, as the entry point of an installed dldist does

        dldist.torch.install(as_gloo=way == torch_programs.AS_GLOO)
    elif "dldist.torch" in sys.modules:
        sys.modules["dldist.torch"].install(as_gloo=False)
    torch.manual_seed(0)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    if way == torch_programs.FRONT:
        return run_on_front(rank, f"{store_file}-{key}", name, world)
    backend = "dldist" if way == "dldist" else "gloo"
    # A store for each world: torch wants fresh keys, and a file needs no port.
    store = dist.FileStore(f"{store_file}-{key}", world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        assert dist.get_backend() == backend
        assert is_ours(dist.group.WORLD) == (way != "gloo")
        return plain(torch_programs.load(name)())
    finally:
        if way == "gloo":
            kept.extend(dist.distributed_c10d._world.pg_map)
        dist.destroy_process_group()


def is_ours(group):
    return "dldist.torch" in sys.modules and sys.modules["dldist.torch._runner"].runner_of(group) is not None


def plain(tree):
    """The same tree with NumPy's arrays for tensors: it travels without torch's shared memory."""
    if isinstance(tree, AsyncCollectiveTensor):
        tree = tree.wait()
    if isinstance(tree, torch.Tensor):
        tensor = tree.detach().cpu()
        # NumPy knows no bfloat16; every one of its values is a float32.
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    return tree
