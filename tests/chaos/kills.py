"""Kills: ranks are killed at random moments, and every survivor must promptly blame a killed rank.

    python tests/chaos/kills.py [--kills 1000] [--seconds S] [--seed S] [--phases small,window]
                                [--ranks 4] [--help]

In every round, a few processes create a world and repeat one operation (a phase). One process is
killed, sometimes a second one right afterwards. Survivors exit in the handler of the error, without
cleanup; or close everything and exit; or stay. A rank that exits must not be mistaken for a killed
one. Rounds cover all phases, with shared memory and with TCP only.

The program prints the numbers of kills and complaints of each phase, and exits with 1 if there were
any complaints. `misnamed`: a survivor blames a rank that was not killed, or no rank, or reports
another failure; `late`: it receives the error after more than --limit seconds (during the creation
of a world: after its timeout); `hangs`: it receives no error.
"""

import argparse
import contextlib
import faulthandler
import os
import random
import resource
import signal
import sys
import time
from array import array
from collections import Counter, defaultdict
from multiprocessing.connection import Pipe, wait

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "py", "support")]

import chaos  # noqa: E402
import dldist  # noqa: E402
import oracle  # noqa: E402
import procs  # noqa: E402
import worker  # noqa: E402

# During the creation of a world, only the timeout detects a rank that has not joined.
MEETING_TIMEOUT_S = 5.0
TIMEOUT_S = 30.0
# After the last kill, for survivors to report.
PATIENCE_S = 20.0
PHASES = {}
# Phases in which ranks are killed during or after the creation of a world.
MAKING = set()


def phase(function):
    PHASES[function.__name__] = function
    return function


def making(function):
    MAKING.add(function.__name__)
    return phase(function)


# ---- ranks


class Rank:
    def __init__(self, order, rank, connection):
        self.order, self.rank, self.connection = order, rank, connection
        self.size = order["size"]
        host, port = order["address"]
        self.store = dldist.TCPStore(host, port, timeout=TIMEOUT_S)
        self.opened = []

    def open(self):
        group = dldist.Group(
            self.store, self.rank, self.size, name=self.order["name"], timeout=TIMEOUT_S, connect_timeout=MEETING_TIMEOUT_S
        )  # fmt: skip
        self.opened.append(group)
        return group

    def open_window(self, group, count):
        self.opened.append(dldist._core.Window(group, array("d", bytes(8 * count))))
        return self.opened[-1]

    def close_all(self):
        for thing in reversed(self.opened):
            with contextlib.suppress(dldist.DistError):
                thing.close()

    def open_and_tell(self):
        """Open a group and report that kills may begin."""
        group = self.open()
        group.barrier()
        self.tell("running")
        return group

    def tell(self, what, value=None):
        self.connection.send((what, value))


def reduce_on(group, count=1):
    x = array("d", bytes(8 * count))
    while True:
        group.all_reduce(x)


@phase
def small(self):
    reduce_on(self.open_and_tell())


@phase
def large(self):
    reduce_on(self.open_and_tell(), 1 << 19)


@phase
def collectives(self):
    group = self.open_and_tell()
    number = 0
    while True:
        op = oracle.COLLECTIVES[number % len(oracle.COLLECTIVES)]
        oracle.run(group, oracle.Case(op, "i", (1, 300, 40_000)[number % 3], root=number % self.size, seed=number))
        number += 1


@phase
def in_the_background(self):
    """Poll pending works between other work."""
    group = self.open_and_tell()
    while True:
        works = [group.all_reduce(array("d", bytes(8 << i)), async_op=True) for i in range(0, 18, 3)]
        while not works[-1].is_completed():
            time.sleep(0.0002)
        for work in works:
            work.wait()


@phase
def computing(self):
    """Compute most of the time: the background detects the death, and the next call reports it."""
    group = self.open_and_tell()
    dice = random.Random(self.rank)
    x = array("d", [1.0])
    while True:
        time.sleep(dice.random() * 0.02)
        group.all_reduce(x)


@phase
def two_groups(self):
    """Use two groups of the same ranks in different orders."""
    world = self.open()
    group = world.split(list(range(self.size))[::-1])
    world.barrier()
    self.tell("running")
    x = array("d", bytes(8000))
    while True:
        group.all_reduce(x)
        world.all_reduce(x)


@phase
def messages(self):
    group = self.open_and_tell()
    right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
    number = 0
    while True:
        nbytes = (8, 1000, 100_000, 3_000_000)[number % 4]
        sent = group.isend(bytes(nbytes), right, tag=number % 5)
        group.recv(bytearray(nbytes), left if number % 3 else None, tag=number % 5)
        sent.wait()
        number += 1


@phase
def window(self):
    group = self.open()
    shown = self.open_window(group, 10_000)
    group.barrier()
    self.tell("running")
    right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
    part = array("d", bytes(8 * 1000))
    while True:
        shown.put(part, right, offset=0)
        shown.signal(right)
        shown.wait_signal(left)
        shown.get(part, left, offset=8000)
        shown.flush()
        shown.barrier()


