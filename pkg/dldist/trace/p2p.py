"""Compares messages: the sends of one rank to another with the other's receives, in order."""

from __future__ import annotations

import dataclasses

from dldist.trace import model as model
from dldist.trace.compare import counts
from dldist.trace.model import Case, Group, Verdict, capitalised, operands_text, state_text
from dldist.trace.read import ANY_PEER, Entry


def analyse(case: Case, group: Group) -> None:
    sends, receives, any_source = by_pair(group)
    for source, target in sorted({*sends, *receives}):
        pair = _Pair(case, group, source, target)
        group.verdicts += pair.verdicts(
            sends.get((source, target), []), receives.get((source, target), []), any_source.get(target, [])
        )
    for target, entries in sorted(any_source.items()):
        if waiting := [entry for entry in entries if not entry.is_ended]:
            group.verdicts.append(_Pair(case, group, None, target).no_send(waiting[0]))


Pairs = dict[tuple[int, int], list[Entry]]


def by_pair(group: Group) -> tuple[Pairs, Pairs, dict[int, list[Entry]]]:
    """Return sends and receives by (source, target), and receives from any rank by target."""
    sends: Pairs = {}
    receives: Pairs = {}
    any_source: dict[int, list[Entry]] = {}
    for rank, entries in group.messages.items():
        for entry in entries:
            peer = entry.target if entry.op == "send" else entry.source
            other = group.global_rank(peer)
            if entry.op == "send" and other is not None:
                sends.setdefault((rank, other), []).append(entry)
            elif entry.op == "recv" and peer == ANY_PEER:
                any_source.setdefault(rank, []).append(entry)
            elif entry.op == "recv" and other is not None:
                receives.setdefault((other, rank), []).append(entry)
    return sends, receives, any_source


@dataclasses.dataclass(slots=True)
class _Pair:
    """Two ranks that exchange messages in a group."""

    case: Case
    group: Group
    source: int | None
    """The sending rank, or None if the target receives from any rank."""
    target: int

    def verdicts(self, sends: list[Entry], receives: list[Entry], any_source: list[Entry]) -> list[Verdict]:
        """Compare sends and receives. Remove used receives from `any_source` (from any rank)."""
        ends = [rank for rank in (self.source, self.target) if rank is not None]
        if any(rank not in self.case.dumps for rank in ends):
            return self.one_sided(ends, [entry for entry in [*sends, *receives] if not entry.is_ended])
        if any(self.case.dumps[rank].is_partial for rank in ends):
            # One side's oldest records were overwritten: compare only unfinished messages.
            sends = [entry for entry in sends if not entry.is_ended]
            receives = [entry for entry in receives if not entry.is_ended]
        common_length = min(len(sends), len(receives))
        unequal_pairs = [(s, r) for s, r in zip(sends, receives) if sum(counts(s.inputs)) != sum(counts(r.outputs))]
        if unequal_pairs and not _is_reordered(sends[:common_length], receives[:common_length]):
            return [self.unequal(*unequal_pairs[0])]
        if unmatched := _unmatched_sends(sends[common_length:], any_source):
            return [self.no_receive(next((entry for entry in unmatched if not entry.is_completed), unmatched[0]))]
        if waiting := [entry for entry in receives[common_length:] if not entry.is_completed]:
            return [self.no_send(waiting[0])]
        unfinished = [(s, r) for s, r in zip(sends, receives) if not s.is_ended or not r.is_ended]
        return [self.in_progress(*unfinished[0])] if unfinished else []

    def one_sided(self, ends: list[int], waiting: list[Entry]) -> list[Verdict]:
        lost = [rank for rank in ends if rank in self.case.lost]
        if not waiting or not lost:
            return []
        waiting_rank = next(rank for rank in ends if rank not in lost)
        text = f"{capitalised(model.no_dump_text(lost))}. "
        text += f"Rank {waiting_rank} waits for it in {self.call(waiting[0])}, {self.group.title}."
        return [self.verdict(model.DEAD_RANK, text, lost, [waiting_rank], {waiting_rank: waiting[0]})]

    def no_receive(self, send: Entry) -> Verdict:
        assert self.source is not None
        text = f"Rank {self.source} has {self.call(send)} in {self.group.title} that rank {self.target} has not called a recv for; "
        verdict = self.verdict(
            model.UNMATCHED_SEND, f"{text}{state_text(send)}.", [self.target], [self.source], {self.source: send}
        )
        verdict.is_problem = not send.is_completed
        return verdict

    def no_send(self, receive: Entry) -> Verdict:
        waits = "waited" if receive.is_ended else "waits"
        text = f"Rank {self.target} {waits} in {self.call(receive)} in {self.group.title}, and "
        text += "no send is left that it could get." if self.source is None else f"rank {self.source} has not called the send."
        culprits = [] if self.source is None else [self.source]
        return self.verdict(model.UNMATCHED_RECV, text, culprits, [self.target], {self.target: receive})

    def unequal(self, send: Entry, receive: Entry) -> Verdict:
        assert self.source is not None
        text = f"The sizes of a message of {self.group.title} do not fit: rank {self.source} has {self.call(send)}, "
        text += f"rank {self.target} has {self.call(receive)}."
        entries = {self.source: send, self.target: receive}
        return self.verdict(model.WRONG_SIZE, text, [self.target], [self.source], entries)

    def in_progress(self, send: Entry, receive: Entry) -> Verdict:
        assert self.source is not None
        text = f"A message of {self.group.title} is under way, and both sides match: rank {self.source} has {self.call(send)}, "
        text += f"{state_text(send)}; rank {self.target} has {self.call(receive)}, {state_text(receive)}."
        entries = {self.source: send, self.target: receive}
        waiting = [rank for rank, entry in entries.items() if not entry.is_ended]
        return self.verdict(model.STUCK, text, waiting, sorted(set(entries) - set(waiting)), entries)

    def call(self, entry: Entry) -> str:
        peer = "any rank" if self.source is None else f"rank {self.source}"
        text = f"a send to rank {self.target}" if entry.op == "send" else f"a recv from {peer}"
        operands = operands_text(entry).removeprefix("-> ")
        return text + (f" of {operands}" if operands else "") + self.case.sites.in_parentheses(entry.frames)

    def verdict(self, kind: str, text: str, culprits: list[int], others: list[int], entries: dict[int, Entry]) -> Verdict:
        sites = {rank: site for rank, entry in entries.items() if (site := self.case.sites.call_site(entry.frames))}
        op = "/".join(dict.fromkeys(entry.op for entry in entries.values()))
        lines = model.lines_by_rank({rank: f"{entry.op}, {state_text(entry)}" for rank, entry in entries.items()})
        waiting = [rank for rank, entry in entries.items() if not entry.is_completed]
        location = self.group.name, self.group.desc, None, op
        return Verdict(kind, text, *location, culprits, others, waiting, sites, lines=lines)


def _is_reordered(sends: list[Entry], receives: list[Entry]) -> bool:
    """Return True if both sides have the same messages in another order, as tags permit."""
    return sorted(counts(entry.inputs) for entry in sends) == sorted(counts(entry.outputs) for entry in receives)


def _unmatched_sends(sends: list[Entry], any_source: list[Entry]) -> list[Entry]:
    """Return sends that match no receive from any rank; remove used receives from `any_source`."""
    count = min(len(sends), len(any_source))
    del any_source[:count]
    return sends[count:]
