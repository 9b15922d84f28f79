"""Data-parallel training in JAX: the whole step is compiled, with the average over the ranks in it.

    python examples/train_jax.py                               # starts two processes by itself
    dlrun --nproc-per-node 4 examples/train_jax.py             # so do torchrun, mpirun -n 4 python ..., srun

The same network as in train_numpy.py. JAX finds the gradients, and knows nothing of other processes.
"""

import hashlib
import sys

import jax
import jax.numpy as jnp
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
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "hidden": jax.random.normal(keys[0], (1, HIDDEN)),
        "bias": jax.random.normal(keys[1], (HIDDEN,)),
        "output": jax.random.normal(keys[2], (HIDDEN, 1)) / HIDDEN,
    }


def loss_of(weights, x, y):
    hidden = jnp.tanh(x @ weights["hidden"] + weights["bias"])
    return jnp.mean((hidden @ weights["output"] - y) ** 2)


@jax.jit
def step(weights, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    # One operation for all of them, the loss included.
    loss, gradients = F.all_reduce_tree((loss, gradients), "avg")
    return loss, jax.tree.map(lambda weight, gradient: weight - RATE * gradient, weights, gradients)


def train():
    rank, size = dldist.get_rank(), dldist.get_world_size()
    # Every rank takes each size-th point.
    x = jnp.linspace(-jnp.pi, jnp.pi, POINTS)[rank::size, None]
    y = jnp.sin(x)
    weights = jax.tree.map(F.broadcast, new_weights())
    for number in range(STEPS + 1):
        loss, weights = step(weights, x, y)
        if number % 100 == 0 and rank == 0:
            say(f"step {number}, loss {loss:.5f}")
    digest = hashlib.sha256(b"".join(np.asarray(weight).tobytes() for weight in jax.tree.leaves(weights)))
    say(f"trained on {len(x)} points, weights {digest.hexdigest()[:16]}")


def main(_=None):
    """Of every rank; spawn() gives the number, which the world knows, too."""
    dldist.init_process_group()
    train()
    # Compiled calls may be under way still.
    F.barrier()
    dldist.destroy_process_group()


if __name__ == "__main__":
    if dldist.is_launched():
        main()
    else:
        dldist.spawn(main, 2)