@phase
def window_alone(self):
    """Use windows only."""
    group = self.open()
    shown = self.open_window(group, 10_000)
    group.barrier()
    self.tell("running")
    part = array("d", bytes(8 * 1000))
    dice = random.Random(self.rank)
    while True:
        other = dice.randrange(self.size)
        shown.put(part, other, offset=dice.randrange(9000))
        shown.get(part, other, offset=dice.randrange(9000))
        shown.flush()


@phase
def windows_of_c10d(self):
    """Open and close windows repeatedly, with pending works."""
    dldist.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.size, timeout=TIMEOUT_S)
    group = dldist.distributed_c10d._get_default_group()
    shown = dldist.Window(group.operations)
    dldist.barrier()
    self.tell("running")
    right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
    part = array("d", bytes(8 * 1000))
    while True:
        shown.tensor_register(array("d", bytes(80_000)))
        for _ in range(5):
            put = shown.put(part, right, 100, async_op=True)
            shown.signal(right)
            taken = shown.wait_signal(left, async_op=True)
            put.wait()
            taken.wait()
        shown.tensor_deregister()


@phase
def opening_windows(self):
    group = self.open_and_tell()
    while True:
        shown = self.open_window(group, 1000)
        shown.barrier()
        self.opened.pop().close()


@making
def making_worlds(self):
    self.tell("running")
    reduce_on(self.open())


@making
def splitting(self):
    world = self.open_and_tell()
    number = 0
    while True:
        number += 1
        ranks = [rank for rank in range(self.size) if number % 3 == 0 or rank != number % self.size]
        if self.rank in ranks:
            group = world.split(ranks)
            group.barrier()
            group.close()


@making
def new_groups(self):
    dldist.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.size, timeout=TIMEOUT_S)
    dldist.barrier()
    self.tell("running")
    x = array("d", [1.0])
    while True:
        group = dldist.new_group(list(range(self.size)), timeout=TIMEOUT_S)
        dldist.all_reduce(x, group=group)
        dldist.destroy_process_group(group)


def live(order, rank, connection):
    """Run one rank."""
    faulthandler.register(signal.SIGUSR1, all_threads=True, file=sys.stderr)
    os.environ["DLDIST_SHM"] = "1" if order["has_shm"] else "0"
    self = None
    try:
        self = Rank(order, rank, connection)
        PHASES[order["phase"]](self)
    except Exception as error:
        connection.send(("failed", worker.describe(error)))
        if order["manners"] == "close and end" and self is not None:
            self.close_all()
        elif order["manners"] == "stay":
            connection.recv()
    os._exit(0)


# ---- kills


