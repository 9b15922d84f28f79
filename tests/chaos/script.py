"""The script of a world of chaos.py: a list of steps that every rank derives only from the seed.

A rank runs the steps of its groups in list order, so that no script can deadlock by itself. Ranks
are world ranks.
"""

import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "py", "support"))

import oracle  # noqa: E402

WORLD = 0
MAX_GROUPS = 6
LARGEST_LOG2 = 17
FAULTS = ("none", "kill", "stop", "pause", "abort", "mismatch", "close", "interrupt")
FAULT_WEIGHTS = (3, 6, 1, 4, 4, 4, 2, 3)


class Step:
    """kind: split, call, batch, messages, threads, close, monitored_barrier. `group` and further
    attributes depend on the kind."""

    def __init__(self, kind, group, **fields):
        self.kind, self.group = kind, group
        self.__dict__.update(fields)

    def __repr__(self):
        shown = {key: value for key, value in vars(self).items() if key != "kind"}
        return f"{self.kind} {shown}"


class Fault:
    """A fault of the ranks `victims` at step `step`, on `group` if it concerns one. If it comes
    from another thread or from outside, it comes `delay` seconds later."""

    def __init__(self, kind, step, victims, delay, seconds):
        self.kind, self.step, self.victims = kind, step, victims
        self.delay, self.seconds = delay, seconds
        self.group = None
        self.case = None  # mismatch: the victim's call

    def __repr__(self):
        where = f" on group {self.group}" if self.group is not None else ""
        return f"{self.kind} of ranks {self.victims} at step {self.step}{where} (delay {self.delay:.4f} s)"

    def is_about(self, group, members):
        """Return True if the group itself fails, and not only some of its members."""
        if self.kind in ("kill", "stop"):
            return any(victim in members for victim in self.victims)
        return self.group is not None and self.group == group


