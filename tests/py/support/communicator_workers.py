"""A communicator with mpi4py's names, and ranks that make a World of it."""

import dldist


class StoreComm:
    """A communicator over a store, with the methods of mpi4py that World.from_mpi uses."""

    def __init__(self, store, rank, size):
        self.store, self.rank, self.size = store, rank, size
        self.ncalls = 0
        self.texts = []
        """The objects of rank 0, by call."""

    def allgather(self, text):
        self.ncalls += 1
        self.store.set(f"{self.ncalls}/{self.rank}", text)
        texts = [self.store.get(f"{self.ncalls}/{rank}").decode() for rank in range(self.size)]
        self.texts.append(texts[0])
        return texts


def meet(channel, address, rank, size):
    """Make a world, and return its ranks' objects and the transport to each."""
    if rank == 0:
        store = dldist.TCPStore("::", 0, is_master=True, wait_for_workers=False, secret="")
        channel.send(store.port)
    else:
        store = dldist.TCPStore(address, channel.recv(), secret="")
    comm = StoreComm(store, rank, size)
    with dldist.World.from_mpi(comm, host=address, timeout=20) as world:
        found = world.all_gather_object(rank)
        for other in range(size):
            if other != rank:
                world.send_object("", other) if rank < other else world.recv_object(other)
        transports = [member.transport for member in world.members]
    if rank == 0:
        channel.recv()  # the server must outlive the other ranks
    return found, transports
