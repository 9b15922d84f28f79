"""Data of an analysis: groups, their calls by rank and verdicts; and names of these in texts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from dldist.trace.clock import Clocks, Sample, estimate, is_synchronising
from dldist.trace.read import Dump, Entry
from dldist.trace.sites import Sites

_Value = TypeVar("_Value")

# Kinds of verdicts.
MISSING_RANK = "missing_rank"
DEAD_RANK = "dead_rank"
WRONG_OP = "wrong_op"
WRONG_ORDER = "wrong_order"
WRONG_SIZE = "wrong_size"
WRONG_DTYPE = "wrong_dtype"
WRONG_ROOT = "wrong_root"
WRONG_MEMBERS = "wrong_members"
SLOW_RANK = "slow_rank"
STUCK = "stuck"
FAILED = "failed"
UNMATCHED_SEND = "unmatched_send"
UNMATCHED_RECV = "unmatched_recv"
DIFFERENT_SHAPE = "different_shape"
OLD_DUMP = "old_dump"
UNREADABLE = "unreadable"


@dataclasses.dataclass(slots=True)
class Verdict:
    """One finding: a problem or a note."""

    kind: str
    """The kind: a constant of this module, such as "missing_rank"."""
    text: str
    """The finding as text, in full sentences."""
    group: str = ""
    """The name of the group; "" if the verdict concerns no group."""
    desc: str = ""
    seq: int | None = None
    """The number of the collective in its group, from 1; None if the verdict concerns none."""
    op: str = ""
    culprits: list[int] = dataclasses.field(default_factory=list)
    """Global ranks that differ from the other ranks. If only two ranks disagree, the higher one."""
    others: list[int] = dataclasses.field(default_factory=list)
    """The ranks that wait for the culprits, or that the culprits differ from."""
    waiting: list[int] = dataclasses.field(default_factory=list)
    """The ranks that have called the operation and have not completed it."""
    sites: dict[int, str] = dataclasses.field(default_factory=dict)
    """The call site of each rank."""
    is_problem: bool = True
    """False for a note: no rank is stuck because of this finding."""
    because: Verdict | None = None
    """The problem that caused this problem, or None."""
    lines: list[str] = dataclasses.field(default_factory=list)
    """Lines about the state of each rank, for the detailed report."""

    def to_json(self) -> dict[str, Any]:
        names = ("kind", "text", "group", "desc", "seq", "op", "culprits", "others", "waiting", "is_problem")
        found = {name: getattr(self, name) for name in names}
        found["sites"] = {str(rank): site for rank, site in self.sites.items()}
        found["because"] = self.because.text if self.because else None
        return found


def title_of(name: str, desc: str) -> str:
    """Return a group's title. The default group is "default", as in errors, not its number."""
    if desc == "default_pg":
        return 'group "default"'
    return f'group "{name}"' + (f" ({desc})" if desc and desc != "undefined" else "")


@dataclasses.dataclass(slots=True)
class Group:
    name: str
    desc: str
    ranks: tuple[int, ...]
    """The global ranks of the members, ordered by rank in the group."""
    is_inferred: bool
    """True if no dump lists the members; `ranks` then has the ranks that called the group."""
    calls: dict[int, dict[int, list[Entry]]] = dataclasses.field(default_factory=dict)
    """Entries of collectives, by rank and number. A coalesced block has several entries."""
    messages: dict[int, list[Entry]] = dataclasses.field(default_factory=dict)
    """Entries of sends and receives, by rank."""
    matched: list[int] = dataclasses.field(default_factory=list)
    """The numbers of collectives that all ranks called with matching arguments and completed."""
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)

    @property
    def title(self) -> str:
        return title_of(self.name, self.desc)

    def numbers(self) -> list[int]:
        return sorted({seq for calls in self.calls.values() for seq in calls})

    def calls_of(self, seq: int) -> dict[int, list[Entry]]:
        """Return one collective's entries, by rank."""
        return {rank: calls[seq] for rank, calls in self.calls.items() if seq in calls}

    def global_rank(self, rank: int) -> int | None:
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else None


@dataclasses.dataclass(slots=True)
class Case:
    """All dumps, and the data that was derived from them before the comparison."""

    dumps: dict[int, Dump]
    world: list[int]
    """All ranks that any dump mentions, with or without a dump."""
    lost: list[int]
    """Ranks of `world` that have no dump."""
    groups: list[Group]
    clocks: Clocks
    sites: Sites
    end_ns: int
    """The time of the last event in any dump, on the reference clock."""

    def created(self, rank: int, entry: Entry) -> int:
        return self.clocks.to_common(rank, entry.created_ns)


