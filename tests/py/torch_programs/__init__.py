"""PyTorch programs that know nothing of the backend they run on.

A program is a function without arguments. It finds a default group, made by init_process_group with the backend's name, trains or
communicates with torch's own means, and returns what came out: a tree of tensors, numbers and strings, which has to be the same on
every backend.

    @program(worlds=[2, 4])
    def sum_of_ranks():
        total = torch.tensor([dist.get_rank()])
        dist.all_reduce(total)
        return total
"""

import importlib
from dataclasses import dataclass

MODULES = ["ddp", "messages", "optimizers", "sharded", "tensors"]
FRONT = "dldist's front"  # the backend of which torch knows nothing: DDP itself calls dldist
AS_GLOO = "dldist as gloo"  # programs ask for "gloo", and dldist replaces it
EXACT = 0.0
# Four addends: backends add in orders of their own, and each addition of float32 rounds by 2^-24 of what it makes.
ORDER_OF_SUMS = 1e-5
# For programs with Adam. Its first step takes the sign of a gradient where that is far above eps: with torch's own eps, a gradient that is
# nothing but rounding makes a whole step, to the one side or the other.
ADAM = {"lr": 0.01, "eps": 1e-3}


@dataclass(frozen=True)
class Program:
    name: str
    module: str
    worlds: tuple
    # How far, of the largest value, results on more than two ranks may be apart. On two ranks they have the same bits: a + b is b + a.
    tolerance: float


def program(worlds=(2,), tolerance=ORDER_OF_SUMS):
    def mark(function):
        function.program = Program(function.__name__, function.__module__, tuple(worlds), tolerance)
        return function

    return mark


def load(name):
    """The function of the program."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"torch_programs.{module}"), function)
