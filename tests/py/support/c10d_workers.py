"""Workers of the c10d tests' ranks. See c10d_team.py. Without pytest, so that the children start
faster.

A case is an expression that every rank evaluates concurrently. The same text can be run with dldist
and with torch:

    dist        the library           me, other   this rank and, of two, the other one
    f(1, 2)     a tensor of float32   i(1, 2)     one of int64
    pair        a group of all ranks, in the opposite order
    first       a group of only rank 0: on other ranks the result of new_group for non-members
    gone        a group that has been destroyed
    GONE        the result of new_group for non-members
"""

import array
import datetime
import time
import warnings

LIMIT_S = 20.0


class Dldist:
    """dldist, with tensors of the standard library."""

    def __init__(self):
        import dldist

        self.dist = dldist

    def f(self, *values):
        return array.array("f", values)

    def i(self, *values):
        return array.array("q", values)

    def c(self, *values):
        import numpy

        return numpy.array(values, dtype="complex64")

    def new_reversed(self, size):
        return self.dist.new_group(list(range(size))[::-1], sort_ranks=False)


class Torch:
    """torch.distributed with Gloo."""

    def __init__(self):
        import torch
        import torch.distributed

        self.torch, self.dist = torch, torch.distributed

    def f(self, *values):
        return self.torch.tensor(values, dtype=self.torch.float32)

    def i(self, *values):
        return self.torch.tensor(values, dtype=self.torch.int64)

    def c(self, *values):
        return self.torch.tensor(values, dtype=self.torch.complex64)

    def new_reversed(self, size):
        return self.dist.new_group(list(range(size)))


def describe(error):
    return {"kinds": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}


def names_for(library, rank, size):
    dist = library.dist
    gone = dist.new_group(list(range(size)))
    dist.destroy_process_group(gone)
    return {
        "dist": dist,
        "me": rank,
        "other": 1 - rank,
        "f": library.f,
        "i": library.i,
        "c": library.c,
        "pair": library.new_reversed(size),
        "first": dist.new_group([0]),
        "gone": gone,
        "GONE": dist.GroupMember.NON_GROUP_MEMBER,
        "timedelta": datetime.timedelta,
    }


def check_usable(library, size):
    """Check that an all_reduce of the default group is still correct after a bad call."""
    tensor = library.f(1, 2)
    library.dist.all_reduce(tensor)
    assert tensor.tolist() == [size, 2 * size], f"an all_reduce after the call gave {tensor.tolist()}"


def evaluate(call, names):
    """Evaluate a call; return ("value", its repr) or ("error", its description)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "value", repr(eval(call, dict(names)))
        except Exception as error:
            return "error", describe(error)


def texts(channel, name, port, rank, size):
    """Evaluate calls that the parent sends, until it sends None."""
    library = {"dldist": Dldist, "torch": Torch}[name]()
    dist = library.dist
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    limit = datetime.timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    names = names_for(library, rank, size)
    channel.send("ready")
    while True:
        command = channel.recv(300)
        if command is None:
            dist.destroy_process_group()
            return "closed"
        call, ranks = command
        outcome = evaluate(call, names) if ranks is None or rank in ranks else ("value", None)
        try:
            check_usable(library, size)
            broken = None
        except Exception as error:
            broken = describe(error)
        channel.send((*outcome, broken))


def cases(channel, module_name, port, rank, size):
    """Run functions that the parent names, with the rank and size, until it sends None."""
    import importlib

    import dldist

    module = importlib.import_module(module_name)
    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    dldist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LIMIT_S)
    channel.send("ready")
    while True:
        name = channel.recv(300)
        if name is None:
            dldist.destroy_process_group()
            return "closed"
        start = time.monotonic()
        reply = getattr(module, name)(rank, size)
        channel.send((reply, time.monotonic() - start))
