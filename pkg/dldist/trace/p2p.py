"""Messages: compares the sends of one rank to another with the receives there, in order."""

from __future__ import annotations

from dldist.trace import model as model
from dldist.trace.compare import counts
from dldist.trace.model import Case, Group, Verdict, capitalised, operands_text, ranks_text, state_text
from dldist.trace.read import ANY_PEER, Entry


def analyse(case: Case, group: Group) -> None:
    sends, receives, wild = _by_pair(group)
    for source, target in sorted({*sends, *receives}):
        pair = sends.get((source, target), []), receives.get((source, target), []), wild.get(target, [])
        group.verdicts.extend(_pair(case, group, (source, target), *pair))
    for target, entries in sorted(wild.items()):
        if waiting := [entry for entry in entries if not entry.is_ended]:
            group.verdicts.append(_verdict(case, group, model.UNMATCHED_RECV, (None, target), waiting[0]))


Pairs = dict[tuple[int, int], list[Entry]]


def _by_pair(group: Group) -> tuple[Pairs, Pairs, dict[int, list[Entry]]]:
    """Sends and receives by (from, to), in global ranks, and receives from any rank by the receiving rank."""
    sends: Pairs = {}
    receives: Pairs = {}
    wild: dict[int, list[Entry]] = {}
    for rank, entries in group.messages.items():
        for entry in entries:
            peer = entry.target if entry.op == "send" else entry.source
            other = group.global_rank(peer)
            if entry.op == "send" and other is not None:
                sends.setdefault((rank, other), []).append(entry)
            elif entry.op == "recv" and peer == ANY_PEER:
                wild.setdefault(rank, []).append(entry)
            elif entry.op == "recv" and other is not None:
                receives.setdefault((other, rank), []).append(entry)
    return sends, receives, wild


def _pair(
    case: Case, group: Group, ends: tuple[int, int], sends: list[Entry], receives: list[Entry], wild: list[Entry]
) -> list[Verdict]:
    if any(rank not in case.dumps for rank in ends):
        return _one_sided(case, group, ends, [entry for entry in [*sends, *receives] if not entry.is_ended])
    if any(case.dumps[rank].is_partial for rank in ends):
        # One side has forgotten its first messages. The unfinished ones are the last on both sides.
        sends = [entry for entry in sends if not entry.is_ended]
        receives = [entry for entry in receives if not entry.is_ended]
    both = min(len(sends), len(receives))
    bad = [(s, r) for s, r in zip(sends, receives) if sum(counts(s.inputs)) != sum(counts(r.outputs))]
    if bad and not _is_reordered(sends[:both], receives[:both]):
        return [_unequal(case, group, ends, *bad[0])]
    if len(sends) > both:
        left = _not_taken(sends[both:], wild)
        if left and any(not entry.is_completed for entry in left):
            first = next(entry for entry in left if not entry.is_completed)
            return [_verdict(case, group, model.UNMATCHED_SEND, ends, first)]
        if left:
            verdict = _verdict(case, group, model.UNMATCHED_SEND, ends, left[0])
            verdict.is_problem = False
            return [verdict]
    if len(receives) > both and (waiting := [entry for entry in receives[both:] if not entry.is_completed]):
        return [_verdict(case, group, model.UNMATCHED_RECV, ends, waiting[0])]
    stuck = [(s, r) for s, r in zip(sends, receives) if not s.is_ended or not r.is_ended]
    return [_under_way(case, group, ends, *stuck[0])] if stuck else []


def _is_reordered(sends: list[Entry], receives: list[Entry]) -> bool:
    """Whether these are the same messages in another order: they have tags, which dumps do not record."""
    return sorted(counts(entry.inputs) for entry in sends) == sorted(counts(entry.outputs) for entry in receives)


def _not_taken(sends: list[Entry], wild: list[Entry]) -> list[Entry]:
    """The sends that no receive from any rank can have taken. Removes from `wild` the receives that took the others."""
    taken = min(len(sends), len(wild))
    del wild[:taken]
    return sends[taken:]


def _one_sided(case: Case, group: Group, ends: tuple[int, int], waiting: list[Entry]) -> list[Verdict]:
    lost = [rank for rank in ends if rank in case.lost]
    if not waiting or not lost:
        return []
    here = next(rank for rank in ends if rank not in lost)
    text = f"{capitalised(ranks_text(lost))} has left no dump: it has died, or its file is elsewhere. "
    text += f"{capitalised(ranks_text([here]))} waits for it in {_call(case, waiting[0], ends)}, {group.title}."
    return [_new_verdict(case, group, model.DEAD_RANK, text, lost, [here], {here: waiting[0]})]


def _call(case: Case, entry: Entry, ends: tuple[int | None, int]) -> str:
    whom = f"to rank {ends[1]}" if entry.op == "send" else "from any rank" if ends[0] is None else f"from rank {ends[0]}"
    text = f"a {entry.op} {whom}"
    operands = operands_text(entry).removeprefix("-> ")
    site = case.sites.of(entry.frames)
    return text + (f" of {operands}" if operands else "") + (f" ({site})" if site else "")


def _verdict(case: Case, group: Group, kind: str, ends: tuple[int | None, int], entry: Entry) -> Verdict:
    source, target = ends
    if kind == model.UNMATCHED_SEND:
        assert source is not None
        text = f"Rank {source} has {_call(case, entry, ends)} in {group.title} that rank {target} has not called a recv for"
        return _new_verdict(case, group, kind, text + f"; {state_text(entry)}.", [target], [source], {source: entry})
    waits = "waited" if entry.is_ended else "waits"
    text = f"Rank {target} {waits} in {_call(case, entry, ends)} in {group.title}, and "
    text += f"rank {source} has not called the send" if source is not None else "no send is left that it could get"
    culprits = [source] if source is not None else []
    return _new_verdict(case, group, kind, text + ".", culprits, [target], {target: entry})


def _unequal(case: Case, group: Group, ends: tuple[int, int], send: Entry, receive: Entry) -> Verdict:
    source, target = ends
    text = f"The sizes of a message of {group.title} do not fit: rank {source} has {_call(case, send, ends)}, "
    text += f"rank {target} has {_call(case, receive, ends)}."
    return _new_verdict(case, group, model.WRONG_SIZE, text, [target], [source], {source: send, target: receive})


def _under_way(case: Case, group: Group, ends: tuple[int, int], send: Entry, receive: Entry) -> Verdict:
    source, target = ends
    text = f"A message of {group.title} is under way, and both sides match: rank {source} has {_call(case, send, ends)}, "
    text += f"{state_text(send)}; "
    text += f"rank {target} has {_call(case, receive, ends)}, {state_text(receive)}."
    waiting = [rank for rank, entry in ((source, send), (target, receive)) if not entry.is_ended]
    others = sorted(set(ends) - set(waiting))
    return _new_verdict(case, group, model.STUCK, text, waiting, others, {source: send, target: receive})


def _new_verdict(
    case: Case, group: Group, kind: str, text: str, culprits: list[int], others: list[int], entries: dict[int, Entry]
) -> Verdict:
    sites = {rank: site for rank, entry in entries.items() if (site := case.sites.of(entry.frames))}
    op = "/".join(dict.fromkeys(entry.op for entry in entries.values()))
    lines = model.lines_by_rank({rank: f"{entry.op}, {state_text(entry)}" for rank, entry in entries.items()})
    waiting = [rank for rank, entry in entries.items() if not entry.is_completed]
    return Verdict(kind, text, group.name, group.desc, None, op, culprits, others, waiting, sites, lines=lines)
