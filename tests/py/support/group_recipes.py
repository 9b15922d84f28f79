"""Groups as libraries for training and serving large models make them: from c10d's private names,
with or without a default group.

Only the root differs: "dldist" or "torch.distributed".
"""

import array
import importlib
import os
import pathlib
import pickle
import socket
import time
from datetime import timedelta

from ports import reserve_port

LIMIT = timedelta(seconds=20)


def named(root, module=None):
    return importlib.import_module(f"{root}.{module}" if module else root)


def make_group(root, name, init_method, rank, world_size, backend=None, timeout=None, options=None):
    """Make a group of processes that meet at a URL and need no common default group."""
    c10d = named(root, "distributed_c10d")
    found, rank, world_size = next(c10d.rendezvous(init_method, rank, world_size, timeout=timeout or c10d.default_pg_timeout))
    found.set_timeout(LIMIT)
    pg, _ = c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        c10d.Backend(backend) if backend else c10d.Backend("undefined"),
        c10d.PrefixStore(name, found),
        group_name=name,
        timeout=timeout or c10d.default_pg_timeout,
        **(options or {}),
    )
    c10d._world.pg_group_ranks[pg] = {member: member for member in range(world_size)}
    return pg


def tensor(root, value, count=4):
    """Make a tensor. PyTorch takes long to import; with dldist, an array.array is enough."""
    if root == "dldist":
        return array.array("f", [value] * count)
    import torch

    return torch.full((count,), float(value))


def device_of(root):
    if root == "dldist":
        return "cpu"
    import torch

    return torch.device("cpu")


def weights_to_engines(root, folder, names_of_options):
    """Of four processes in worlds of two, two train and two serve. A group for that purpose sends
    rank 0's weights to the servers.

    A second such group of all four and a third of the trainers exist at the same time.
    """
    dist, rank = named(root), int(os.environ["RANK"])
    is_trainer = rank < 2
    pair = "train" if is_trainer else "serve"
    dist.init_process_group("gloo", init_method=f"file://{folder}/{pair}", rank=rank % 2, world_size=2, timeout=LIMIT)
    port = tensor(root, reserve_port() if rank == 0 else 0, 1)
    everyone = make_group(root, "all", f"file://{folder}/all", rank, 4, "gloo", LIMIT, {names_of_options[0]: None})
    dist.broadcast(port, src=0, group=everyone)
    place = f"tcp://127.0.0.1:{int(port[0])}"
    found = []
    if rank != 1:
        group = make_group(root, "weights", place, max(rank - 1, 0), 3, "gloo", LIMIT, {names_of_options[-1]: None})
        x = tensor(root, 7 if rank == 0 else 0)
        dist.broadcast(x, src=0, group=group)
        found += [list(map(float, x)), group.rank(), dist.get_world_size(group), dist.get_process_group_ranks(group)]
    own = make_group(root, f"own {pair}", f"file://{folder}/own-{pair}", rank % 2, 2)
    for group in (everyone, own, None):
        x = tensor(root, rank)
        dist.all_reduce(x, group=group)
        found.append(float(x[0]))
    everything = [None] * 4
    dist.all_gather_object(everything, {"rank": rank}, group=everyone)
    found += [everything, dist.get_backend(everyone), named(root, "distributed_c10d")._get_process_group_name(own)]
    dist.barrier(group=everyone)
    dist.destroy_process_group(own)
    x = tensor(root, 1)
    dist.all_reduce(x, group=everyone)
    dist.destroy_process_group()
    return [*found, float(x[0]), dist.is_initialized()]


def stateless(root, folder):
    """Groups unknown to any registry: a ProcessGroup with an added backend, over a rendezvous
    store."""
    dist, c10d = named(root), named(root, "distributed_c10d")
    rendezvous = named(root, "rendezvous").rendezvous
    rank = int(os.environ["RANK"])
    found = []
    for name, number, size in (("all", rank, 3), ("reversed", 2 - rank, 3)):
        url = f"file://{folder}/{name}"
        store, number, size = next(rendezvous(url, number, size, timeout=LIMIT))
        store.set_timeout(c10d._get_default_timeout(c10d.Backend("gloo")))
        prefixed = c10d.PrefixStore(url, store)
        pg = c10d.ProcessGroup(prefixed, number, size)
        backend = c10d.ProcessGroupGloo(prefixed, number, size, timeout=LIMIT)
        kind = c10d.ProcessGroup.BackendType.GLOO
        pg._set_default_backend(kind)
        backend._set_sequence_number_for_group()
        pg._register_backend(device_of(root), kind, backend)
        x = tensor(root, rank + 1)
        dist.all_reduce(x, group=pg, op=dist.ReduceOp.MAX)
        y = tensor(root, number)
        pg.broadcast(y, root=2).wait()
        z = [tensor(root, 0) for _ in range(3)]
        pg.allgather([z], [tensor(root, rank)]).wait()
        found.append((float(x[0]), float(y[0]), [float(each[0]) for each in z], pg.rank(), pg.size(), dist.is_initialized()))
        pg.barrier().wait()
        pg.shutdown()
        c10d._unregister_process_group(pg.group_name)
    return found


class ByStore:
    """A group that has only a store: objects and barriers use numbered keys, which it deletes."""

    def __init__(self, store, rank, size):
        self.store, self.rank, self.size = store, rank, size
        self.sent = 0
        self.barriers = 0

    def broadcast(self, obj, src):
        self.sent += 1
        key = f"broadcast/{src}/{self.sent}"
        if self.rank == src:
            self.store.set(key, pickle.dumps(obj))
            return obj
        obj = pickle.loads(self.store.get(key))
        if self.store.add(f"{key}/read", 1) == self.size - 1:
            self.store.delete_key(key)
        return obj

    def barrier(self):
        self.barriers += 1
        self.store.set(f"barrier/{self.barriers}/{self.rank}", b"1")
        self.store.wait([f"barrier/{self.barriers}/{rank}" for rank in range(self.size)], LIMIT)


def by_store(root, folder):
    """Serve the store on a socket that the program opens and passes on."""
    dist, rank = named(root), int(os.environ["RANK"])
    place, descriptor = pathlib.Path(folder, "port"), None
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        descriptor = listener.fileno()
        place.with_suffix(".new").write_text(str(listener.getsockname()[1]))
        place.with_suffix(".new").rename(place)
    deadline = time.monotonic() + LIMIT.total_seconds()
    while not place.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    port = int(place.read_text())
    store = dist.TCPStore(
        host_name="127.0.0.1",
        port=port,
        world_size=3,
        is_master=rank == 0,
        timeout=LIMIT,
        use_libuv=False,
        master_listen_fd=descriptor,
    )
    if rank == 0:
        listener.detach()  # the store owns it from now on
    group = ByStore(store, rank, 3)
    found = [group.broadcast({"from": src} if src == rank else None, src) for src in (0, 2, 1)]
    group.barrier()
    found.append(store.check(["broadcast/0/1"]))
    group.barrier()
    group.barrier()
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
