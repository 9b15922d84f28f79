"""Goes through the collectives of a group in order, up to the first problem: whatever comes later follows from that."""

from __future__ import annotations

from collections.abc import Sequence

from dldist.trace import compare as compare
from dldist.trace import model as model
from dldist.trace.clock import is_synchronising
from dldist.trace.model import Case, Group, Verdict, capitalised, ranks_text, span_text, state_text, title_of, verb
from dldist.trace.read import Entry

# Whether a rank has called a collective.
CALLED, FORGOTTEN, ABSENT, NO_DUMP = "called", "forgotten", "absent", "no dump"

_MUCH_WORSE = 1.2
"""A rank that is late for one collective is late for those that follow. The first one is worth telling, a later one only if
it is worse by this factor."""


def analyse(case: Case, group: Group, slow_s: float) -> None:
    """Fills in which collectives of the group match, and its verdicts."""
    slowest: Verdict | None = None
    worst_ns = 0
    for seq in group.numbers():
        present = {rank: calls[seq] for rank, calls in group.calls.items() if seq in calls}
        verdict = _problem(case, group, seq, present, slow_s)
        if verdict:
            # For verdicts that are no problem, the first of each kind is enough.
            if verdict.is_problem or all(known.kind != verdict.kind for known in group.verdicts):
                group.verdicts.append(verdict)
            if verdict.is_problem:
                break
            continue
        group.matched.append(seq)
        late, gap = late_ranks(case, present, slow_s, needs_clocks=True)
        if late and gap > worst_ns * _MUCH_WORSE:
            worst_ns, slowest = gap, _slow_note(case, group, seq, present, late, gap)
    if slowest:
        group.verdicts.append(slowest)


def presence(case: Case, group: Group, rank: int, seq: int, present: dict[int, list[Entry]]) -> str:
    if rank not in case.dumps:
        return NO_DUMP
    if rank in present:
        return CALLED
    calls = group.calls.get(rank, {})
    if calls and max(calls) > seq:
        return FORGOTTEN
    dump = case.dumps[rank]
    if not dump.is_partial:
        return ABSENT
    for group_id in _ids_of(group, rank):
        status = dump.status.get(str(group_id), {})
        if status.get("last_enqueued_collective", -1) >= seq:
            return FORGOTTEN
    if not calls and dump.entries:
        # The ring holds nothing of this group any more. If all others called it before the oldest entry here, so did this rank.
        oldest = case.created(rank, dump.entries[0])
        if all(case.created(other, entries[0]) < oldest for other, entries in present.items()):
            return FORGOTTEN
    return ABSENT


def _ids_of(group: Group, rank: int) -> set[int]:
    """The group's ids in the status of a rank's dump: those in its own calls, or else those in the calls of others."""
    some = [group.calls[rank]] if group.calls.get(rank) else list(group.calls.values())
    return {entry.group_id for calls in some for entries in calls.values() for entry in entries}


def _problem(case: Case, group: Group, seq: int, present: dict[int, list[Entry]], slow_s: float) -> Verdict | None:
    where = {rank: presence(case, group, rank, seq, present) for rank in group.ranks}
    found = compare.compare(group, seq, present)
    if found:
        return compare.mismatch(case, group, seq, present, *found)
    absent = [rank for rank in group.ranks if where[rank] == ABSENT]
    if absent:
        return _missing(case, group, seq, present, absent)
    pending = [rank for rank in present if not present[rank][-1].is_completed]
    lost = [rank for rank in group.ranks if where[rank] == NO_DUMP]
    if pending and lost:
        return _dead(case, group, seq, present, lost)
    if pending:
        return _unfinished(case, group, seq, present, pending, slow_s)
    return _odd_shapes(case, group, seq, present)


def late_ranks(case: Case, present: dict[int, list[Entry]], slow_s: float, needs_clocks: bool) -> tuple[list[int], int]:
    """The ranks that called long after the others, and how long after."""
    if needs_clocks and not all(case.clocks.is_known(rank) for rank in present):
        return [], 0
    arrivals = sorted((case.created(rank, entries[0]), rank) for rank, entries in present.items())
    gaps = [(after[0] - before[0], i) for i, (before, after) in enumerate(zip(arrivals, arrivals[1:]), 1)]
    gap, first_late = max(gaps, default=(0, 0))
    if gap < slow_s * 1e9:
        return [], 0
    return sorted(rank for _, rank in arrivals[first_late:]), gap


# ---- verdicts


def _title(group: Group, seq: int, present: dict[int, list[Entry]]) -> str:
    return f"{compare.what(next(iter(present.values())))} #{seq} of {group.title}"


