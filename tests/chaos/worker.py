"""A process of chaos.py: it runs the script in one world after another and reports the results."""

import collections
import ctypes
import faulthandler
import gc
import mmap
import os
import random
import signal
import sys
import threading
import time

import dldist
import oracle
import procs
import script as scripts

FOLLOWING = "following the others"
ABORT_REASON = "chaos wants it"
DTYPES = dict(zip("bhiqBHIQfd?", "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 bool".split()))


class Failed(Exception):
    """An operation on a group failed."""

    def __init__(self, group, error, began):
        super().__init__(group, error)
        self.group, self.error, self.began = group, error, began
        self.split = None  # the group being created


class Interrupts:
    """Raise KeyboardInterrupt for SIGINT while armed; ignore it otherwise."""

    def __init__(self):
        self.is_armed = False
        signal.signal(signal.SIGINT, self.on_signal)

    def on_signal(self, _number, _frame):
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt


def describe(error, began=None):
    if error is None:
        return None
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "code": getattr(error, "code", None),
        "rank": getattr(error, "rank", None),
        "pid": getattr(error, "pid", None),
        "began": began,
        "at": time.monotonic(),
    }


class MallInfo(ctypes.Structure):
    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]


def heap_bytes():
    """Return malloc's allocated and free bytes, summed over all arenas."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    info = mallinfo()
    return info.uordblks + info.hblkhd, info.fordblks


def usage():
    """Return the usage of all resources that a group might leak. Shared memory that arrives after
    its group was closed stays for some time: a bounded number of descriptors
    (csrc/transport/peer.c), counted separately. Short-lived threads leave malloc's arenas
    fragmented, in some runs by tens of megabytes with hardly any more bytes in use. So count
    allocated bytes, and resident memory without the free parts of arenas."""
    kinds = fd_kinds()
    heap, holes = heap_bytes()
    nlate = sum(count for kind, count in kinds.items() if "memfd:dldist" in kind)
    return {
        "fds": sum(kinds.values()) - nlate,
        "late": nlate,
        "threads": procs.thread_count(),
        "mappings": count_lines("/proc/self/maps"),
        "heap": heap,
        "rss": procs.rss_bytes() - holes,
    }


def fd_kinds():
    """Describe the descriptors for the report of a leak."""
    kinds = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            kinds[os.readlink(f"/proc/self/fd/{name}").split(":[")[0]] += 1
        except OSError:
            pass
    return dict(kinds)


def count_lines(path):
    with open(path, "rb") as file:
        return sum(1 for _ in file)


class World:
    """One epoch of one rank."""

    def __init__(self, channel, store, order, progress, interrupts):
        self.channel, self.store, self.order = channel, store, order
        self.rank, self.size = order["rank"], order["size"]
        self.script = scripts.Script(order["seed"], order["epoch"], self.size)
        self.fault = self.script.fault
        self.members = {scripts.WORLD: list(range(self.size))}
        self.groups = {}
        self.progress, self.interrupts = progress, interrupts
        # For choices that may differ between ranks.
        self.dice = random.Random(f"{order['seed']} {order['epoch']} {self.rank}")
        self.nops = 0
        self.threads = []

    # ---- main

    def run(self):
        failed, kind = None, "done"
        try:
            self.interrupts.is_armed = True
            self.follow_script()
            self.interrupts.is_armed = False
        except Failed as failure:
            self.interrupts.is_armed = False
            failed, kind = failure, "failed"
        except KeyboardInterrupt:
            kind = "interrupted"
        for thread in self.threads:
            thread.join()
        at = time.monotonic()
        if kind != "done":
            self.abort_others()
        report = {"how": kind, "step": self.at_step, "nops": self.nops, "at": at}
        if failed is not None:
            report.update(group=failed.group, split=failed.split, error=describe(failed.error, failed.began))
        self.tell("ended", report)
        self.expect("probe")
        self.tell("probed", self.probe())
        self.expect("close")
        self.close_all(kind)

    def tell(self, what, value=None):
        self.channel.send((what, value))

    def expect(self, what):
        got = self.channel.recv(300)
        if got != what:
            raise AssertionError(f"{got!r} instead of {what}")

    def abort_others(self):
        """Abort the groups that the fault does not affect, because other ranks may wait for this
        one."""
        for number, group in self.groups.items():
            # A rank that closes a group ends the operations that need it, but not the group.
            if self.fault.kind == "close" or not self.fault.is_about(number, self.members[number]):
                group.abort(FOLLOWING)

    def probe(self):
        """Collect the errors of all groups that failed, from a new call on each."""
        found = {}
        for number, group in self.groups.items():
            if not self.fault.is_about(number, self.members[number]):
                continue
            began = time.monotonic()
            try:
                group.barrier(timeout=3)
                found[number] = None
            except dldist.DistError as error:
                found[number] = describe(error, began)
        return found

    def close_all(self, kind):
        numbers = list(self.groups)
        self.dice.shuffle(numbers)
        for number in numbers:
            group = self.groups.pop(number)
            way = self.dice.random()
            if way < 0.6 or kind == "done":
                group.close(timeout=5)
            elif way < 0.8:
                group.abort("no longer needed")
            del group

    # ---- the script

    @property
    def at_step(self):
        return self._at_step

    @at_step.setter
    def at_step(self, step):
        self._at_step = step
        text = repr(self.script.steps[step]) if step >= 0 else "making the group"
        self.progress[:] = f"epoch {self.order['epoch']} step {step}: {text}".encode()[:1000].ljust(1000)

    def follow_script(self):
        self.at_step = -1
        self.have_fault(-1)
        self.guard(scripts.WORLD, self.open_world)
        for number, step in enumerate(self.script.steps):
            self.at_step = number
            self.have_fault(number)
            getattr(self, f"do_{step.kind}")(step)

    def open_world(self):
        self.groups[scripts.WORLD] = dldist.Group(
            self.store, self.rank, self.size, timeout=self.order["timeout"], name=self.order["name"],
            connect_timeout=self.order["connect_timeout"],
        )  # fmt: skip

    def guard(self, number, function, *args, **options):
        """Call a function on a group and attach the group's number to its failure."""
        began = time.monotonic()
        try:
            result = function(*args, **options)
        except dldist.DistError as error:
            raise Failed(number, error, began) from error
        self.nops += 1
        return result

    def have_fault(self, number):
        fault = self.fault
        if number != fault.step or self.rank not in fault.victims:
            return
        if fault.kind in ("kill", "stop", "pause", "interrupt"):
            self.tell("at", number)
        elif fault.kind == "abort":
            group = self.groups[fault.group]
            timer = threading.Timer(fault.delay, group.abort, [ABORT_REASON])
            timer.start()
            self.threads.append(timer)
        elif fault.kind == "close":
            self.groups[fault.group].close(timeout=5)

    # ---- steps

    def is_in(self, number):
        return number in self.groups

    def do_split(self, step):
        if self.rank not in step.ranks:
            return
        parent = self.members[step.parent]
        ranks = [parent.index(rank) for rank in step.ranks]
        self.members[step.group] = step.ranks
        try:
            self.groups[step.group] = self.guard(step.parent, self.groups[step.parent].split, ranks)
        except Failed as failure:
            failure.split = step.group
            raise

    def do_close(self, step):
        if self.is_in(step.group):
            self.guard(step.group, self.groups.pop(step.group).close, timeout=10)

    def do_call(self, step):
        if not self.is_in(step.group):
            return
        case = step.case
        fault = self.fault
        if fault.kind == "mismatch" and self.at_step == fault.step and self.rank in fault.victims:
            case = fault.case
        self.call(step.group, case, step.is_async)

    def call(self, number, case, is_async):
        run = self.start(number, case, is_async)
        if is_async:
            self.guard(number, run.work.wait)
        run.check()

    def start(self, number, case, is_async):
        group = self.groups[number]
        allocate = None
        if self.order["has_regions"] and self.dice.random() < 0.2:

            def allocate(count, code):
                return group.empty(count, DTYPES[code])

        return self.guard(number, oracle.start, group, case, allocate, async_op=is_async)

    def do_batch(self, step):
        runs = [(number, self.start(number, case, True)) for number, case in step.calls if self.is_in(number)]
        self.dice.shuffle(runs)
        for number, run in runs:
            self.guard(number, run.work.wait)
            run.check()

    def do_messages(self, step):
        if not self.is_in(step.group):
            return
        group = self.groups[step.group]
        rank = group.rank
        queues = {}
        for number, (src, dst, tag, count, is_any) in enumerate(step.messages):
            data = oracle.content("i", number, src, dst, count)
            if src == rank:
                queues.setdefault(("send", dst, tag), []).append((data, None))
            if dst == rank:
                queues.setdefault(("recv", src, tag), []).append((data, is_any))
        posted = []
        while queues:
            key = self.dice.choice(list(queues))
            posted.append(self.post_message(step.group, group, key, *queues[key].pop(0)))
            if not queues[key]:
                del queues[key]
        self.dice.shuffle(posted)
        for key, work, tensor, data in posted:
            self.guard(step.group, work.wait)
            if bytes(tensor) != data:
                raise oracle.WrongResult(f"{key}: message of {len(data)} bytes is wrong")

    def post_message(self, number, group, key, data, is_any):
        what, other, tag = key
        if what == "send":
            tensor = bytearray(data)
            return key, self.guard(number, group.isend, memoryview(tensor).cast("i"), other, tag=tag), tensor, data
        tensor = bytearray(len(data))
        source = None if is_any else other
        return key, self.guard(number, group.irecv, memoryview(tensor).cast("i"), source, tag=tag), tensor, data

    def do_threads(self, step):
        failures = []

        def run(number, cases):
            try:
                for case in cases:
                    self.call(number, case, False)
            except BaseException as error:
                failures.append(error)

        mine = [threading.Thread(target=run, args=call) for call in step.calls if self.is_in(call[0])]
        for thread in mine:
            thread.start()
            self.threads.append(thread)
        for thread in mine:
            thread.join()
            self.threads.remove(thread)
        if failures:
            # Failures in the group with the fault are more specific.
            failures.sort(key=lambda error: not isinstance(error, Failed) or not self.is_primary(error.group))
            raise next((error for error in failures if not isinstance(error, Failed)), failures[0])

    def is_primary(self, number):
        return self.fault.is_about(number, self.members[number])

    def do_monitored_barrier(self, step):
        if self.is_in(step.group):
            self.guard(step.group, self.groups[step.group].monitored_barrier)


def serve(channel, address):
    """Serve the common store until the parent sends "end"."""
    store = dldist.TCPStore(address, 0, is_master=True, timeout=30)
    channel.send(store.port)
    while not channel.recv(1e6):
        pass
    return store.num_keys()


def main(channel, address, port, progress_path):
    faulthandler.register(signal.SIGUSR1, all_threads=True, file=sys.stderr)
    interrupts = Interrupts()
    store = dldist.TCPStore(address, port, timeout=30)
    with open(progress_path, "r+b") as file:
        progress = mmap.mmap(file.fileno(), 1000)
    baseline_nfds = None
    while True:
        order = channel.recv(600)
        if order is None:
            return "left"
        World(channel, store, order, progress, interrupts).run()
        gc.collect()
        found = usage()
        deadline = time.monotonic() + 1
        while baseline_nfds is not None and found["fds"] > baseline_nfds and time.monotonic() < deadline:
            time.sleep(0.02)
            found = usage()
        baseline_nfds = min(found["fds"], baseline_nfds or found["fds"])
        channel.send(("closed", (found, fd_kinds())))
