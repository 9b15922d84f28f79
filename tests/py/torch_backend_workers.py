"""How the ranks of the tests of the backend "dldist" for torch are started; see c10d_team.py. No pytest here."""

import datetime


def cases(channel, what, port, rank, size):
    """Runs functions of a module, which get the rank and the size, until the parent names none. The groups are made in C++ or in Python."""
    import importlib
    import os
    import warnings

    module_name, way = what
    os.environ["DLDIST_TORCH_BACKEND"] = way
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # its servers complain about names that the loopback has not
    warnings.simplefilter("ignore", FutureWarning)  # of torch, about the older names of calls
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    module = importlib.import_module(module_name)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group(
        "dldist", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=20)
    )
    channel.send("ready")
    while True:
        name = channel.recv(300)
        if name is None:
            dist.destroy_process_group()
            return "closed"
        channel.send(getattr(module, name)(rank, size))