class Process:
    def __init__(self, order, rank):
        self.rank = rank
        self.is_running = False
        self.connection, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.connection.close()
                live(order, rank, theirs)
            finally:
                os._exit(70)
        theirs.close()
        self.killed_at = None
        self.report = None

    def kill(self):
        self.killed_at = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)

    def end(self):
        """Kill the process and wait for its exit."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.connection.close()


class Round:
    """One world and its end."""

    def __init__(self, number, options, address):
        self.dice = dice = random.Random(f"{options.seed} {number}")
        self.number, self.options = number, options
        phases = options.phases
        self.phase = phases[number % len(phases)]
        self.order = {
            "phase": self.phase, "size": options.ranks, "name": f"world-{number}", "address": address,
            "has_shm": not options.no_shm and number // len(phases) % 2 == 0,
            "manners": dice.choices(("end immediately", "close and end", "stay"), (5, 2, 3))[0],
        }  # fmt: skip
        self.nvictims = 2 if options.ranks > 2 and dice.random() < 0.2 else 1
        # A world is created within some hundredths of a second; the phase then repeats.
        self.delay = dice.random() * (0.06 if self.phase == "making_worlds" else 0.02)
        self.gap = dice.random() ** 2 * 0.002
        self.complaints = []
        self.slowest = 0.0

    def __repr__(self):
        order = self.order
        how = "shared memory" if order["has_shm"] else "TCP"
        return f"round {self.number}: {self.phase}, {how}, {self.nvictims} killed, survivors {order['manners']}"

    def run(self):
        self.processes = [Process(self.order, rank) for rank in range(self.options.ranks)]
        try:
            if not self.await_all(lambda process: process.is_running, PATIENCE_S):
                return [("hangs", "not all were ready to begin")]
            time.sleep(self.delay)
            victims = self.dice.sample(self.processes, self.nvictims)
            for number, victim in enumerate(victims):
                if number > 0:
                    time.sleep(self.gap)
                victim.kill()
            self.victims = {victim.pid: victim for victim in victims}
            self.await_all(lambda process: process.report is not None or process.killed_at is not None, PATIENCE_S)
            for process in self.processes:
                if process.killed_at is None:
                    self.judge(process)
            return self.complaints
        finally:
            for process in self.processes:
                process.end()

    def await_all(self, is_through, seconds):
        """Return False on a timeout. Ranks that have reported a failure count as done."""
        deadline = time.monotonic() + seconds
        while True:
            left = [process for process in self.processes if not is_through(process) and process.report is None]
            if not left:
                return True
            if time.monotonic() > deadline:
                return False
            self.listen({process.connection: process for process in left}, deadline)

    def listen(self, processes, deadline):
        for connection in wait(list(processes), max(deadline - time.monotonic(), 0)):
            process = processes[connection]
            try:
                what, value = connection.recv()
            except (EOFError, ConnectionResetError):
                what, value = "failed", None
            if what == "running":
                process.is_running = True
            else:
                process.report = value or {"kind": "nothing", "text": "it has ended without a word", "at": time.monotonic()}

    # ---- checks

    def judge(self, process):
        error = process.report
        if error is None:
            self.complain("hangs", process, "has reported nothing")
            chaos.print_stacks(process.pid)
            return
        killed_at = min(victim.killed_at for victim in self.victims.values())
        took = error["at"] - killed_at
        if took < 0:
            self.complain("misnamed", process, "has failed before a rank was killed")
            return
        is_making = self.phase in MAKING
        # A rank that died before it published its pid is known only by its rank number.
        is_named = error.get("pid") in self.victims or (
            self.phase == "making_worlds" and error.get("pid") is None
            and error.get("rank") in [victim.rank for victim in self.victims.values()]
        )  # fmt: skip
        is_right = error["kind"] == "DistPeerLostError" or (is_making and error["kind"].startswith("Dist"))
        if not is_named or not is_right:
            self.complain("misnamed", process, f"after {took:.3f} s")
        limit = MEETING_TIMEOUT_S + 2 * self.options.limit if self.phase == "making_worlds" else self.options.limit
        if took > limit:
            self.complain("late", process, f"after {took:.3f} s")
        self.slowest = max(self.slowest, took)

    def complain(self, about, process, what):
        killed = ", ".join(f"rank {victim.rank} pid {victim.pid}" for victim in self.victims.values())
        error = process.report
        shown = f"{error['kind']} rank={error.get('rank')} pid={error.get('pid')}: {error['text']}" if error else ""
        self.complaints.append((about, f"rank {process.rank} pid {process.pid} {what}; killed: {killed}\n        {shown}"))


class Summary:
    NAMES = ("kills", "told", "misnamed", "late", "hangs")

    def __init__(self):
        self.counts = defaultdict(Counter)
        self.slowest = defaultdict(float)

    def add(self, one, complaints):
        counts = self.counts[one.phase, one.order["has_shm"]]
        counts["kills"] += one.nvictims
        counts["told"] += len(one.processes) - one.nvictims
        for about, _ in complaints:
            counts[about] += 1
        key = one.phase, one.order["has_shm"]
        self.slowest[key] = max(self.slowest[key], one.slowest)

    def total(self, name):
        return sum(counts[name] for counts in self.counts.values())

    def show(self):
        print(f"{'phase':24s}{'way':8s}" + "".join(f"{name:>10s}" for name in self.NAMES) + f"{'slowest, s':>12s}")
        for (name, has_shm), counts in sorted(self.counts.items()):
            numbers = "".join(f"{counts[key]:10d}" for key in self.NAMES)
            print(f"{name:24s}{'shm' if has_shm else 'TCP':8s}{numbers}{self.slowest[name, has_shm]:12.3f}")
        print(f"{'all':32s}" + "".join(f"{self.total(key):10d}" for key in self.NAMES))


def run(options):
    print(f"kills: seed {options.seed}, {options.ranks} ranks, pid {os.getpid()}", flush=True)
    summary = Summary()
    server = procs.Child(worker.serve, ("127.0.0.1",), {"PYTHONPATH": os.pathsep.join([HERE, *sys.path])})
    deadline = time.monotonic() + options.seconds
    number = options.first_round
    try:
        address = "127.0.0.1", server.recv()
        while time.monotonic() < deadline and summary.total("kills") < options.kills:
            one = Round(number, options, address)
            if options.verbose:
                print(one, flush=True)
            complaints = one.run()
            summary.add(one, complaints)
            for about, text in complaints:
                print(f"{one}: {about}:\n    {text}", flush=True)
            number += 1
    finally:
        server.close()
    summary.show()
    ncomplaints = sum(summary.total(name) for name in ("misnamed", "late", "hangs"))
    print(f"kills: {'FAILED' if ncomplaints else 'passed'} with seed {options.seed}, {ncomplaints} complaints")
    return 1 if ncomplaints else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=f"phases: {', '.join(PHASES)}")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time, with fewer kills")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--first-round", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--phases", default=",".join(PHASES), help="names, separated by commas")
    parser.add_argument("--skip", default="", help="phases to leave out")
    parser.add_argument("--no-shm", action="store_true", help="only TCP")
    parser.add_argument("--limit", type=float, default=2.5, help="seconds; one is promised, and processes wait for the CPU here")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.phases = [name for name in options.phases.split(",") if name not in options.skip.split(",")]
    unknown = [name for name in options.phases if name not in PHASES]
    if unknown:
        parser.error(f"there is no phase {unknown[0]}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
