"""Workers of the carrier tests: cases of other group tests, in groups over a carrier library."""

import importlib
import time

import c10d_cases
import dldist
import group_workers

LIMIT_S = 20.0


class CarrierBackend(c10d_cases.Cpu):
    """The backend, for the cases of c10d_cases."""

    def __init__(self, name):
        self.name = name
        self.config = repr(dldist.BackendConfig(name))


def cases(channel, how, port, rank, size):
    """Run functions of a c10d test module in a world of the backend until the parent sends None."""
    module_name, backend = how
    module = importlib.import_module(module_name)
    module.backend = CarrierBackend(backend)
    init(backend, port, rank, size)
    channel.send("ready")
    while True:
        name = channel.recv(300)
        if name is None:
            dldist.destroy_process_group()
            return "closed"
        start = time.monotonic()
        reply = (globals().get(name) or getattr(module, name))(rank, size)
        channel.send((reply, time.monotonic() - start))


def init(backend, port, rank, size):
    """Initialise the default world. MPI needs no store."""
    if backend == "mpi":
        dldist.init_process_group("mpi", timeout=LIMIT_S)
    else:
        store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
        dldist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LIMIT_S)
    assert (dldist.get_rank(), dldist.get_world_size(), dldist.get_backend()) == (rank, size, backend)


def member(channel, carrier, port, rank, size):
    """Run the cases of group_workers and of this module in a World with the carrier."""
    return group_workers.serve(channel, open_world(carrier, port, rank, size), {**vars(group_workers), **globals()})


def open_world(carrier, port, rank, size, **options):
    options = {"timeout": LIMIT_S, **options}
    if carrier == "mpi":
        return dldist.World(carrier=carrier, **options)
    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    return dldist.World(store, rank, size, carrier=carrier, **options)


# ---- cases


def is_carried(group):
    """Each kind of call must use the library, and no other transport."""
    one, all_ = group_workers.make("f", [1.0]), [group_workers.make("f", [0.0]) for _ in range(group.size)]
    calls = [
        lambda: group.barrier(),
        lambda: group.broadcast(one, 0),
        lambda: group.all_reduce(one),
        lambda: group.reduce(one, 0),
        lambda: group.all_gather(all_, one),
        lambda: group.gather(one, all_ if group.rank == 0 else None, 0),
        lambda: group.scatter(one, all_ if group.rank == 0 else None, 0),
        lambda: group.reduce_scatter(one, all_),
        lambda: group.all_to_all(all_, all_[::-1]),
    ]
    counts = []
    for call in calls:
        before = group._ncarried
        call()
        counts.append(group._ncarried - before)
    return counts


def message_larger_than_its_buffer(rank, size):
    """Replace c10d_cases.shorter_and_longer_messages: here the error names only the buffer size."""
    f = c10d_cases.f
    if rank == 0:
        dldist.send(f(1), 1)
        dldist.send(f(1, 2, 3), 1)
    elif rank == 1:
        x = f(7, 8)
        assert dldist.recv(x, 0) == 0
        assert x.tolist() == [1, 8]
        with c10d_cases.raises(RuntimeError, "message too large: expected at most 8 bytes"):
            dldist.recv(f(0, 0), 0)
    dldist.barrier()


def in_world(carrier):
    """Make open_group of group_workers open groups over the carrier."""
    group_workers.open_group = lambda port, rank, size, **options: open_world(carrier, port, rank, size, **options)


def lose_last_rank(channel, carrier, port, rank, size, variant):
    in_world(carrier)
    return group_workers.lose_last_rank(channel, port, rank, size, variant)


def interrupted(channel, carrier, port, rank, size, variant):
    in_world(carrier)
    return group_workers.interrupted(channel, port, rank, size, variant)


def exit_without_close(channel, carrier, port, rank, size, how):
    in_world(carrier)
    return group_workers.exit_without_close(channel, port, rank, size, how)


def ranks_of_separate_worlds(channel, port, rank, size):
    """Make a group of ranks that MPI did not start together."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    try:
        dldist.World(store, rank, size, carrier="mpi", timeout=LIMIT_S)
    except dldist.DistError as error:
        return str(error)
    return "made"