@dataclasses.dataclass(slots=True)
class Collective:
    """One collective of a group, on all ranks that have called it."""

    case: Case
    group: Group
    seq: int
    calls: dict[int, list[Entry]]
    """The entries of each rank, in rank order. A coalesced block has several entries."""

    @property
    def first_entries(self) -> list[Entry]:
        """The entries of the lowest rank."""
        return next(iter(self.calls.values()))

    @property
    def title(self) -> str:
        return f"{call_name(self.first_entries)} #{self.seq} of {self.group.title}"

    @property
    def pending(self) -> list[int]:
        """The ranks that have not completed the collective."""
        return [rank for rank, entries in self.calls.items() if not entries[-1].is_completed]

    def without(self, ranks: Iterable[int]) -> list[int]:
        return sorted(set(self.calls) - set(ranks))

    def site(self, rank: int) -> str:
        """Return the call site of a rank."""
        return self.case.sites.call_site(self.calls[rank][0].frames)

    def failed(self) -> Entry | None:
        """Return the first entry, by rank, with a recorded error."""
        return next((entry for entries in self.calls.values() for entry in entries if entry.error), None)

    def verdict(
        self,
        kind: str,
        text: str,
        culprits: list[int],
        lines: dict[int, str],
        sites: dict[int, str],
        *,
        op: str = "",
        is_problem: bool = True,
    ) -> Verdict:
        """Return a verdict about this collective."""
        position = self.group.name, self.group.desc, self.seq, op or call_name(self.first_entries)
        ranks = sorted(culprits), self.without(culprits), self.pending
        known_sites = {rank: site for rank, site in sites.items() if site}
        return Verdict(kind, text, *position, *ranks, known_sites, is_problem, lines=lines_by_rank(lines))


def build(dumps: dict[int, Dump], unreadable: Iterable[int] = ()) -> Case:
    groups = _groups(dumps)
    all_ranks = set(dumps) | set(unreadable) | {rank for group in groups for rank in group.ranks}
    world = sorted(all_ranks)
    clocks = estimate(sorted(dumps), _samples(groups, True), _samples(groups, False))
    end = max((clocks.to_common(r, e.last_ns) for r, dump in dumps.items() for e in dump.entries), default=0)
    lost = sorted(all_ranks - set(dumps) - set(unreadable))
    return Case(dumps, world, lost, groups, clocks, Sites(dumps.values()), end)


def _groups(dumps: dict[int, Dump]) -> list[Group]:
    found: dict[tuple[str, frozenset[int] | None], Group] = {}
    for dump in dumps.values():
        for config in dump.groups.values():
            key = config.name, frozenset(config.ranks)
            found.setdefault(key, Group(config.name, config.desc, config.ranks, is_inferred=False))
    for rank, dump in sorted(dumps.items()):
        for entry in dump.entries:
            group = _group_of(found, dump, rank, entry)
            if entry.is_p2p:
                if entry.op in ("send", "recv"):
                    group.messages.setdefault(rank, []).append(entry)
            else:
                group.calls.setdefault(rank, {}).setdefault(entry.seq, []).append(entry)
    for group in found.values():
        if group.is_inferred:
            has_all_ranks = group.desc == "default_pg"
            group.ranks = tuple(sorted(dumps if has_all_ranks else {*group.calls, *group.messages}))
        _drop_markers(group)
    return sorted(found.values(), key=lambda group: (group.desc != "default_pg", len(group.name), group.name, group.ranks))


def _group_of(found: dict[tuple[str, frozenset[int] | None], Group], dump: Dump, rank: int, entry: Entry) -> Group:
    config = dump.groups.get(entry.group)
    if config:
        return found[config.name, frozenset(config.ranks)]
    for (name, ranks), group in found.items():
        if name == entry.group and ranks and rank in ranks:
            return group
    return found.setdefault((entry.group, None), Group(entry.group, entry.desc, (), is_inferred=True))


def _drop_markers(group: Group) -> None:
    """Drop entries that only end a block of messages, because not all ranks have such a block."""
    for rank, calls in group.calls.items():
        message_indices = {entry.index for entry in group.messages.get(rank, ())}
        for seq in [seq for seq, entries in calls.items() if len(entries) == 1 and entries[0].op == "coalesced"]:
            if calls[seq][0].index - 1 in message_indices:
                del calls[seq]