def _verdict(
    case: Case, group: Group, seq: int, present: dict[int, list[Entry]], kind: str, culprits: list[int], text: str
) -> Verdict:
    sites = {rank: site for rank, entries in sorted(present.items()) if (site := case.sites.of(entries[0].frames))}
    lines = {rank: state_text(entries[-1]) for rank, entries in present.items()}
    for rank, site in sites.items():
        lines[rank] += f", called at {site}"
    for rank in group.ranks:
        if rank not in case.dumps:
            lines[rank] = "no dump"
        elif rank not in present:
            lines[rank] = position(case, group, rank)
    op = compare.what(next(iter(present.values())))
    others = sorted(set(present) - set(culprits))
    waiting = sorted(rank for rank, entries in present.items() if not entries[-1].is_completed)
    where = group.name, group.desc, seq, op
    return Verdict(kind, text, *where, sorted(culprits), others, waiting, sites, lines=model.lines_by_rank(lines))


def _waiting_clause(case: Case, present: dict[int, list[Entry]], without: Sequence[int] = ()) -> str:
    """A sentence such as "Ranks 0 and 1 wait in it (train.py:31 in step())"."""
    texts = {}
    for rank, entries in present.items():
        if rank not in without:
            site = case.sites.of(entries[0].frames)
            if entries[-1].is_completed:
                state = "completed it{}"
            elif entries[-1].is_ended:
                state = "called it{}, and it failed"
            else:
                state = "wait in it{}"
            texts[rank] = (state, f" ({site})" if site else "")
    found: dict[tuple[str, str], list[int]] = {}
    for rank, text in sorted(texts.items()):
        found.setdefault(text, []).append(rank)
    clauses = []
    for (state, site), ranks in found.items():
        state = verb(ranks, "waits in it{}", "wait in it{}") if state == "wait in it{}" else state
        clauses.append(f"{ranks_text(ranks)} {state.replace('{}', site)}")
    sentence = capitalised("; ".join(clauses[:4]) + (f"; and {len(clauses) - 4} more" if len(clauses) > 4 else ""))
    if failed := next((entries[-1] for _, entries in sorted(present.items()) if entries[-1].error), None):
        sentence += f". The reason given: {model.reason_text(failed)}"
    return sentence


def position(case: Case, group: Group, rank: int) -> str:
    """How far a rank has come that has not called what the others have."""
    calls = group.calls.get(rank, {})
    if not calls:
        has_more = bool(case.dumps[rank].entries)
        text = "has called no collective of this group" + ("" if has_more else ", nor anything else")
    else:
        entry = calls[max(calls)][-1]
        site = case.sites.of(entry.frames)
        text = (
            f"is at {compare.what(calls[max(calls)])} #{max(calls)}"
            + (f" ({site})" if site else "")
            + f", {state_text(entry, quiet_failure=True)}"
        )
    blocked = blocked_in(case, rank)
    last = blocked or (case.dumps[rank].entries[-1] if case.dumps[rank].entries else None)
    if last and not any(last is entry for entry in calls.get(max(calls, default=0), ())):
        how = "is in" if blocked else "last called"
        text += f"; it {how} {label(last)}" + (f" of {title_of(last.group, last.desc)}" if last.group != group.name else "")
        if site := case.sites.of(last.frames):
            text += f" ({site})"
        text += "" if blocked else f", {state_text(last, quiet_failure=True)}"
    return text


def label(entry: Entry) -> str:
    if entry.is_p2p:
        return f"{entry.op} {entry.source}->{entry.target}"
    return f"{entry.op} #{entry.seq}"


def blocked_in(case: Case, rank: int) -> Entry | None:
    """The oldest unfinished call of the rank, in any group."""
    return next((entry for entry in case.dumps[rank].entries if not entry.is_ended), None)


def _missing(case: Case, group: Group, seq: int, present: dict[int, list[Entry]], absent: list[int]) -> Verdict:
    done = [rank for rank, entries in present.items() if entries[-1].is_completed and entries[-1].completed_ns is not None]
    op = next(iter(present.values()))[-1].op
    title = _title(group, seq, present)
    has = verb(absent, "it has", "they have")
    where = model.by_text({rank: position(case, group, rank) for rank in absent})
    stands = "; ".join(
        (f"{ranks_text(ranks)} " if len(where) > 1 else verb(absent, "it ", "each of them ")) + text
        for ranks, text in where[:4]
    )
    if done and is_synchronising(op):
        text = (
            f"The dump of {ranks_text(absent)} is older than those of the others: {title} was completed, so all have called it."
        )
        verdict = _verdict(case, group, seq, present, model.OLD_DUMP, absent, text)
        verdict.is_problem = False
        return verdict
    text = f"{capitalised(ranks_text(absent))} {verb(absent, 'is', 'are')} missing: {has} not called {title}; {stands}. "
    text += _waiting_clause(case, present) + "."
    return _verdict(case, group, seq, present, model.MISSING_RANK, absent, text)


def _dead(case: Case, group: Group, seq: int, present: dict[int, list[Entry]], lost: list[int]) -> Verdict:
    known = [rank for rank in lost if rank in case.lost]
    kind = model.DEAD_RANK if known else model.UNREADABLE
    why = "has left no dump" if known else "has a dump that cannot be read"
    if len(lost) > 1:
        why = why.replace("has left no dump", "have left no dumps").replace("has a dump", "have dumps")
    end = "it has died, or its file is elsewhere" if len(lost) == 1 else "they have died, or their files are elsewhere"
    text = f"{capitalised(ranks_text(lost))} {why}" + (f": {end}" if known else "")
    text += f". {capitalised(_title(group, seq, present))} is not completed. "
    return _verdict(case, group, seq, present, kind, lost, text + _waiting_clause(case, present) + ".")


