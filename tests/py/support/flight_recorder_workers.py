"""Workers of the flight recorder tests' ranks. See test_flight_recorder.py. Without pytest, so that
the children start faster."""

import array
import time

import dldist
from dldist import flight_recorder

LIMIT_S = 20.0


def floats(*values):
    return array.array("f", values)


def every_operation(group):
    """Call every operation once, in the same order on every rank."""
    size, root = group.size, group.rank == 0
    one, all_ = floats(1, 2), floats(*[0] * (2 * size))

    def many():
        return [floats(1, 2) for _ in range(size)]

    group.all_reduce(one)
    group.all_reduce_coalesced([floats(1), floats(1, 2)])
    group.broadcast(one)
    group.reduce(one)
    group.all_gather(many(), one)
    group.all_gather_single(all_, one)
    group.all_gather_coalesced([[floats(1), floats(1, 2)] for _ in range(size)], [floats(1), floats(1, 2)])
    group.all_gather_single_coalesced([all_], [one])
    group.gather(one, many() if root else None)
    group.gather_single(one, all_ if root else None)
    group.scatter(one, many() if root else None)
    group.scatter_single(one, all_ if root else None)
    group.reduce_scatter(one, many())
    group.reduce_scatter_single(one, all_)
    group.reduce_scatter_coalesced([one], [all_])
    group.all_to_all(many(), many())
    group.all_to_all_single(floats(*[0] * size), floats(*[0] * size))
    group.barrier()


def record_all(channel, port, rank, size, path):
    """Call every operation, and write a dump."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    with dldist.Group(store, rank, size, timeout=LIMIT_S) as group:
        every_operation(group)
        group.all_reduce(floats(1), async_op=True).wait()
        channel.send(flight_recorder.entries())
        channel.send(flight_recorder.dump(f"{path}{rank}"))


def send_and_receive(channel, port, rank, size, path):
    """Exchange only messages: rank 0 sends, rank 1 receives from any source."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    with dldist.Group(store, rank, size, timeout=LIMIT_S) as group:
        if rank == 0:
            group.send(floats(1, 2), 1)
            group.isend(floats(1, 2, 3), 1).wait()
        else:
            group.recv(floats(0, 0), 0)
            group.recv(floats(0, 0, 0))
        channel.send(flight_recorder.entries())
        channel.send(flight_recorder.dump(f"{path}{rank}"))


def send_between_collectives(channel, port, rank, size, path):
    """Call all_reduce, one message, all_reduce, two messages, all_reduce."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    with dldist.Group(store, rank, size, timeout=LIMIT_S) as group:
        for nmessages in range(3):
            for _ in range(nmessages):
                if rank == 0:
                    group.send(floats(1, 2), 1)
                else:
                    group.recv(floats(0, 0), 0)
            group.all_reduce(floats(1))
        channel.send(flight_recorder.entries())
        channel.send(flight_recorder.dump(f"{path}{rank}"))


def omit_the_last_rank(channel, port, rank, size, path):
    """Omit the last rank from a call, so that the other ranks time out."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    group = dldist.Group(store, rank, size, timeout=LIMIT_S)
    group.all_reduce(floats(1))
    if rank < size - 1:
        try:
            group.all_reduce(floats(1, 2, 3), timeout=0.3)
        except dldist.DistTimeoutError as error:
            channel.send(str(error))
    else:
        channel.send("")
    channel.recv(LIMIT_S)
    channel.send(flight_recorder.entries(only_active=True))
    channel.send(flight_recorder.dump(f"{path}{rank}"))


def c10d_names(channel, port, rank, size):
    """Use the default group and another one, by c10d's names."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=LIMIT_S)
    dldist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    group = dldist.new_group([1, 2], group_desc="mine")
    dldist.all_reduce(floats(1))
    if rank in (1, 2):
        dldist.broadcast(floats(1), 1, group=group)
    channel.send(dldist.distributed_c10d._dump_fr_trace())
    dldist.destroy_process_group()


def settings(channel):
    """Return the settings that the environment produced."""
    group = dldist.Group(None, 0, 1)
    for _ in range(5):
        group.all_reduce(floats(1))
    channel.send((flight_recorder.is_on(), flight_recorder.entries(), flight_recorder.default_path()))


def fail_settings(channel):
    try:
        dldist.Group(None, 0, 1)
    except ValueError as error:
        channel.send(str(error))


def make_code(channel, count):
    """Call from code compiled for one call; return the number of frame names after every 500 calls
    and at the end."""
    group = dldist.Group(None, 0, 1)
    seen = []
    for i in range(count):
        exec(compile(f"def f{i}():\n    call()\nf{i}()", f"file{i}", "exec"), {"call": group.barrier})
        if i % 500 == 0 or i == count - 1:
            seen.append([frame["name"] for frame in flight_recorder.entries()[-1]["frames"]])
    channel.send(seen)


def after_fork(channel):
    """A forked child must have its own recorder."""
    import os

    group = dldist.Group(None, 0, 1)
    group.all_reduce(floats(1))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        own = dldist.Group(None, 0, 1)
        own.barrier()
        names = [entry["profiling_name"] for entry in flight_recorder.entries()]
        os.write(write, ",".join(names).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 1000).decode()
    os.waitpid(pid, 0)
    channel.send((text, len(flight_recorder.entries())))


def time_calls(channel, calls):
    """Return the CPU time of `calls` small calls."""
    group = dldist.Group(None, 0, 1)
    tensor = floats(1)
    started = time.thread_time()
    for _ in range(calls):
        group.all_reduce(tensor)
    channel.send(time.thread_time() - started)
