"""Compares a group's collectives in order, up to the first problem, which affects the rest."""

from __future__ import annotations

from collections.abc import Sequence

from dldist.trace import compare as compare
from dldist.trace import model as model
from dldist.trace.clock import is_synchronising
from dldist.trace.model import Case, Collective, Group, Verdict, capitalised, ranks_clause, ranks_text, span_text, state_text, title_of
from dldist.trace.read import Entry

_WORSE_FACTOR = 1.2
"""A rank that is late for one collective is late for the following ones. So only the first delay is
reported, and later delays if they are longer by this factor."""


def analyse(case: Case, group: Group, slow_s: float) -> None:
    """Compare the group's collectives; set `matched` and `verdicts` of the group."""
    slowest: Verdict | None = None
    worst_ns = 0
    for seq in group.numbers():
        collective = Collective(case, group, seq, group.calls_of(seq))
        verdict = _find_problem(collective, slow_s)
        if verdict:
            # Report only the first note of each kind.
            if verdict.is_problem or all(known.kind != verdict.kind for known in group.verdicts):
                group.verdicts.append(verdict)
            if verdict.is_problem:
                break
            continue
        group.matched.append(seq)
        late, gap = late_ranks(collective, slow_s, needs_clocks=True)
        if late and gap > worst_ns * _WORSE_FACTOR:
            worst_ns, slowest = gap, _slow_note(collective, late, gap)
    if slowest:
        group.verdicts.append(slowest)


def _is_absent(collective: Collective, rank: int) -> bool:
    """Return True if the rank's dump shows that the rank has not called the collective."""
    calls = collective.group.calls.get(rank, {})
    if rank not in collective.case.dumps or rank in collective.calls or (calls and max(calls) > collective.seq):
        return False
    dump = collective.case.dumps[rank]
    if not dump.is_partial:
        return True
    for group_id in _ids_of(collective.group, rank):
        status = dump.status.get(str(group_id), {})
        if status.get("last_enqueued_collective", -1) >= collective.seq:
            return False
    if calls or not dump.entries:
        return True
    # The ring has overwritten this group's calls. If all other ranks called before the ring's
    # oldest entry, this rank did too.
    oldest = collective.case.created(rank, dump.entries[0])
    return not all(collective.case.created(other, entries[0]) < oldest for other, entries in collective.calls.items())


def _ids_of(group: Group, rank: int) -> set[int]:
    """Return the group's ids in a rank's status, from this rank's calls or else other ranks'."""
    known_calls = [group.calls[rank]] if group.calls.get(rank) else list(group.calls.values())
    return {entry.group_id for calls in known_calls for entries in calls.values() for entry in entries}


def _find_problem(collective: Collective, slow_s: float) -> Verdict | None:
    if difference := compare.compare(collective):
        return compare.mismatch(collective, *difference)
    if absent := [rank for rank in collective.group.ranks if _is_absent(collective, rank)]:
        return _missing_rank_verdict(collective, absent)
    lost = [rank for rank in collective.group.ranks if rank not in collective.case.dumps]
    if collective.pending:
        return _dead_rank_verdict(collective, lost) if lost else _unfinished_verdict(collective, slow_s)
    return _shape_note(collective)


def late_ranks(collective: Collective, slow_s: float, needs_clocks: bool) -> tuple[list[int], int]:
    """Return the ranks that called long after the other ranks, and the delay in nanoseconds."""
    if needs_clocks and not all(collective.case.clocks.is_known(rank) for rank in collective.calls):
        return [], 0
    arrivals = sorted((collective.case.created(rank, entries[0]), rank) for rank, entries in collective.calls.items())
    gaps = [(after[0] - before[0], i) for i, (before, after) in enumerate(zip(arrivals, arrivals[1:]), 1)]
    gap, first_late = max(gaps, default=(0, 0))
    if gap < slow_s * 1e9:
        return [], 0
    return sorted(rank for _, rank in arrivals[first_late:]), gap


