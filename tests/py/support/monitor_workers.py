"""Workers of the ranks of test_monitor.py. Without pytest, so that the children start faster."""

import array
import ctypes
import os
import signal
import threading
import time

import dldist
from dldist import flight_recorder

LIMIT_S = 10.0


def open_world(port, rank, size, timeout=20.0, has_python_store=False):
    store = dldist.TCPStore("127.0.0.1", port, timeout=30.0)
    return dldist.World(FailingStore(store) if has_python_store else store, rank, size, timeout=timeout)


def await_file(path, since):
    """Return the seconds from `since` until the file exists, or None if it does not appear."""
    while time.monotonic() - since < LIMIT_S:
        if os.path.exists(path):
            return time.monotonic() - since
        time.sleep(0.01)
    return None


def await_report(text):
    """Return the report once it contains this text, or at the time limit."""
    deadline = time.monotonic() + LIMIT_S
    while text not in flight_recorder.report() and time.monotonic() < deadline:
        time.sleep(0.01)
    return flight_recorder.report()


def expect_timeout(group, seconds):
    try:
        group.all_reduce(array.array("f", [1.0]), timeout=seconds)
    except dldist.DistTimeoutError as error:
        return str(error)
    raise AssertionError("it did not time out")


def one_times_out(channel, port, rank, size, prefix, members):
    """Let rank 0 time out in a group of `members`; send the times until dumps, and reports."""
    world = open_world(port, rank, size)
    group = world
    if len(members) < size:
        group = world.split(members, "part") if rank in members else None
    world.barrier()
    if rank == 0:
        expect_timeout(group, 0.3)
        channel.send("timed out")
    since = channel.recv(LIMIT_S)
    seconds = await_file(f"{prefix}{rank}", since)
    report = await_report("has failed" if group is not None else "requests a dump")
    channel.send((seconds, report))
    channel.recv(LIMIT_S)  # other ranks' notifications may come through this store
    return dldist._core._monitor_request_dump()


def lagging(channel, port, rank, size, awaited, has_python_store=False):
    """Call an all_reduce that times out on all but the last rank; return rank 0's report once it
    contains `awaited`."""
    world = open_world(port, rank, size, has_python_store=has_python_store)
    world.barrier()
    if rank == 0:
        channel.recv(LIMIT_S)  # once the other ranks had time to publish their state
        expect_timeout(world, 0.3)
        channel.send(await_report(awaited))
    elif rank < size - 1:
        try:
            world.all_reduce(array.array("f", [1.0]))
        except dldist.DistError:
            pass
    channel.recv(LIMIT_S)
    world.abort()
    return None


def idle(channel, port, rank, size):
    """Run the parent's commands. The tests request dumps during this."""
    world = open_world(port, rank, size)
    world.barrier()
    channel.send("ready")
    while (command := channel.recv(30)) is not None:
        name, argument = command
        if name == "hold the GIL":
            gate = os.open(argument, os.O_RDWR)
            channel.send("holding")
            # keeps the GIL, as a CUDA call may
            ctypes.PyDLL(None).read(gate, ctypes.create_string_buffer(1), 1)
            os.close(gate)
            channel.send("released")
        elif name == "report":
            channel.send(await_report(argument))
        elif name == "wait in a barrier":
            channel.send("waiting")
            world.barrier()
            channel.send("met")
    world.close()
    return None


def disposition(number):
    """Return the kernel's disposition of a signal. Only sending it shows which handler runs."""
    with open("/proc/self/status") as file:
        lines = [line.split(":") for line in file]
    masks = {name: int(value, 16) for name, value in lines if name in ("SigIgn", "SigCgt")}
    bit = 1 << (number - 1)
    if masks["SigIgn"] & bit:
        return "ignored"
    return "handled" if masks["SigCgt"] & bit else "default"


def uses_a_signal(channel, port, rank, size, before, is_handled, prefix):
    """Report the effect of SIGUSR2 with a world, and after the monitor has stopped."""
    calls = []
    if before != "default":
        handler = signal.SIG_IGN if before == "ignored" else lambda *_: calls.append("of the program")
        signal.signal(signal.SIGUSR2, handler)

    def find_out():
        found = disposition(signal.SIGUSR2)
        if found != "handled":
            return found
        calls.clear()
        signal.raise_signal(signal.SIGUSR2)
        return calls[0] if calls else "heard"

    world = open_world(port, rank, size)
    world.barrier()
    meanwhile = find_out()
    if is_handled:
        assert await_file(f"{prefix}{rank}", time.monotonic()) is not None
    world.barrier()
    world.close()
    dldist._base.monitor_thread.stop()
    return [meanwhile, find_out()]


