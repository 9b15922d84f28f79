"""Workers of the ranks of test_torch_backend_faults.py, each in its own process. No pytest here."""

import datetime
import os
import signal
import threading
import time

LIMIT = datetime.timedelta(seconds=20)
SHORT = datetime.timedelta(milliseconds=300)


def start(port, rank, size, backend="dldist", **named):
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    import dldist.torch
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=named.pop("timeout", LIMIT), **named)
    return torch, dist, dldist


def error_report(call):
    """Return the classes and the text of a call's exception, and the seconds that it took."""
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        names = [kind.__module__.partition(".")[0] + "." + kind.__name__ for kind in type(error).__mro__]
        return names, str(error), time.monotonic() - begin
    return [], "nothing was raised", time.monotonic() - begin


def killed(channel, port, rank, size):
    torch, dist, _ = start(port, rank, size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    pending = dist.all_reduce(torch.ones(2), async_op=True).wait()
    channel.send(pending)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reports = [error_report(lambda: model(torch.ones(1, 4)).sum().backward()), error_report(lambda: dist.all_reduce(torch.ones(2)))]
    error = dist.group.WORLD._get_backend(torch.device("cpu")).get_error() == torch._C._distributed_c10d.ErrorType.COMM_ERROR
    work_error = error_report(lambda: dist.barrier(async_op=True).get_future().wait())
    dist.destroy_process_group()
    return reports, error, work_error


def timed_out(channel, port, rank, size):
    torch, dist, _ = start(port, rank, size)
    opts = dist.AllreduceOptions()
    opts.timeout = SHORT
    reports = error_report(lambda: dist.group.WORLD.allreduce([torch.ones(1)], opts).wait()) if rank == 0 else None
    channel.send("done")
    channel.recv()
    return reports


def groups_timeout(channel, port, rank, size):
    torch, dist, _ = start(port, rank, size)
    group = dist.new_group()
    group.set_timeout(SHORT)  # does not need the other ranks
    reports = error_report(lambda: dist.all_reduce(torch.ones(1), group=group)) if rank == 0 else None
    channel.send("done")
    channel.recv()
    return reports


def monitored(channel, port, rank, size):
    _, dist, _ = start(port, rank, size)
    reports = error_report(lambda: dist.group.WORLD.monitored_barrier(SHORT, wait_all_ranks=True)) if rank == 0 else None
    channel.send("done")
    channel.recv()
    return reports


def mismatched(channel, port, rank, size):
    torch, dist, _ = start(port, rank, size)
    return error_report(lambda: dist.all_reduce(torch.ones(2 + rank)))


def aborted(channel, port, rank, size):
    torch, dist, _ = start(port, rank, size)
    if rank == 1:
        channel.recv()
        return None
    work = dist.group.WORLD.allreduce([torch.ones(1)])
    threading.Timer(0.2, lambda: dist.distributed_c10d._abort_process_group()).start()
    return error_report(work.wait)


def init_again(channel, port, rank, size):
    """Starting, ending and starting again must work, on stores of every kind."""
    torch, dist, dldist = start(port, rank, size)
    sums = []
    for store in (dist.PrefixStore("2", dist.group.WORLD.get_group_store()), python_store(dist, port), None):
        x = torch.ones(1)
        dist.all_reduce(x)
        sums.append(x.item())
        dist.destroy_process_group()
        where = {"store": store} if store else {"init_method": f"tcp://127.0.0.1:{port}"}
        if store is None:
            # The server is another process. PyTorch 2.14 only finds it at this address.
            os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("dldist", rank=rank, world_size=size, **where)
    dist.destroy_process_group()
    return sums


def python_store(dist, port):
    class Store(dist.Store):
        """A store that forwards every call to a TCPStore."""

        def __init__(self):
            super().__init__()
            self.inner = dist.PrefixStore("py", dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))

        def set(self, key, value):
            self.inner.set(key, value)

        def get(self, key):
            return self.inner.get(key)

        def add(self, key, value):
            return self.inner.add(key, value)

        def check(self, keys):
            return self.inner.check(keys)

        def wait(self, keys, timeout=LIMIT):
            return self.inner.wait(keys, timeout)

        def compare_set(self, key, expected, desired):
            return self.inner.compare_set(key, expected, desired)

        def delete_key(self, key):
            return self.inner.delete_key(key)

    return Store()


def debugged(channel, port, rank, size):
    torch, dist, dldist = start(port, rank, size)
    assert dldist.torch.world_of().size == size
    x = torch.ones(1)
    dist.all_reduce(x)
    group = dist.new_group()
    dist.all_reduce(x, group=group)
    return x.item()


def other_devices(channel, port, rank, size):
    """In one group, tensors on the CPU and on "meta" must use different backends."""
    import torch
    import torch.distributed as dist

    calls = []

    class Stand(dist.ProcessGroup):
        def __init__(self, rank, size):
            super().__init__(rank, size)

        def allreduce(self, tensors, opts):
            calls.append(tensors[0].device.type)
            work = torch.futures.Future()
            work.set_result(tensors)
            return torch._C._distributed_c10d._create_work_from_future(work)

        def getGroupName(self):
            return self.name_given

        def _set_group_name(self, name):
            self.name_given = name

        def _set_group_desc(self, desc):
            pass

        def shutdown(self):
            calls.append("shutdown")

        group_name = property(getGroupName)

    dist.Backend.register_backend("stand", lambda store, rank, size, timeout: Stand(rank, size), devices=["meta"])
    _, _, dldist = start(port, rank, size, "cpu:dldist,meta:stand")
    group = dist.group.WORLD
    assert [device.type for device in group._device_types] == ["cpu", "meta"]
    x = torch.ones(1)
    dist.all_reduce(x)
    for _ in range(2):
        dist.all_reduce(torch.ones(1, device="meta"))
    dist.all_reduce(x)
    assert error_report(lambda: group._get_backend(torch.device("cuda")))[0]
    part = dist.new_group()
    dist.all_reduce(torch.ones(1, device="meta"), group=part)
    assert len(dist.distributed_c10d._world.pg_map) == 4
    dist.destroy_process_group(part)
    assert len(dist.distributed_c10d._world.pg_map) == 2 and calls == ["meta"] * 3 + ["shutdown"]
    dist.destroy_process_group()
    return x.item(), calls


def gloo_for_the_cpu(channel, port, rank, size):
    """Another backend must be usable for the CPU."""
    torch, dist, dldist = start(port, rank, size, "cpu:gloo,cuda:dldist")
    x = torch.ones(1)
    dist.all_reduce(x)
    dist.barrier()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.destroy_process_group()
    return x.item(), backend.name()
