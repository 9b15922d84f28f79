"""A parameter server with messages: workers send gradients and receive the newest weights.

    python examples/parameter_server.py                    # starts a server and two workers itself
    dlrun --nproc-per-node 4 examples/parameter_server.py  # or torchrun, mpirun, srun

Rank 0 is the server. It takes gradients in order of arrival, so a slow worker does not delay the
others. The workers fit a straight line, each to its own points.
"""

import sys

import dldist
import numpy as np

STEPS = 200
RATE = 0.1
SLOPE, OFFSET = 3.0, -1.0


def say(text):
    # One write per line, as the processes share the terminal.
    sys.stdout.write(f"rank {dldist.get_rank()}: {text}\n")
    sys.stdout.flush()


def serve():
    workers = dldist.get_world_size() - 1
    weights, gradient = np.zeros(2), np.empty(2)
    updates = dict.fromkeys(range(1, workers + 1), 0)
    for _ in range(STEPS * workers):
        worker = dldist.recv(gradient)  # from any rank; returns the rank
        weights -= RATE * gradient
        updates[worker] += 1
        dldist.send(weights, worker)
    say(f"the line is {weights[0]:.3f} x + {weights[1]:.3f}, after updates by rank {updates}")


def work():
    rng = np.random.default_rng(dldist.get_rank())
    weights = np.zeros(2)
    losses = []
    for _ in range(STEPS):
        x = rng.uniform(-1, 1, size=32)
        error = weights[0] * x + weights[1] - (SLOPE * x + OFFSET)
        losses.append((error**2).mean())
        dldist.send(np.array([(error * x).mean(), error.mean()]), 0)
        dldist.recv(weights, 0)
    say(f"the loss fell from {losses[0]:.3f} to {losses[-1]:.6f}")


def main(_=None):
    """Run one rank. spawn() passes the rank, which the world also knows."""
    dldist.init_process_group()
    if dldist.get_rank() == 0:
        serve()
    else:
        work()
    dldist.destroy_process_group()


if __name__ == "__main__":
    if dldist.is_launched():
        main()
    else:
        dldist.spawn(main, nprocs=3)
