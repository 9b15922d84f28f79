"""PyTorch programs that do not depend on their backend.

A program is a function without arguments. It finds a default group, made by init_process_group with
the backend's name, trains or communicates with torch's own functions, and returns its results: a
tree of tensors, numbers and strings, which must be the same on every backend.

    @program(worlds=[2, 4])
    def sum_of_ranks():
        total = torch.tensor([dist.get_rank()])
        dist.all_reduce(total)
        return total
"""

import importlib
from dataclasses import dataclass

MODULES = ["ddp", "messages", "optimizers", "sharded", "tensors"]
FRONT = "dldist's front"  # torch does not know this backend: DDP itself calls dldist
AS_GLOO = "dldist as gloo"  # programs request "gloo", and dldist replaces it
EXACT = 0.0
# Four addends: each backend has its own order; each float32 sum rounds by 2^-24 of itself.
ORDER_OF_SUMS = 1e-5
# For programs with Adam. With torch's own eps, a gradient that is only rounding error would cause a
# full step in either direction.
#
# The reason is that the first step uses a gradient's sign if the gradient is far above eps.
ADAM = {"lr": 0.01, "eps": 1e-3}


@dataclass(frozen=True)
class Program:
    name: str
    module: str
    worlds: tuple
    # The largest difference of results on over two ranks, relative to the largest value. On two
    # ranks they are bitwise equal: a + b is b + a.
    tolerance: float


def program(worlds=(2,), tolerance=ORDER_OF_SUMS):
    def mark(function):
        function.program = Program(function.__name__, function.__module__, tuple(worlds), tolerance)
        return function

    return mark


def load(name):
    """Return the function of the program."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"torch_programs.{module}"), function)
