"""Call spawn() in a script, in the way that the argument names."""

import functools
import json
import os
import signal
import sys
import time

import dldist
from dldist._launch.spawn import spawn


def in_group(i, word, queue=None):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert (rank, size) == (i, 2)
    store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)
    with dldist.Group(store, rank, size, timeout=20) as group:
        values = memoryview(bytearray(8)).cast("d")
        values[0] = i + 1
        group.all_reduce(values)
    if queue is not None:
        queue.put(word)
    return word * (i + 1), values[0], "x" * 200_000


def as_the_tutorial_does(i, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    dldist.init_process_group("gloo", rank=i, world_size=2)
    hosts = [None, None]
    dldist.all_gather_object(hosts, i)
    dldist.destroy_process_group()
    return hosts


def fails(i):
    store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)
    with dldist.Group(store, i, 3, timeout=20) as group:
        if i == 1:
            raise LookupError("no such thing")
        group.barrier()


def dies(i):
    if i == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def dies_and_leaves_a_child(i):
    if i == 0:
        if os.fork() == 0:
            os.closerange(0, 3)  # the test reads them until end of file
            time.sleep(10)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def returns_much(i):
    return bytes(1 << 22)


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


def returns_an_unreadable_object(i):
    return Unreadable()


def hangs(i):
    os.write(1, f"hangs {os.getpid()}\n".encode())  # in one piece, as the other process also writes
    time.sleep(60)


def adder(extra):
    return lambda i, base: base + i + extra


def show(error):
    cause = error.__cause__
    print(json.dumps([type(error).__name__, str(error), type(cause).__name__, str(cause)]))


if __name__ == "__main__":
    how = sys.argv[1]
    try:
        if how == "results":
            import multiprocessing

            queue = multiprocessing.get_context("spawn").Queue()
            results = spawn(in_group, ("ab", queue), 2)
            inner = spawn(adder(7), args=(10,), nprocs=1) + spawn(functools.partial(max, 1), args=(), nprocs=2)
            print(json.dumps([[r[:2] for r in results], [len(r[2]) for r in results], queue.get(timeout=5), inner]))
        elif how == "own place":
            print(json.dumps(spawn(as_the_tutorial_does, (int(sys.argv[2]),), nprocs=2)))
        elif how == "fails":
            spawn(fails, nprocs=3)
        elif how == "dies":
            spawn(dies, nprocs=2)
        elif how == "dies as a parent":
            spawn(dies_and_leaves_a_child, nprocs=2, timeout=6)
        elif how == "is cut off":
            context = spawn(returns_much, nprocs=1, join=False)
            assert context._running[0].channel.poll(15)
            os.kill(context.pids()[0], signal.SIGKILL)  # more output follows than fits into a pipe
            context.join()
        elif how == "unreadable":
            try:
                spawn(returns_an_unreadable_object, nprocs=1)
            except ValueError as error:
                print(json.dumps([str(error), *error.__notes__]))
        elif how == "late":
            spawn(hangs, nprocs=2, timeout=1.0)
        elif how == "context":
            context = spawn(hangs, nprocs=2, join=False)
            began = context.join(timeout=0.2)
            texts = [repr(context)]
            context.terminate()
            texts.append(repr(context))
            assert texts == [f"<dldist.ProcessContext: 2 processes, {n} running, pids {context.pids()}>" for n in (2, 0)], texts
            print(json.dumps([began, context.join(), [os.path.exists(f"/proc/{pid}") for pid in context.pids()]]))
        else:
            spawn(hangs, nprocs=2)
    except dldist.DistError as error:
        show(error)
