"""Workers that the tests run in child processes. See procs.py. Without pytest, so that the children
start faster."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import dldist

LOOPBACK = "127.0.0.1"
LONG = timedelta(seconds=30)


def describe(error):
    """Return an exception in a form that a child can send."""
    return [kind.__name__ for kind in type(error).__mro__], str(error), time.monotonic()


def tcp_server(channel, host=LOOPBACK, **options):
    """Serve a store until the parent's message."""
    store = dldist.TCPStore(host, 0, is_master=True, timeout=LONG, **options)
    channel.send(store.port)
    channel.recv(120)
    return store.num_keys()


def torch_server(channel, use_libuv=True):
    import torch.distributed

    store = torch.distributed.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, use_libuv=use_libuv)
    channel.send(store.port)
    channel.recv(120)


BLOCKING_CALLS = {
    "get": lambda store: store.get("absent"),
    "wait": lambda store: store.wait(["absent", "absent2"]),
    "queue_pop": lambda store: store.queue_pop("queue"),
    "barrier": lambda store: store.barrier(f"barrier-{os.getpid()}", 2),
}


def blocked_client(channel, port, names):
    """Block in every call of `names`, each in a thread with the one client; return how each ended.

    Sends a message when all are asleep.
    """
    import procs

    store = dldist.TCPStore(LOOPBACK, port, timeout=timedelta(seconds=60))
    outcome, tids = {}, {}

    def block(name):
        tids[name] = threading.get_native_id()
        try:
            outcome[name] = ("value", repr(BLOCKING_CALLS[name](store)), time.monotonic())
        except BaseException as error:
            outcome[name] = describe(error)

    threads = [threading.Thread(target=block, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    procs.poll_until(lambda: len(tids) == len(names), description="start of the threads")
    procs.wait_asleep(tids.values())
    channel.send("blocked")
    for thread in threads:
        thread.join(30)
    try:
        store.set("after", "1")
        store.get("after", timeout=timedelta(seconds=5))
        later = None
    except Exception as error:
        later = describe(error)
    return outcome, later


def joining_client(channel, port, world_size):
    """Join a master that waits for its workers."""
    channel.send("joining")
    store = dldist.TCPStore(LOOPBACK, port, world_size, False, LONG)
    channel.send("joined")
    channel.recv()
    return store.num_keys()


def secret_client(channel, port):
    """Use the secret of the environment."""
    store = dldist.TCPStore(LOOPBACK, port, timeout=timedelta(seconds=10))
    store.set("from-child", "1")
    return store.get("from-child")


def interruptible(channel, kind, place, call_name):
    """Block in a call until SIGINT; return the time of the KeyboardInterrupt, and whether the store
    works afterwards."""
    usable = None
    store = None
    channel.send("ready")
    try:
        if call_name == "connect":
            dldist.TCPStore(LOOPBACK, place, timeout=LONG)
        elif call_name == "wait_for_workers":
            dldist.TCPStore(LOOPBACK, 0, 2, True, LONG)
        elif call_name == "open":
            dldist.FileStore(place, timeout=LONG)
        else:
            store = open_store(kind, place)
            BLOCKING_CALLS[call_name](store)
        return "returned", time.monotonic(), None
    except KeyboardInterrupt:
        at = time.monotonic()
    if store is not None:
        store.set("after", "1")
        store.queue_push("queue", "item")
        usable = (store.get("after"), store.queue_pop("queue"), store.queue_len("queue"))
    return "interrupted", at, usable


def open_store(kind, place):
    if kind == "tcp":
        return dldist.TCPStore(LOOPBACK, place, timeout=LONG)
    if kind == "file":
        return dldist.FileStore(place, timeout=LONG)
    if kind == "prefix":
        return dldist.PrefixStore("p", dldist.TCPStore(LOOPBACK, place, timeout=LONG))
    return dldist.HashStore(timeout=LONG)


def user_signals(channel, kind, place):
    """Wait for a key during many SIGUSR1 signals; return the number handled during the wait."""
    handled = []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(time.monotonic()))
    store = open_store(kind, place)
    if kind == "hash":
        twin = store.clone()
        threading.Thread(target=lambda: (channel.recv(), twin.set("key", "v")), daemon=True).start()
    channel.send("ready")
    return store.get("key"), len(handled)


def handler_raises(channel, port):
    """The exception of a signal handler must end the wait."""

    def handler(*_):
        raise LookupError("from the handler")

    signal.signal(signal.SIGUSR1, handler)
    store = open_store("tcp", port)
    channel.send("ready")
    try:
        store.get("absent")
    except LookupError as error:
        store.set("after", "1")
        return str(error), store.get("after")


def forks(channel, kind, place, with_thread):
    """Fork with an open store; the child reports the error of using it and exits normally."""
    if kind == "tcp-master":
        store = dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=LONG)
    else:
        store = open_store(kind, place)
    store.set("before", "1")
    waiter = None
    if with_thread:
        import procs

        twin = store.clone() if kind == "hash" else store
        waiter = threading.Thread(target=lambda: twin.get("later"), daemon=True)
        waiter.start()
        procs.wait_at_rest([waiter.native_id])
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        lines = []
        for call in (lambda: store.get("before"), lambda: store.set("a", "1"), store.clone, lambda: store.num_keys()):
            try:
                lines.append(f"returned {call()!r}")
            except BaseException as error:
                lines.append(f"{type(error).__name__}: {error}")
        own = dldist.HashStore()
        own.set("mine", "1")
        lines.append(repr(own.get("mine")))
        os.write(write_end, "\n".join(lines).encode())
        os.close(write_end)
        sys.exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as file:
        lines = file.read().split("\n")
    deadline = time.monotonic() + 10
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        status = "hung"
    store.set("later", "1")
    if waiter is not None:
        waiter.join(10)
        status = status if not waiter.is_alive() else "parent's waiter hung"
    store.set("after", "2")
    return os.getpid(), pid, status, lines, store.get("before") + store.get("after")


