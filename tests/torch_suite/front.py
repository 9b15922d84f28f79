"""What stands in the place of torch.distributed for the aim "front": dldist, torch's own for what dldist does not have, and stand-ins.

Modules of torch find this in themselves while torch is being imported, so it must not import torch itself.
"""

import pathlib
import sys

import dldist
from dldist import distributed_c10d

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "py"))

import thread_ranks  # noqa: E402


def __getattr__(name):
    for ours in (dldist, distributed_c10d):
        if hasattr(ours, name):
            return getattr(ours, name)
    import torch.distributed

    return getattr(torch.distributed, name)


class ThreadLocalWorld(thread_ranks.WorldOfThread):
    """A world for each rank, where ranks are threads."""

    _get_world = thread_ranks.WorldOfThread._own


def wait_for_futures(futures):
    """torch.futures.wait_all for futures of dldist."""
    return [future.wait() for future in futures]


STORE_CALLS = ("set", "get", "add", "compare_set", "delete_key", "check", "wait")
# C++ calls a store's methods only as long as somebody holds the object of Python.
stores_given = []


def torchs_store(store):
    """A store of torch that hands all calls on to one of dldist."""
    import torch.distributed

    def handing_on(name):
        return lambda _self, *arguments: getattr(store, name)(*arguments)

    stores_given.append(type("Store", (torch.distributed.Store,), {name: handing_on(name) for name in STORE_CALLS})())
    return stores_given[-1]


def agent_of_rpc(store, *arguments):
    """TensorPipeAgent, which is in C++ and takes torch's stores alone."""
    import torch

    return torch._C._distributed_rpc.TensorPipeAgent(torchs_store(store), *arguments)