class Script:
    def __init__(self, seed, epoch, nranks):
        self.dice = random.Random(f"{seed} {epoch} {nranks}")
        self.nranks = nranks
        self.groups = {WORLD: list(range(nranks))}
        self.ngroups = 1
        self.nany = 0
        self.steps = []
        for _ in range(self.dice.randrange(5, 60)):
            self.steps.append(self.make_step())
        self.fault = self.make_fault()

    def make_fault(self):
        kind = self.dice.choices(FAULTS, FAULT_WEIGHTS)[0]
        if self.nranks == 1 and kind not in ("none", "pause", "interrupt"):
            kind = "none"
        nvictims = 1
        if kind == "kill" and self.nranks > 2 and self.dice.random() < 0.25:
            nvictims = 2
        victims = self.dice.sample(range(self.nranks), nvictims)
        # Step -1 is the creation of the groups.
        step = self.dice.randrange(-1 if kind in ("kill", "pause", "stop") else 0, len(self.steps))
        fault = Fault(kind, step, victims, self.dice.random() ** 3 * 0.05, 0.01 + self.dice.random() ** 2)
        if kind in ("abort", "close"):
            there = self.groups_at(step, victims[0])
            fault.group = self.dice.choice(there) if there else None
        elif kind == "mismatch":
            self.plan_mismatch(fault)
        if kind in ("abort", "close", "mismatch") and fault.group is None:
            fault.kind = "none"
        return fault

    def groups_at(self, step, rank):
        """Return the groups of several ranks that contain the rank before the step."""
        groups = {WORLD: list(range(self.nranks))}
        for earlier in self.steps[:step]:
            if earlier.kind == "split":
                groups[earlier.group] = earlier.ranks
            elif earlier.kind == "close":
                groups.pop(earlier.group)
        return [group for group, ranks in groups.items() if rank in ranks and len(ranks) > 1]

    def plan_mismatch(self, fault):
        """Find the victim's first call from that step on that can be made different."""
        members = {WORLD: list(range(self.nranks))}
        members.update((step.group, step.ranks) for step in self.steps if step.kind == "split")
        for number in range(fault.step, len(self.steps)):
            step = self.steps[number]
            if step.kind != "call" or fault.victims[0] not in members[step.group] or len(members[step.group]) == 1:
                continue
            fault.case = spoil(step.case, len(members[step.group]), self.dice)
            if fault.case is not None:
                fault.step, fault.group = number, step.group
                return

    def make_step(self):
        kinds = ["call"] * 8 + ["batch"] * 3 + ["messages"] * 3 + ["threads", "split", "split", "monitored_barrier"]
        if len(self.groups) > 1:
            kinds.append("close")
        return getattr(self, f"make_{self.dice.choice(kinds)}")()

    def pick_group(self):
        return self.dice.choice(list(self.groups))

    def make_split(self):
        if len(self.groups) >= MAX_GROUPS:
            return self.make_close()
        parent = self.pick_group()
        ranks = self.dice.sample(self.groups[parent], self.dice.randint(1, len(self.groups[parent])))
        group = self.ngroups
        self.ngroups += 1
        self.groups[group] = ranks
        return Step("split", group, parent=parent, ranks=ranks)

    def make_close(self):
        group = self.dice.choice([group for group in self.groups if group != WORLD])
        del self.groups[group]
        return Step("close", group)

    def make_call(self):
        group = self.pick_group()
        return Step("call", group, case=self.make_case(group), is_async=self.dice.random() < 0.2)

    def make_monitored_barrier(self):
        return Step("monitored_barrier", self.pick_group())

    def make_batch(self):
        calls = []
        for _ in range(self.dice.randint(2, 8)):
            group = self.pick_group()
            calls.append((group, self.make_case(group)))
        return Step("batch", None, calls=calls)

    def make_messages(self):
        """Return (source, destination, tag, count, is_any_source) with group ranks. Receives from
        any source have their own tag, because another rank may be some steps ahead."""
        group = self.pick_group()
        size = len(self.groups[group])
        messages = []
        for _ in range(self.dice.randint(1, 10)):
            src, dst = self.dice.randrange(size), self.dice.randrange(size)
            # A receive from any source does not match its own rank's sends: once all other ranks
            # have left, it fails.
            is_any = src != dst and self.dice.random() < 0.2
            self.nany += is_any
            tag = 100 + self.nany if is_any else self.dice.randrange(3)
            messages.append((src, dst, tag, self.make_count(), is_any))
        return Step("messages", group, messages=messages)

    def make_threads(self):
        """Use several groups concurrently, each from its own thread."""
        groups = self.dice.sample(list(self.groups), min(len(self.groups), self.dice.randint(1, 3)))
        calls = [(group, [self.make_case(group) for _ in range(self.dice.randint(2, 6))]) for group in groups]
        return Step("threads", None, calls=calls)

    def make_count(self):
        if self.dice.random() < 0.05:
            return 0
        return int(2 ** (self.dice.random() * LARGEST_LOG2))

    def make_case(self, group):
        size = len(self.groups[group])
        op = self.dice.choice(oracle.COLLECTIVES)
        code = self.dice.choice(oracle.CODES)
        allowed = [name for name in oracle.REDUCTIONS if oracle.can_reduce(op, code, name, size)]
        counts = None
        if op in oracle.UNEVEN and self.dice.random() < 0.4:
            if op in ("all_to_all", "all_to_all_single"):
                counts = [[self.make_count() // size for _ in range(size)] for _ in range(size)]
            else:
                counts = [self.make_count() for _ in range(size)]
        return oracle.Case(
            op, code, self.make_count(), counts, self.dice.randrange(size), self.dice.choice(allowed), self.dice.randrange(99)
        )  # fmt: skip


def spoil(case, size, dice):
    """Return the case with a difference from the other ranks' case, or None if no difference is an
    error."""
    changes = ["op", "reduce", "root", "code", "count"]
    dice.shuffle(changes)
    for change in changes:
        if change == "op":
            return case.varied(op="all_reduce" if case.op != "all_reduce" else "broadcast", counts=None)
        if change == "reduce" and case.op in oracle.REDUCING:
            return case.varied(reduce="MAX" if case.reduce != "MAX" else "SUM")
        if change == "root" and case.op in oracle.ROOTED and size > 1:
            return case.varied(root=(case.root + 1) % size)
        if change == "code" and case.op != "barrier" and case.count > 0 and case.counts is None:
            return case.varied(code="f" if case.code != "f" else "i", reduce="SUM")
        if change == "count" and case.op != "barrier" and case.counts is None:
            return case.varied(count=case.count + 1)
    return None
