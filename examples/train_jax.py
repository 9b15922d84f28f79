"""Data-parallel training in JAX: a Reducer averages the gradients between two compiled functions.

    python examples/train_jax.py                    # starts two processes itself
    dlrun --nproc-per-node 4 examples/train_jax.py  # or torchrun, mpirun -n 4 python ..., srun

The network is the same as in train_numpy.py, and the losses equal a single process's with all data.
JAX computes the gradients and does not know of other processes. (With dldist.functional, the
averages can be compiled, too.)
"""

import hashlib
import sys

import dldist
import dldist.functional as F
import jax
import jax.numpy as jnp
import numpy as np

STEPS = 300
RATE = 0.03
POINTS, HIDDEN = 1024, 32


def say(text):
    # One write per line, as the processes share the terminal.
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


loss_and_gradients = jax.jit(jax.value_and_grad(loss_of))


@jax.jit
def update(weights, gradients):
    return jax.tree.map(lambda weight, gradient: weight - RATE * gradient, weights, gradients)


def train():
    rank, size = dldist.get_rank(), dldist.get_world_size()
    # Each rank takes every size-th point.
    x = jnp.linspace(-jnp.pi, jnp.pi, POINTS)[rank::size, None]
    y = jnp.sin(x)
    leaves, tree = jax.tree.flatten(new_weights())
    reducer = dldist.Reducer(leaves)
    weights = jax.tree.unflatten(tree, reducer.broadcast_parameters())
    for number in range(STEPS + 1):
        loss, gradients = loss_and_gradients(weights, x, y)
        # JAX computes asynchronously: a bucket is sent as soon as its gradients are ready.
        averages = reducer.reduce(jax.tree.leaves(gradients))
        weights = update(weights, jax.tree.unflatten(tree, averages))
        if number % 100 == 0:
            loss = F.all_reduce(loss, "avg")
            if rank == 0:
                say(f"step {number}, loss {loss:.5f}")
    digest = hashlib.sha256(b"".join(np.asarray(weight).tobytes() for weight in jax.tree.leaves(weights)))
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
