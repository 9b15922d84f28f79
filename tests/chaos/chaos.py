"""Chaos: processes that create worlds, run random operations on random groups and fail at random.

    python tests/chaos/chaos.py --minutes 10 [--seed S] [--processes 4] [--hosts 2] [--help]

In every epoch, the live processes create a world in the one store and run a script (script.py) that
depends only on the seed, the epoch and the number of processes: collectives of all kinds and sizes,
on groups and nested groups, and messages, from several threads. Most scripts have a fault: a
process is killed, stopped or interrupted, aborts or closes a group, or makes a different call.
Required:

- results are correct, and every operation ends before its deadline;
- a rank that the fault affects soon receives the right error, with the right rank blamed;
- groups that the fault affects fail all later calls with the same error;
- other groups stay usable until a member aborts them;
- a process that closes its groups releases all their descriptors, threads, mappings and memory.

The first violation ends the run and prints the seed, the epoch, and the stacks of all processes.
"""

import argparse
import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import wait

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "py", "support")]

import netns  # noqa: E402
import procs  # noqa: E402
import script as scripts  # noqa: E402
import worker  # noqa: E402

TIMEOUT_S = 20.0
# With the fault "stop", the victim is stopped for longer than this.
SHORT_TIMEOUT_S = 3.0
STOPPED_S = 5.0
# From a death to the error. The promise is one second, but these processes wait for the CPU.
NOTICE_LIMIT_S = 2.5
EPOCH_LIMIT_S = 90.0
# Growth since the first worlds of a process. A link stays open while both ends exist, and the
# number of other processes varies.
ALLOWED = {"fds": 8, "late": 200, "threads": 0, "mappings": 30, "heap": 2 << 20, "rss": 16 << 20}
SETTLED_AFTER = 8


class Trouble(Exception):
    """A violated requirement."""


class Hang(Trouble):
    """A process that does not answer."""


class Slot:
    """A process."""

    def __init__(self, number, folder, server, prefix, env):
        self.number = number
        self.progress_path = os.path.join(folder, f"progress-{number}-{time.monotonic_ns()}")
        with open(self.progress_path, "wb") as file:
            file.write(b" " * 1000)
        self.child = procs.Child(worker.main, (*server, self.progress_path), env, prefix)
        self.baseline = None
        self.nworlds = 0

    def progress(self):
        with open(self.progress_path, "rb") as file:
            return file.read().decode().strip()

    def close(self):
        self.child.close()
        os.unlink(self.progress_path)


