"""Workers that start the ranks of the tests of torch's backend "dldist". See c10d_team.py. No
pytest here, so that the children start faster."""

import datetime


def cases(channel, module_and_way, port, rank, size):
    """Run the functions of a module that the parent names, with the rank and size, until it sends
    None.

    Groups are made in C++ or in Python.
    """
    import importlib
    import os
    import warnings

    module_name, way = module_and_way
    os.environ["DLDIST_TORCH_BACKEND"] = way
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # servers warn about names of the loopback
    warnings.simplefilter("ignore", FutureWarning)  # torch's warnings about old names of calls
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
