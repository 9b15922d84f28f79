"""Trainers push weights to running servers: dldist.reshard between two sets of ranks.

    python examples/push_weights.py                    # starts 3 trainers and 2 servers itself
    dlrun --nproc-per-node 5 examples/push_weights.py  # or torchrun, mpirun -n 5 python ..., srun

Ranks 0 to 2 are trainers, which hold rows of the weights. The other ranks are servers, which hold
columns, and answer requests with the current version while the next one is being written.
"""

import sys
import threading

import dldist
import numpy as np
from dldist.reshard import Layout, Link, Replicate, Shard

TRAINERS = 3
STEPS = 5
SHAPE = (301, 64)  # row counts of the trainers: 101, 101 and 99


def layout(mesh, dim):
    return Layout({"weights": (SHAPE, "float32", [Shard(dim)]), "scale": ((1,), "float32", [Replicate()])}, mesh)


def say(world, text):
    # One write per line, as the processes share the terminal.
    sys.stdout.write(f"rank {world.rank}: {text}\n")
    sys.stdout.flush()


def train(world):
    with Link(world, source=layout(TRAINERS, 0), delta=True) as link:
        weights = np.zeros(link.local_shapes["weights"], "float32")
        for step in range(1, STEPS + 1):
            weights += 1  # a step of training
            pushed = link.push({"weights": weights, "scale": np.full(1, step, "float32")}, version=step)
            for loss in pushed.lost:
                say(world, f"goes on without a server: {loss}")
        world.barrier()
    say(world, f"pushed {STEPS} versions")


def serve(world):
    with Link(world, destination=layout(world.size - TRAINERS, 1)) as link:
        link.receive()  # wait for a first version
        lock = threading.Lock()  # protects the version that a request uses
        fetcher = threading.Thread(target=fetch, args=(link, lock))
        fetcher.start()
        answered = 0
        while fetcher.is_alive() or answered == 0:
            with lock:
                answer(link)
            answered += 1
        fetcher.join()
        answer(link)
        world.barrier()
        say(world, f"served until version {link.version}, and every answer was of one version")


def fetch(link, lock):
    while link.version < STEPS:
        link.receive(flip=False)  # into the other slot, while requests are answered
        with lock:
            link.flip()


def answer(link):
    weights, scale = np.asarray(link.arrays["weights"]), np.asarray(link.arrays["scale"])
    assert (weights == scale[0]).all(), "weights of two versions"
    assert scale[0] == link.version


def main(_=None):
    """Run one rank. spawn() passes the rank, which the world also knows."""
    with dldist.World(timeout=60) as world:
        if world.rank < TRAINERS:
            train(world)
        else:
            serve(world)


if __name__ == "__main__":
    if dldist.is_launched():
        main()
    else:
        dldist.spawn(main, nprocs=5)