class Epoch:
    """One world, seen from outside."""

    def __init__(self, number, seed, slots, counts, has_regions):
        self.number, self.seed, self.slots, self.counts = number, seed, slots, counts
        self.has_regions = has_regions
        self.script = scripts.Script(seed, number, len(slots))
        self.fault = self.script.fault
        self.members = {scripts.WORLD: list(range(len(slots)))}
        self.members.update((step.group, step.ranks) for step in self.script.steps if step.kind == "split")
        self.pids = [slot.child.pid for slot in slots]
        self.reports = {}  # by live ranks
        self.dead = set()  # ranks
        self.happened_at = None  # when the first victim was hit
        self.timers = []  # (when, function, rank)
        self.closing = {step.group for step in self.script.steps if step.kind == "close"}

    def run(self):
        dice = random.Random(f"{self.seed} {self.number}")
        name = "world" if dice.random() < 0.7 else f"world-{self.number}"
        is_stop = self.fault.kind == "stop"
        for rank, slot in enumerate(self.slots):
            slot.child.send(
                {
                    "seed": self.seed, "epoch": self.number, "rank": rank, "size": len(self.slots), "name": name,
                    "has_regions": self.has_regions,
                    "timeout": SHORT_TIMEOUT_S if is_stop else TIMEOUT_S,
                    "connect_timeout": SHORT_TIMEOUT_S if is_stop else TIMEOUT_S,
                }
            )  # fmt: skip
        reports = self.reports = self.collect("ended")
        for rank, report in reports.items():
            self.check_report(rank, report)
        if self.fault.kind != "none" and self.happened_at is None and self.fault.kind in ("kill", "stop", "pause"):
            raise Trouble("the fault has not happened")
        for rank, errors in self.ask("probe", "probed").items():
            self.check_probe(rank, errors)
        for rank, (usage, kinds) in self.ask("close", "closed").items():
            self.check_usage(self.slots[rank], usage, kinds)
        self.count(reports)

    def ask(self, question, answer):
        for rank, slot in enumerate(self.slots):
            if rank not in self.dead:
                slot.child.send(question)
        return self.collect(answer)

    # ---- events

    def collect(self, what):
        """Collect the answers of all live ranks, and inject the fault while waiting."""
        answers = {}
        deadline = time.monotonic() + EPOCH_LIMIT_S
        while True:
            self.run_timers()
            missing = [rank for rank in range(len(self.slots)) if rank not in answers and rank not in self.dead]
            if not missing and not self.timers:
                return {rank: answer for rank, answer in answers.items() if rank not in self.dead}
            if time.monotonic() > deadline:
                raise Hang(f"ranks {missing} have not {what} in {EPOCH_LIMIT_S:.0f} s")
            ranks = {self.slots[rank].child.connection: rank for rank in missing}
            pause = min([deadline, *(when for when, _, _ in self.timers)]) - time.monotonic()
            for connection in wait(list(ranks), max(pause, 0)):
                self.take_message(ranks[connection], connection, what, answers)

    def take_message(self, rank, connection, what, answers):
        try:
            kind, value = connection.recv()
        except (EOFError, ConnectionResetError):
            code = self.slots[rank].child.process.wait(5)
            raise Trouble(f"rank {rank} has ended with {code}") from None
        if kind != "message":
            raise Trouble(f"rank {rank} sent {kind}:\n{value}")
        name, content = value
        if name == "at":
            self.timers.append((time.monotonic() + self.fault.delay, self.hit, rank))
        elif name == what:
            answers[rank] = content
        else:
            raise Trouble(f"rank {rank} sent {name}, expected {what}")

    def run_timers(self):
        now = time.monotonic()
        due = [timer for timer in self.timers if timer[0] <= now]
        self.timers = [timer for timer in self.timers if timer[0] > now]
        for _, function, rank in due:
            function(rank)

    def hit(self, rank):
        child = self.slots[rank].child
        kind = self.fault.kind
        self.happened_at = self.happened_at or time.monotonic()
        if kind == "kill":
            child.kill()
            child.process.wait(5)
            self.dead.add(rank)
        elif kind == "interrupt":
            child.kill(signal.SIGINT)
        else:
            child.kill(signal.SIGSTOP)
            away = STOPPED_S if kind == "stop" else self.fault.seconds
            self.timers.append((time.monotonic() + away, self.wake, rank))

    def wake(self, rank):
        self.slots[rank].child.kill(signal.SIGCONT)

    def dead_pids(self):
        return [self.pids[rank] for rank in self.dead]

    # ---- checks

    def check_report(self, rank, report):
        if report["how"] == "failed":
            # A failed split reports an error of the parent or of the new group.
            groups = [group for group in (report["group"], report["split"]) if group is not None]
            reasons = [self.find_fault_with(rank, group, report["error"], is_probe=False) for group in groups]
            reason = None if None in reasons else reasons[0]
            if reason is not None and "monitoredBarrier" in report["error"]["text"]:
                self.counts["monitored barriers that blame another rank"] += 1
                reason = None
            is_opening = report["split"] is not None or report["step"] < 0
            if reason is not None and is_opening and "still missing" in report["error"]["text"]:
                # The ranks that it waits for know that the parent has failed, and do not join.
                self.counts["splits that waited for their timeout"] += 1
                reason = None
            if reason is not None and is_opening and report["error"]["pid"] in self.dead_pids():
                self.counts[f"{report['error']['kind']} about the dead while opening"] += 1
                reason = None
            if reason is not None and is_opening and "has closed the group" in report["error"]["text"]:
                # Another rank detected the failure first and aborted the new group.
                self.counts["blames who gave up a group that was to be"] += 1
                reason = None
            if reason is not None:
                raise Trouble(f"rank {rank} at step {report['step']}, group {report['group']}: {reason}\n{report['error']}")
        elif report["how"] == "interrupted" and not (self.fault.kind == "interrupt" and rank in self.fault.victims):
            raise Trouble(f"rank {rank} was interrupted")

    def check_probe(self, rank, errors):
        for group, error in errors.items():
            if error is None:
                # The fault came when the group was no longer in use. A dead member is detected
                # anyway.
                reason = "nothing is wrong with the group" if self.fault.kind == "kill" else None
                if self.fault.kind == "stop":
                    reason = None
            else:
                reason = self.find_fault_with(rank, group, error, is_probe=True)
            if reason is not None:
                raise Trouble(f"rank {rank}, group {group}, queried afterwards: {reason}\n{error}")

    def find_fault_with(self, rank, group, error, is_probe):
        """Return the problem with a rank's error, or None if the error is right."""
        fault, kind = self.fault, error["kind"]
        members = self.members[group]
        is_known = error["rank"] is not None and 0 <= error["rank"] < len(members)
        culprit = members[error["rank"]] if is_known else None
        if fault.kind in ("none", "pause"):
            return "nothing has happened"
        if is_probe and kind == "DistMismatchError" and "called barrier" in error["text"]:
            # The probe is a barrier. A rank in another call may detect the mismatch before the
            # fault.
            self.counts["queried before the failure was known"] += 1
            return None
        if fault.kind == "stop" and rank in fault.victims:
            return None
        if not fault.is_about(group, members):
            return self.find_fault_with_bystander(rank, group, error)
        if fault.kind == "kill":
            if kind != "DistPeerLostError":
                return "another error than DistPeerLostError"
            if culprit not in fault.victims or error["pid"] != self.pids[culprit]:
                return f"blames rank {culprit}, pid {error['pid']}"
            late = error["at"] - max(self.happened_at, error["began"])
            self.counts["slowest notice of a death, ms"] = max(
                self.counts["slowest notice of a death, ms"], int(late * 1000)
            )
            return f"came after {late:.3f} s" if late > NOTICE_LIMIT_S else None
        if fault.kind == "stop":
            if kind == "DistTimeoutError" and error["at"] - error["began"] < SHORT_TIMEOUT_S + 3.0:
                return None
            return f"an error other than a timeout before the deadline ({error['at'] - error['began']:.3f} s)" if not is_probe else None
        if fault.kind == "abort":
            is_right = kind == "DistAbortedError" and worker.ABORT_REASON in error["text"] and culprit in fault.victims
            return None if is_right else "is not the abort"
        if fault.kind == "mismatch":
            return None if kind == "DistMismatchError" else "is not DistMismatchError"
        if fault.kind == "close":
            if rank in fault.victims:
                return None if error["code"] == "CLOSED" else "is not about a closed group"
            if kind == "DistPeerLostError" and culprit in fault.victims:
                return None
            return self.find_fault_with_bystander(rank, group, error) and "is not who left"
        raise ValueError(fault.kind)

    def find_fault_with_bystander(self, rank, group, error):
        is_left = self.fault.kind == "interrupt" and "has left the group" in error["text"]
        if error["kind"] == "DistPeerLostError" and ("has closed the group" in error["text"] or is_left):
            # This rank was still creating the group when another rank failed and closed it.
            self.counts["blames who gave up a group that was to be"] += 1
            return None
        if error["kind"] == "DistPeerLostError" and "has left the parent group" in error["text"]:
            # The blamed rank is a rank of the new group.
            is_right = error["pid"] in [self.pids[victim] for victim in self.fault.victims]
            return None if is_right else "is not who left the parent"
        waiters = [report for report in self.reports.values() if report.get("split") is not None]
        is_slow = self.fault.kind == "stop" or any("still missing" in report["error"]["text"] for report in waiters)
        if is_slow and error["kind"] == "DistTimeoutError":
            return None  # it waited for a rank that itself waited as long
        if error["kind"] != "DistAbortedError":
            return "an error other than DistAbortedError on the rank that aborted"
        if self.fault.kind == "interrupt" and "interrupted in" in error["text"]:
            # The signal arrived late, when the victim was in another group.
            is_right = error["pid"] in [self.pids[victim] for victim in self.fault.victims]
            return None if is_right else "is not who was interrupted"
        if worker.FOLLOWING not in error["text"]:
            return "aborted for another reason"
        return None

    def check_usage(self, slot, usage, kinds):
        slot.nworlds += 1
        if slot.nworlds < SETTLED_AFTER:
            slot.baseline = {
                name: max(value, slot.baseline[name]) if slot.baseline and name != "fds" else value
                for name, value in usage.items()
            }
            return
        for name, allowed in ALLOWED.items():
            if usage[name] > slot.baseline[name] + allowed:
                raise Trouble(
                    f"process {slot.number} (pid {slot.child.pid}) has {usage[name]} {name} after {slot.nworlds} worlds; "
                    f"after {SETTLED_AFTER - 1} it had {slot.baseline[name]}; its descriptors: {kinds}"
                )

    def count(self, reports):
        self.counts["epochs"] += 1
        self.counts["operations"] += sum(report["nops"] for report in reports.values())
        self.counts[f"fault: {self.fault.kind}"] += 1
        for report in reports.values():
            if report["how"] == "failed":
                self.counts[f"got {report['error']['kind']}"] += 1