def threads_receiving(number):
    """Return the threads of this process that may receive a signal."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/status") as file:
            blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk:"))
        if not blocked >> (number - 1) & 1:
            found.append("main" if int(thread) == os.getpid() else thread)
    return found


def signal_receiving_threads(channel, port, rank, size):
    """Return these threads while the monitor, started with the world, and the log and callback
    threads wait."""
    world = open_world(port, rank, size)
    world.barrier()
    called = threading.Event()
    work = world.irecv(bytearray(1), 1 - rank)
    work.get_future().add_done_callback(lambda _: called.set())
    world.barrier()
    world.send(b"x", 1 - rank)
    assert called.wait(LIMIT_S)
    names = {thread.name for thread in threading.enumerate()}
    assert {"dldist-log", "dldist-completion"} <= names, names
    deadline = time.monotonic() + LIMIT_S
    while (found := threads_receiving(signal.SIGINT)) != ["main"] and time.monotonic() < deadline:
        time.sleep(0.01)
    world.barrier()
    world.close()
    return found


def forks(channel, port, rank, size):
    world = open_world(port, rank, size)
    world.barrier()
    if rank == 0:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            from dldist import flight_recorder

            os.kill(os.getpid(), signal.SIGUSR2)  # its handler is inherited from the parent
            os.write(writer, repr((flight_recorder.request_dump(), flight_recorder.report())).encode())
            os._exit(0)
        os.close(writer)
        messages = os.read(reader, 100).decode()
        os.close(reader)
        assert os.waitpid(pid, 0)[1] == 0
        channel.send(messages)
    world.barrier()
    world.close()
    return None


def alone(channel):
    with dldist.World(dldist.HashStore(), 0, 1) as world:
        world.barrier()
    from dldist import flight_recorder

    channel.send(flight_recorder.request_dump())
    return None


def refused(channel):
    """Return the errors of an invalid variable; no group must be made."""
    import threading

    store = dldist.HashStore()
    errors = []

    def join(rank):
        try:
            dldist.World(store, rank, 2, timeout=10.0)
        except RuntimeError as error:
            errors.append((type(error).__name__, str(error)))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.send(errors)
    return None


def exit_without_close(channel, port, rank, size):
    """Exit without closing anything; return the time when the exit began."""
    world = open_world(port, rank, size)
    world.barrier()
    channel.send("ready")
    channel.recv(LIMIT_S)
    return time.monotonic()


def signal_after_the_end(channel):
    """A signal used for dumps must regain its former handler at the end, unless the program has
    replaced it."""
    from dldist import _core, flight_recorder
    from dldist._base import monitor_thread

    heard = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    monitor_thread.start(0)
    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
        flight_recorder.dump_on_signal(number)
    signal.raise_signal(signal.SIGUSR1)
    before = list(heard)
    signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    _core._monitor_stop(1)
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR2)
    return before, heard


class FailingStore(dldist.Store):
    """A store written in Python that can start to fail."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner if inner is not None else dldist.HashStore()
        self.error = None


def _hand_on(name):
    def method(self, *args):
        if self.error is not None:
            raise self.error
        return getattr(self.inner, name)(*args)

    return method


for _name in "set get add compare_set wait check delete_key num_keys".split():
    setattr(FailingStore, _name, _hand_on(_name))


def has_a_store_that_fails(channel):
    """Return the log records about a Python store that fails when the monitor queries it."""
    import logging
    import threading

    messages, has_been_logged = [], threading.Event()

    class Collect(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())
            if "stops using a store" in messages[-1]:
                has_been_logged.set()

    logging.getLogger("dldist").addHandler(Collect())
    logging.getLogger("dldist").setLevel(logging.DEBUG)
    store = FailingStore()
    worlds = [None, None]

    def join(rank):
        worlds[rank] = dldist.World(store, rank, 2, timeout=LIMIT_S)
        worlds[rank].barrier()

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    store.error = KeyError("out of order \udc80")
    assert has_been_logged.wait(LIMIT_S), messages
    threads = [threading.Thread(target=world.barrier) for world in worlds]  # continue without it
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    store.error = None
    for world in worlds:
        world.abort()
    return [text for text in messages if "stops using a store" in text]
