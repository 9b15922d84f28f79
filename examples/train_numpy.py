"""Data-parallel training in NumPy: every rank has its share of the data, and gradients are averaged.

    python examples/train_numpy.py                             # starts two processes by itself
    dlrun --nproc-per-node 4 examples/train_numpy.py           # so do torchrun, mpirun -n 4 python ..., srun

A network with one hidden layer learns the sine. The ranks end with the same weights, bit for bit, as all of them start with
the same and add the same gradients.
"""

import hashlib
import sys

import numpy as np

import dldist
import dldist.functional as F

STEPS = 300
RATE = 0.03
POINTS, HIDDEN = 1024, 32


def say(text):
    # One write a line, as the processes share the terminal.
    sys.stdout.write(f"rank {dldist.get_rank()}: {text}\n")
    sys.stdout.flush()


def new_weights():
    rng = np.random.default_rng(0)
    return {
        "hidden": rng.normal(size=(1, HIDDEN)),
        "bias": rng.normal(size=HIDDEN),
        "output": rng.normal(size=(HIDDEN, 1)) / HIDDEN,
    }


def loss_and_gradients(weights, x, y):
    """Mean squared error on the points of this rank, and its gradient by backpropagation."""
    hidden = np.tanh(x @ weights["hidden"] + weights["bias"])
    error = hidden @ weights["output"] - y
    back = 2 * error / len(x)
    back_hidden = (back @ weights["output"].T) * (1 - hidden**2)
    gradients = {"hidden": x.T @ back_hidden, "bias": back_hidden.sum(0), "output": hidden.T @ back}
    return (error**2).mean(), gradients


def train():
    rank, size = dldist.get_rank(), dldist.get_world_size()
    # Every rank takes each size-th point.
    x = np.linspace(-np.pi, np.pi, POINTS)[rank::size, None]
    y = np.sin(x)
    # All weights would be the same anyway; with other ways to start, this is what makes them so.
    weights = {name: F.broadcast(value) for name, value in new_weights().items()}
    for step in range(STEPS + 1):
        loss, gradients = loss_and_gradients(weights, x, y)
        # One operation for all of them, the loss included.
        loss, gradients = F.all_reduce_tree((loss, gradients), "avg")
        for name, gradient in gradients.items():
            weights[name] = weights[name] - RATE * gradient
        if step % 100 == 0 and rank == 0:
            say(f"step {step}, loss {loss:.5f}")
    digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights)))
    say(f"trained on {len(x)} points, weights {digest.hexdigest()[:16]}")


def main(_=None):
    """Of every rank; spawn() gives the number, which the world knows, too."""
    dldist.init_process_group()
    train()
    dldist.destroy_process_group()


if __name__ == "__main__":
    if dldist.is_launched():
        main()
    else:
        dldist.spawn(main, 2)