class Run:
    def __init__(self, options):
        self.options = options
        self.seed = options.seed if options.seed is not None else random.randrange(1 << 30)
        self.counts = Counter()
        self.slots = []
        self.epoch = None
        self.dice = random.Random(f"run {self.seed}")
        self.nstarted = 0

    def start_slot(self):
        number = self.nstarted
        self.nstarted += 1
        env = dict(self.env)
        if self.options.no_shm or self.options.some_shm and number % 2 == 1:
            env["DLDIST_SHM"] = "0"
        self.slots.append(Slot(number, self.folder, self.server, self.prefix_of(number), env))

    def prefix_of(self, number):
        if not self.options.hosts:
            return []
        return self.hosts.namespaces[number % self.options.hosts].prefix

    def run(self):
        print(f"chaos: seed {self.seed}, {self.options.processes} processes, pid {os.getpid()}", flush=True)
        began = time.monotonic()
        self.env = {"PYTHONPATH": os.pathsep.join([HERE, *sys.path])}
        with tempfile.TemporaryDirectory() as self.folder, self.make_hosts() as self.hosts:
            address = self.hosts.address(0) if self.options.hosts else "127.0.0.1"
            server = procs.Child(worker.serve, (address,), self.env, self.prefix_of(0))
            self.server = address, server.recv()
            try:
                self.run_epochs(began + 60 * self.options.minutes)
                server.send("end")
                nkeys = server.result()
            except (Trouble, AssertionError) as trouble:
                self.explain(trouble)
                return 1
            finally:
                for slot in self.slots:
                    slot.close()
                server.close()
        took = time.monotonic() - began
        shown = ", ".join(f"{name} {value}" for name, value in sorted(self.counts.items()))
        print(f"chaos: passed in {took:.0f} s with seed {self.seed}: {shown}, keys left {nkeys}")
        return 0

    def make_hosts(self):
        return netns.Hosts(self.options.hosts) if self.options.hosts else contextlib.nullcontext()

    def run_epochs(self, deadline):
        number = self.options.first_epoch
        while time.monotonic() < deadline and number - self.options.first_epoch < self.options.epochs:
            # After a death, continue with the survivors only or add a process.
            while len(self.slots) < 2 or len(self.slots) < self.options.processes and self.dice.random() < 0.6:
                self.start_slot()
            self.dice.shuffle(self.slots)
            self.epoch = Epoch(number, self.seed, list(self.slots), self.counts, not self.options.no_regions)
            if self.options.verbose:
                print(f"epoch {number}: {len(self.slots)} ranks, {len(self.epoch.script.steps)} steps, {self.epoch.fault}")
            began = time.monotonic()
            self.epoch.run()
            if self.options.verbose:
                print(f"    {time.monotonic() - began:.2f} s", flush=True)
            for rank in self.epoch.dead:
                self.slots.remove(self.epoch.slots[rank])
                self.epoch.slots[rank].close()
            number += 1

    def explain(self, trouble):
        epoch = self.epoch
        again = [word for word in sys.argv if word != "--verbose"]
        print(f"\nchaos: FAILED with seed {self.seed}, epoch {epoch.number}, {len(epoch.slots)} ranks: {trouble}")
        print(f"fault: {epoch.fault}")
        print(f"the same world: --epochs 1 --first-epoch {epoch.number} --seed {self.seed} --processes {len(epoch.slots)}")
        print(
            f"again: python {' '.join(again)} --seed {self.seed} --processes {self.options.processes} "
            f"--first-epoch {max(epoch.number - 2, 0)}"
        )
        for rank, slot in enumerate(epoch.slots):
            print(f"\n---- rank {rank}, process {slot.number}, pid {slot.child.pid}: {slot.progress()}")
            print(epoch.reports.get(rank, "has not reported"))
            if rank in epoch.dead or slot.child.process.poll() is not None:
                print(f"has ended: {slot.child.process.poll()}")
            elif isinstance(trouble, Hang):
                print_stacks(slot.child.pid)
            print(slot.child.stderr_text()[-6000:])
        sys.stdout.flush()


def print_stacks(pid):
    """Print Python's stacks to its stderr, and the C stacks if there is a debugger."""
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.5)
    for command in (["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"], ["eu-stack", "-p", str(pid)]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = [line for line in done.stdout.splitlines() if line.startswith("Thread") or "dd_" in line or "csrc/" in line]
        print("\n".join(lines))
        return
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/wchan", encoding="ascii") as file:
            print(f"thread {task} in {file.read()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--processes", type=int, default=2 * max(os.cpu_count() or 1, 2))
    parser.add_argument("--epochs", type=int, default=1 << 30)
    parser.add_argument("--first-epoch", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=0, help="network namespaces to spread the processes over")
    parser.add_argument("--no-shm", action="store_true", help="without shared memory between processes")
    parser.add_argument("--some-shm", action="store_true", help="every second process without shared memory")
    parser.add_argument("--no-regions", action="store_true", help="no memory of group.empty()")
    parser.add_argument("--allow-fds", type=int, default=0, help="how many descriptors may leak, to look for other things")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    ALLOWED["fds"] += options.allow_fds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return Run(options).run()


if __name__ == "__main__":
    sys.exit(main())
