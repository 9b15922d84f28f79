"""Data-parallel training in NumPy: ranks share the data, and a Reducer averages the gradients.

    python examples/train_numpy.py                    # starts two processes itself
    dlrun --nproc-per-node 4 examples/train_numpy.py  # or torchrun, mpirun -n 4 python ..., srun

A network with one hidden layer learns the sine. The losses equal a single process's with all data.
All ranks end with bitwise identical weights, because they start with the same weights and add the
same gradients.
"""

import hashlib
import sys

import dldist
import dldist.functional as F
import numpy as np

STEPS = 300
RATE = 0.03
POINTS, HIDDEN = 1024, 32


def say(text):
    # One write per line, as the processes share the terminal.
    sys.stdout.write(f"rank {dldist.get_rank()}: {text}\n")
    sys.stdout.flush()


def new_weights():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, HIDDEN)), rng.normal(size=HIDDEN), rng.normal(size=(HIDDEN, 1)) / HIDDEN]


def backpropagate(weights, x, y, on_gradient):
    """Return the mean squared error on this rank's points. Calls on_gradient(index, array) for each
    gradient once it is known."""
    to_hidden, bias, to_output = weights
    hidden = np.tanh(x @ to_hidden + bias)
    error = hidden @ to_output - y
    back = 2 * error / len(x)
    on_gradient(2, hidden.T @ back)
    back_hidden = (back @ to_output.T) * (1 - hidden**2)
    on_gradient(1, back_hidden.sum(0))
    on_gradient(0, x.T @ back_hidden)
    return (error**2).mean()


def train():
    rank, size = dldist.get_rank(), dldist.get_world_size()
    # Each rank takes every size-th point.
    x = np.linspace(-np.pi, np.pi, POINTS)[rank::size, None]
    y = np.sin(x)
    weights = new_weights()
    reducer = dldist.Reducer(weights)
    # Here all ranks start with the same weights; in general, this call makes them equal.
    reducer.broadcast_parameters()
    for step in range(STEPS + 1):
        reducer.prepare_for_backward()
        loss = backpropagate(weights, x, y, reducer.mark_ready)
        reducer.finish()
        for weight, gradient in zip(weights, reducer.gradients()):
            weight -= RATE * gradient
        if step % 100 == 0:
            loss = F.all_reduce(loss, "avg")
            if rank == 0:
                say(f"step {step}, loss {loss:.5f}")
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights))
    say(f"trained on {len(x)} points, weights {digest.hexdigest()[:16]}")


def main(_=None):
    """Run one rank. spawn() passes the rank, which the world also knows."""
    dldist.init_process_group()
    train()
    dldist.destroy_process_group()


if __name__ == "__main__":
    if dldist.is_launched():
        main()
    else:
        dldist.spawn(main, nprocs=2)