def file_member(channel, path, world_size, keys):
    """Join a file store, set keys, and leave cleanly on a message, or stay until killed."""
    store = dldist.FileStore(path, world_size, timeout=timedelta(seconds=20))
    for key in keys:
        store.set(key, f"by {os.getpid()}")
    channel.send(len(store.list_keys()))
    channel.recv()
    del store
    return os.path.exists(path)


def file_adds(channel, path, count):
    store = dldist.FileStore(path, timeout=timedelta(seconds=40))
    channel.send("ready")
    channel.recv()
    values = [store.add("n", 1) for _ in range(count)]
    for index in range(count // 10):
        store.append("log", f"{os.getpid()}.{index};")
    channel.send("done")
    channel.recv()
    return values, store.get("log")


def lock_holder(channel, path):
    """Hold the file's gate lock (docs/contributing/file-store.md), like a slow writer."""
    import fcntl

    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 1 << 40)
        channel.send("locked")
        channel.recv()


def torch_popper(channel, port):
    """Park a torch client on a queue."""
    import procs
    import torch.distributed

    store = torch.distributed.TCPStore(LOOPBACK, port, is_master=False, timeout=LONG, wait_for_workers=False)
    thread = threading.Thread(target=store.queue_pop, args=("q",), daemon=True)
    thread.start()
    procs.wait_asleep([thread.native_id])
    channel.send("parked")
    channel.recv()


def torch_all_reduce(channel, port, rank, world_size):
    import torch
    import torch.distributed as dist

    store = dist.TCPStore(LOOPBACK, port, is_master=False, timeout=LONG, wait_for_workers=False)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=LONG)
    tensor = torch.full((4,), float(rank + 1))
    dist.all_reduce(tensor)
    dist.barrier()
    dist.destroy_process_group()
    return tensor[0].item()


def file_storm(channel, path):
    """Set one key to long values of one repeated letter, until killed."""
    store = dldist.FileStore(path, timeout=LONG)
    store.set("storm", "a" * 100)
    channel.send("begun")
    while True:
        for letter in "abcdefgh":
            store.set("storm", letter * 700)


def raise_in_del(channel):
    """Raise in __del__, which Python ignores."""
    class Ends:
        def __del__(self):
            raise LookupError("in __del__")

    cycle = [Ends()]
    cycle.append(cycle)
    return "done"