def _unfinished(
    case: Case, group: Group, seq: int, present: dict[int, list[Entry]], pending: list[int], slow_s: float
) -> Verdict:
    title = _title(group, seq, present)
    done = sorted(set(present) - set(pending))
    failed = [rank for rank in pending if present[rank][-1].is_ended]
    late, gap = late_ranks(case, present, slow_s, needs_clocks=False)
    clocks = "" if all(case.clocks.is_known(rank) for rank in present) else ", if their clocks agree"
    matched = "everything else about it matches"
    if late:
        who = capitalised(ranks_text(late))
        others = sorted(set(present) - set(late))
        whom = "the others" if len(late) <= len(others) else ranks_text(others)
        text = f"{who} {verb(late, 'is', 'are')} slow: {verb(late, 'it', 'they')} called {title} {span_text(gap)} after {whom}"
        text += f"{clocks}; {matched}. "
        return _verdict(case, group, seq, present, model.SLOW_RANK, late, text + _waiting_clause(case, present) + ".")
    if done and not failed and (len(pending) < len(done) or is_synchronising(present[pending[0]][-1].op)):
        text = (
            f"{capitalised(ranks_text(pending))} {verb(pending, 'is', 'are')} slow: still in {title}, which {ranks_text(done)} "
        )
        text += verb(done, "has", "have") + f" completed; {matched}. " + _waiting_clause(case, present, done) + "."
        return _verdict(case, group, seq, present, model.SLOW_RANK, pending, text)
    if failed:
        errors = {rank: model.reason_text(present[rank][-1]) or "it ended without completing" for rank in failed}
        reasons = "; ".join(f"on {ranks_text(ranks)}: {text}" for ranks, text in model.by_text(errors)[:4])
        text = f"{capitalised(title)} failed, and the calls match: {reasons}."
        return _verdict(case, group, seq, present, model.FAILED, failed, text)
    waits = sorted(rank for rank in pending if not present[rank][-1].is_started)
    if waits and len(waits) < len(present):
        has = verb(waits, "it has", "they have")
        text = f"{capitalised(ranks_text(waits))} {verb(waits, 'is', 'are')} slow: {has} called {title}, "
        text += f"which has not begun there, as when a device is busy with earlier work; {matched}. "
        text += _waiting_clause(case, present) + "."
        return _verdict(case, group, seq, present, model.SLOW_RANK, waits, text)
    arrivals = [case.created(rank, entries[0]) for rank, entries in present.items()]
    text = f"{capitalised(title)} is under way on {ranks_text(pending)}, and nothing disagrees: all called the same, within "
    text += f"{span_text(max(arrivals) - min(arrivals))}{clocks}, {span_text(max(case.end_ns - max(arrivals), 0))} before "
    text += "the last event in any dump. Either it was still running, or the network or a device makes no progress. "
    return _verdict(case, group, seq, present, model.STUCK, pending, text + _waiting_clause(case, present, done) + ".")


def _slow_note(case: Case, group: Group, seq: int, present: dict[int, list[Entry]], late: list[int], gap: int) -> Verdict:
    others = sorted(set(present) - set(late))
    whom = "the others" if len(late) <= len(others) else ranks_text(others)
    site = case.sites.of(present[late[0]][0].frames)
    text = f"{capitalised(ranks_text(late))} {verb(late, 'was', 'were')} slow: {verb(late, 'it', 'they')} called "
    text += _title(group, seq, present) + (f" ({site})" if site else "") + f" {span_text(gap)} after {whom}; it was completed."
    verdict = _verdict(case, group, seq, present, model.SLOW_RANK, late, text)
    verdict.is_problem = False
    return verdict


def _odd_shapes(case: Case, group: Group, seq: int, present: dict[int, list[Entry]]) -> Verdict | None:
    """A note if the ranks have as many elements but other shapes: that works, but is seldom intended."""
    op = next(iter(present.values()))[0].op
    if op.startswith(("all_to_all", "gather", "scatter", "broadcast", "reduce")):
        return None
    found = model.classes(present, lambda rank: tuple(tuple(map(tuple, entry.inputs)) for entry in present[rank]))
    if len(found) < 2:
        return None
    culprits = sorted(rank for members in found[1:] for rank in members)
    clauses = [
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} {model.operands_text(present[ranks[0]][0])}" for ranks in found[:4]
    ]
    text = f"The shapes differ in {_title(group, seq, present)}, though not the numbers of elements: {'; '.join(clauses)}. "
    text += "This works, but is it intended?"
    verdict = _verdict(case, group, seq, present, model.DIFFERENT_SHAPE, culprits, text)
    verdict.is_problem = False
    return verdict