def _samples(groups: list[Group], needs_all: bool) -> list[Sample]:
    """Return the ranks' times of completed collectives: synchronising if needs_all, else others."""
    samples: list[Sample] = []
    for group in groups:
        for seq in group.numbers():
            sample = {}
            for rank, entries in group.calls_of(seq).items():
                entry = entries[-1]
                if entry.completed_ns is not None and entry.is_completed and is_synchronising(entry.op) == needs_all:
                    sample[rank] = entry.created_ns, entry.completed_ns
            if len(sample) > 1:
                samples.append(sample)
    return samples


def call_name(entries: list[Entry]) -> str:
    """Return the name of a call or block, without sizes."""
    names = list(dict.fromkeys(entry.op for entry in entries))
    return names[0] if len(entries) == 1 else f"a block of {len(entries)} ({join_words(names[:4])})"


def ranks_text(ranks: Iterable[int]) -> str:
    """Format ranks, such as "rank 3", "ranks 0 and 2" or "ranks 0 to 5 and 7"."""
    sorted_ranks = sorted(set(ranks))
    parts: list[str] = []
    for first, last in runs(sorted_ranks):
        # List only runs of three or more ranks as "first to last".
        parts += [f"{first} to {last}"] if last > first + 1 else map(str, range(first, last + 1))
    return f"rank {sorted_ranks[0]}" if len(sorted_ranks) == 1 else f"ranks {join_words(parts)}"


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each contiguous run."""
    result: list[tuple[int, int]] = []
    for number in numbers:
        if result and number == result[-1][1] + 1:
            result[-1] = result[-1][0], number
        else:
            result.append((number, number))
    return result


def join_words(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def ranks_clause(ranks: Iterable[int], template: str) -> str:
    """Fill in a text such as "[is|are] slow: [it|they] called" for one rank or several."""
    choice = 1 if len(set(ranks)) == 1 else 2
    return f"{ranks_text(ranks)} {_ALTERNATIVES.sub(lambda alternatives: alternatives[choice], template)}"


def no_dump_text(ranks: Iterable[int]) -> str:
    template = "[has left no dump: it has died, or its file is|have left no dumps: they have died, or their files are]"
    return ranks_clause(ranks, f"{template} elsewhere")


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def span_text(ns: int) -> str:
    seconds = abs(ns) / 1e9
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{seconds / size:.3g} {unit}" if seconds / size < 100 else f"{seconds / size:.0f} {unit}"
    raise AssertionError


def shapes_text(shapes: list[list[int]], dtypes: list[str]) -> str:
    """Format shapes, such as "Float[2, 3]", separated by commas."""
    names = dtypes if len(dtypes) == len(shapes) else dtypes[:1] * len(shapes) if len(set(dtypes)) == 1 else [""] * len(shapes)
    parts = [f"{name}{shape}" for name, shape in zip(names, shapes)]
    if len(parts) > 4:
        parts = [*parts[:3], f"... {len(parts)} in all"]
    return ", ".join(parts)


def operands_text(entry: Entry) -> str:
    inputs = shapes_text(entry.inputs, entry.input_dtypes)
    outputs = shapes_text(entry.outputs, entry.output_dtypes)
    if inputs == outputs or not outputs:
        return inputs
    return f"{inputs} -> {outputs}" if inputs else f"-> {outputs}"


_ALTERNATIVES = re.compile(r"\[(.*?)\|(.*?)\]")
_ERROR_PREFIX = re.compile(r'\w+( #\d+)? on group ".*?" \(rank \d+ of \d+\): ')


def reason_text(entry: Entry) -> str:
    """Return an entry's error without the prefix, which repeats the call and the rank."""
    return _ERROR_PREFIX.sub("", entry.error, count=1)


def state_text(entry: Entry, quiet_failure: bool = False) -> str:
    if entry.is_completed:
        return "completed"
    if entry.error:
        return "failed" if quiet_failure else f"failed: {reason_text(entry)}"
    if entry.is_retired:
        return "ended without completing"
    return "started, not completed" if entry.is_started else "called, not started"


def group_by_value(values: dict[int, _Value]) -> list[tuple[list[int], _Value]]:
    """Return each different value with its ranks, ordered by the lowest rank."""
    found: dict[_Value, list[int]] = {}
    for rank in sorted(values):
        found.setdefault(values[rank], []).append(rank)
    return [(ranks, value) for value, ranks in found.items()]


def lines_by_rank(texts: dict[int, str]) -> list[str]:
    rows = [(ranks_text(ranks), text) for ranks, text in group_by_value(texts)]
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def group_by_key(ranks: Iterable[int], key: Callable[[int], Any]) -> list[list[int]]:
    """Group ranks that have an equal `key`. The largest set is first, then the lowest rank."""
    found = [members for members, _ in group_by_value({rank: key(rank) for rank in ranks})]
    return sorted(found, key=lambda members: (-len(members), members[0]))