def _verdict(collective: Collective, kind: str, culprits: list[int], text: str, is_problem: bool = True) -> Verdict:
    lines = {}
    for rank in {*collective.group.ranks, *collective.calls}:
        if rank not in collective.case.dumps:
            lines[rank] = "no dump"
        elif rank not in collective.calls:
            lines[rank] = describe_position(collective.case, collective.group, rank)
        else:
            site = collective.site(rank)
            lines[rank] = state_text(collective.calls[rank][-1]) + (f", called at {site}" if site else "")
    sites = {rank: collective.site(rank) for rank in collective.calls}
    return collective.verdict(kind, text, culprits, lines, sites, is_problem=is_problem)


def _waiting_clause(collective: Collective, without: Sequence[int] = ()) -> str:
    """Return a sentence such as "Ranks 0 and 1 wait in it (train.py:31 in step())"."""
    states = {}
    for rank, entries in collective.calls.items():
        if rank not in without:
            if entries[-1].is_completed:
                state = "completed it{}"
            elif entries[-1].is_ended:
                state = "called it{}, and it failed"
            else:
                state = "[waits|wait] in it{}"
            states[rank] = state, collective.case.sites.in_parentheses(entries[0].frames)
    clauses = [ranks_clause(ranks, state).replace("{}", site) for ranks, (state, site) in model.group_by_value(states)]
    sentence = capitalised("; ".join(clauses[:4]) + (f"; and {len(clauses) - 4} more" if len(clauses) > 4 else ""))
    if failed := collective.failed():
        sentence += f". The reason given: {model.reason_text(failed)}"
    return sentence + "."


def describe_position(case: Case, group: Group, rank: int) -> str:
    """Describe how far a rank, which is missing from a call, has got."""
    calls, entries = group.calls.get(rank, {}), case.dumps[rank].entries
    newest = calls[max(calls)] if calls else []
    if newest:
        entry = newest[-1]
        text = f"is at {model.call_name(newest)} #{max(calls)}{case.sites.in_parentheses(entry.frames)}, {state_text(entry, quiet_failure=True)}"
    else:
        text = "has called no collective of this group" + ("" if entries else ", nor anything else")
    blocked = find_blocking_call(case, rank)
    last = blocked or (entries[-1] if entries else None)
    if last and not any(last is entry for entry in newest):
        phrase = "is in" if blocked else "last called"
        group_suffix = f" of {title_of(last.group, last.desc)}" if last.group != group.name else ""
        text += f"; it {phrase} {last.label}{group_suffix}{case.sites.in_parentheses(last.frames)}"
        text += "" if blocked else f", {state_text(last, quiet_failure=True)}"
    return text


def find_blocking_call(case: Case, rank: int) -> Entry | None:
    """Return the rank's oldest unfinished call, in any group."""
    return next((entry for entry in case.dumps[rank].entries if not entry.is_ended), None)


def _missing_rank_verdict(collective: Collective, absent: list[int]) -> Verdict:
    completed = any(entries[-1].is_completed and entries[-1].completed_ns is not None for entries in collective.calls.values())
    if completed and is_synchronising(collective.first_entries[-1].op):
        text = f"The dump of {ranks_text(absent)} is older than those of the others: "
        text += f"{collective.title} was completed, so all have called it."
        return _verdict(collective, model.OLD_DUMP, absent, text, is_problem=False)
    positions_by_text = model.group_by_value({rank: describe_position(collective.case, collective.group, rank) for rank in absent})
    if len(positions_by_text) > 1:
        positions = "; ".join(f"{ranks_text(ranks)} {text}" for ranks, text in positions_by_text[:4])
    else:
        positions = ("it " if len(absent) == 1 else "each of them ") + positions_by_text[0][1]
    text = f"{capitalised(ranks_clause(absent, '[is|are] missing: [it has|they have] not called'))} {collective.title}; {positions}. "
    return _verdict(collective, model.MISSING_RANK, absent, text + _waiting_clause(collective))


def _dead_rank_verdict(collective: Collective, lost: list[int]) -> Verdict:
    if any(rank in collective.case.lost for rank in lost):
        kind, reason = model.DEAD_RANK, model.no_dump_text(lost)
    else:
        kind, reason = model.UNREADABLE, ranks_clause(lost, "[has a dump|have dumps] that cannot be read")
    text = f"{capitalised(reason)}. {capitalised(collective.title)} is not completed. "
    return _verdict(collective, kind, lost, text + _waiting_clause(collective))


