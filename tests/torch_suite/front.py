"""The replacement of torch.distributed for the aim "front": dldist, torch's own functions that
dldist lacks, and stubs.

Modules of torch use this while torch is being imported, so it must not import torch itself.
"""

import pathlib
import sys

import dldist
from dldist import distributed_c10d

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "py" / "support"))

import thread_ranks  # noqa: E402


def __getattr__(name):
    for ours in (dldist, distributed_c10d):
        if hasattr(ours, name):
            return getattr(ours, name)
    import torch.distributed

    return getattr(torch.distributed, name)


class ThreadLocalWorld(thread_ranks.WorldOfThread):
    """A world for each rank if ranks are threads."""

    _get_world = thread_ranks.WorldOfThread._own


def wait_for_futures(futures):
    """torch.futures.wait_all for futures of dldist."""
    return [future.wait() for future in futures]


STORE_CALLS = ("set", "get", "add", "compare_set", "delete_key", "check", "wait")
# C++ calls a store's methods only while the Python object exists.
stores_given = []


def torchs_store(store):
    """Return a torch store that forwards all calls to a dldist store."""
    import torch.distributed

    def handing_on(name):
        return lambda _self, *arguments: getattr(store, name)(*arguments)

    stores_given.append(type("Store", (torch.distributed.Store,), {name: handing_on(name) for name in STORE_CALLS})())
    return stores_given[-1]


def agent_of_rpc(store, *arguments):
    """Create a TensorPipeAgent, which is in C++ and accepts only torch's stores."""
    import torch

    return torch._C._distributed_rpc.TensorPipeAgent(torchs_store(store), *arguments)