def _unfinished_verdict(collective: Collective, slow_s: float) -> Verdict:
    case, title, pending = collective.case, collective.title, collective.pending
    completed = collective.without(pending)
    failed = [rank for rank in pending if collective.calls[rank][-1].is_ended]
    late, gap = late_ranks(collective, slow_s, needs_clocks=False)
    clocks = "" if all(case.clocks.is_known(rank) for rank in collective.calls) else ", if their clocks agree"
    matched = "everything else about it matches"
    if late:
        text = f"{_late_text(collective, late, gap, '[is|are] slow: [it|they] called')}{clocks}; {matched}. "
        return _verdict(collective, model.SLOW_RANK, late, text + _waiting_clause(collective))
    if completed and not failed and (len(pending) < len(completed) or is_synchronising(collective.calls[pending[0]][-1].op)):
        text = f"{capitalised(ranks_clause(pending, '[is|are] slow: still in'))} {title}, which {ranks_clause(completed, '[has|have] completed')}; "
        return _verdict(collective, model.SLOW_RANK, pending, f"{text}{matched}. {_waiting_clause(collective, completed)}")
    if failed:
        errors = {rank: model.reason_text(collective.calls[rank][-1]) or "it ended without completing" for rank in failed}
        reasons = "; ".join(f"on {ranks_text(ranks)}: {text}" for ranks, text in model.group_by_value(errors)[:4])
        return _verdict(collective, model.FAILED, failed, f"{capitalised(title)} failed, and the calls match: {reasons}.")
    not_started = [rank for rank in pending if not collective.calls[rank][-1].is_started]
    if not_started and len(not_started) < len(collective.calls):
        text = f"{capitalised(ranks_clause(not_started, '[is|are] slow: [it has|they have] called'))} {title}, "
        text += f"which has not begun there, as when a device is busy with earlier work; {matched}. "
        return _verdict(collective, model.SLOW_RANK, not_started, text + _waiting_clause(collective))
    arrivals = [case.created(rank, entries[0]) for rank, entries in collective.calls.items()]
    text = f"{capitalised(title)} is under way on {ranks_text(pending)}, and nothing disagrees: all called the same, within "
    text += f"{span_text(max(arrivals) - min(arrivals))}{clocks}, {span_text(max(case.end_ns - max(arrivals), 0))} before "
    text += "the last event in any dump. Either it was still running, or the network or a device makes no progress. "
    return _verdict(collective, model.STUCK, pending, text + _waiting_clause(collective, completed))


def _slow_note(collective: Collective, late: list[int], gap: int) -> Verdict:
    site = collective.case.sites.in_parentheses(collective.calls[late[0]][0].frames)
    text = _late_text(collective, late, gap, "[was|were] slow: [it|they] called", site)
    return _verdict(collective, model.SLOW_RANK, late, text + "; it was completed.", is_problem=False)


def _late_text(collective: Collective, late: list[int], gap: int, template: str, site: str = "") -> str:
    others = collective.without(late)
    reference = "the others" if len(late) <= len(others) else ranks_text(others)
    return f"{capitalised(ranks_clause(late, template))} {collective.title}{site} {span_text(gap)} after {reference}"


def _shape_note(collective: Collective) -> Verdict | None:
    """Return a note if shapes differ but sizes match, which works but is seldom intended."""
    if collective.first_entries[0].op.startswith(("all_to_all", "gather", "scatter", "broadcast", "reduce")):
        return None
    calls = collective.calls
    shape_classes = model.group_by_key(calls, lambda rank: tuple(tuple(map(tuple, entry.inputs)) for entry in calls[rank]))
    if len(shape_classes) < 2:
        return None
    clauses = [f"{ranks_clause(ranks, '[has|have]')} {model.operands_text(calls[ranks[0]][0])}" for ranks in shape_classes[:4]]
    text = f"The shapes differ in {collective.title}, though not the numbers of elements: {'; '.join(clauses)}. "
    culprits = [rank for ranks in shape_classes[1:] for rank in ranks]
    return _verdict(collective, model.DIFFERENT_SHAPE, culprits, text + "This works, but is it intended?", is_problem=False)
