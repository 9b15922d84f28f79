"""Compares a group's collectives in order, up to the first problem, which affects the rest."""

from __future__ import annotations

from collections.abc import Sequence

from dldist.trace import compare as compare
from dldist.trace import model as model
from dldist.trace.clock import is_synchronising
from dldist.trace.model import Case, Group, Round, Verdict, about, capitalised, ranks_text, span_text, state_text, title_of
from dldist.trace.read import Entry

_MUCH_WORSE = 1.2
"""A rank that is late for one collective is late for the following ones. So only the first delay is
reported, and later delays if they are longer by this factor."""


def analyse(case: Case, group: Group, slow_s: float) -> None:
    """Compare the group's collectives; set `matched` and `verdicts` of the group."""
    slowest: Verdict | None = None
    worst_ns = 0
    for seq in group.numbers():
        this = Round(case, group, seq, group.calls_of(seq))
        verdict = _problem(this, slow_s)
        if verdict:
            # Report only the first note of each kind.
            if verdict.is_problem or all(known.kind != verdict.kind for known in group.verdicts):
                group.verdicts.append(verdict)
            if verdict.is_problem:
                break
            continue
        group.matched.append(seq)
        late, gap = late_ranks(this, slow_s, needs_clocks=True)
        if late and gap > worst_ns * _MUCH_WORSE:
            worst_ns, slowest = gap, _slow_note(this, late, gap)
    if slowest:
        group.verdicts.append(slowest)


def _is_absent(this: Round, rank: int) -> bool:
    """Return True if the rank's dump shows that the rank has not called the collective."""
    calls = this.group.calls.get(rank, {})
    if rank not in this.case.dumps or rank in this.calls or (calls and max(calls) > this.seq):
        return False
    dump = this.case.dumps[rank]
    if not dump.is_partial:
        return True
    for group_id in _ids_of(this.group, rank):
        status = dump.status.get(str(group_id), {})
        if status.get("last_enqueued_collective", -1) >= this.seq:
            return False
    if calls or not dump.entries:
        return True
    # The ring has overwritten this group's calls. If all other ranks called before the ring's
    # oldest entry, this rank did too.
    oldest = this.case.created(rank, dump.entries[0])
    return not all(this.case.created(other, entries[0]) < oldest for other, entries in this.calls.items())


def _ids_of(group: Group, rank: int) -> set[int]:
    """Return the group's ids in a rank's status: from its calls, or else from other ranks'."""
    some = [group.calls[rank]] if group.calls.get(rank) else list(group.calls.values())
    return {entry.group_id for calls in some for entries in calls.values() for entry in entries}


def _problem(this: Round, slow_s: float) -> Verdict | None:
    if found := compare.compare(this):
        return compare.mismatch(this, *found)
    if absent := [rank for rank in this.group.ranks if _is_absent(this, rank)]:
        return _missing(this, absent)
    lost = [rank for rank in this.group.ranks if rank not in this.case.dumps]
    if this.pending:
        return _dead(this, lost) if lost else _unfinished(this, slow_s)
    return _odd_shapes(this)


def late_ranks(this: Round, slow_s: float, needs_clocks: bool) -> tuple[list[int], int]:
    """Return the ranks that called long after the other ranks, and the delay in nanoseconds."""
    if needs_clocks and not all(this.case.clocks.is_known(rank) for rank in this.calls):
        return [], 0
    arrivals = sorted((this.case.created(rank, entries[0]), rank) for rank, entries in this.calls.items())
    gaps = [(after[0] - before[0], i) for i, (before, after) in enumerate(zip(arrivals, arrivals[1:]), 1)]
    gap, first_late = max(gaps, default=(0, 0))
    if gap < slow_s * 1e9:
        return [], 0
    return sorted(rank for _, rank in arrivals[first_late:]), gap


def _verdict(this: Round, kind: str, culprits: list[int], text: str, is_problem: bool = True) -> Verdict:
    lines = {}
    for rank in {*this.group.ranks, *this.calls}:
        if rank not in this.case.dumps:
            lines[rank] = "no dump"
        elif rank not in this.calls:
            lines[rank] = position(this.case, this.group, rank)
        else:
            site = this.site(rank)
            lines[rank] = state_text(this.calls[rank][-1]) + (f", called at {site}" if site else "")
    sites = {rank: this.site(rank) for rank in this.calls}
    return this.verdict(kind, text, culprits, lines, sites, is_problem=is_problem)


def _waiting_clause(this: Round, without: Sequence[int] = ()) -> str:
    """Return a sentence such as "Ranks 0 and 1 wait in it (train.py:31 in step())"."""
    states = {}
    for rank, entries in this.calls.items():
        if rank not in without:
            if entries[-1].is_completed:
                state = "completed it{}"
            elif entries[-1].is_ended:
                state = "called it{}, and it failed"
            else:
                state = "[waits|wait] in it{}"
            states[rank] = state, this.case.sites.at(entries[0].frames)
    clauses = [about(ranks, state).replace("{}", site) for ranks, (state, site) in model.alike(states)]
    sentence = capitalised("; ".join(clauses[:4]) + (f"; and {len(clauses) - 4} more" if len(clauses) > 4 else ""))
    if failed := this.failed():
        sentence += f". The reason given: {model.reason_text(failed)}"
    return sentence + "."


def position(case: Case, group: Group, rank: int) -> str:
    """Describe how far a rank, which is missing from a call, has got."""
    calls, entries = group.calls.get(rank, {}), case.dumps[rank].entries
    newest = calls[max(calls)] if calls else []
    if newest:
        entry = newest[-1]
        text = f"is at {model.what(newest)} #{max(calls)}{case.sites.at(entry.frames)}, {state_text(entry, quiet_failure=True)}"
    else:
        text = "has called no collective of this group" + ("" if entries else ", nor anything else")
    blocked = blocked_in(case, rank)
    last = blocked or (entries[-1] if entries else None)
    if last and not any(last is entry for entry in newest):
        how = "is in" if blocked else "last called"
        elsewhere = f" of {title_of(last.group, last.desc)}" if last.group != group.name else ""
        text += f"; it {how} {last.label}{elsewhere}{case.sites.at(last.frames)}"
        text += "" if blocked else f", {state_text(last, quiet_failure=True)}"
    return text


def blocked_in(case: Case, rank: int) -> Entry | None:
    """Return the rank's oldest unfinished call, in any group."""
    return next((entry for entry in case.dumps[rank].entries if not entry.is_ended), None)


def _missing(this: Round, absent: list[int]) -> Verdict:
    done = any(entries[-1].is_completed and entries[-1].completed_ns is not None for entries in this.calls.values())
    if done and is_synchronising(this.some[-1].op):
        text = f"The dump of {ranks_text(absent)} is older than those of the others: "
        text += f"{this.title} was completed, so all have called it."
        return _verdict(this, model.OLD_DUMP, absent, text, is_problem=False)
    where = model.alike({rank: position(this.case, this.group, rank) for rank in absent})
    if len(where) > 1:
        stands = "; ".join(f"{ranks_text(ranks)} {text}" for ranks, text in where[:4])
    else:
        stands = ("it " if len(absent) == 1 else "each of them ") + where[0][1]
    text = f"{capitalised(about(absent, '[is|are] missing: [it has|they have] not called'))} {this.title}; {stands}. "
    return _verdict(this, model.MISSING_RANK, absent, text + _waiting_clause(this))


def _dead(this: Round, lost: list[int]) -> Verdict:
    if any(rank in this.case.lost for rank in lost):
        kind, why = model.DEAD_RANK, model.left_no_dump(lost)
    else:
        kind, why = model.UNREADABLE, about(lost, "[has a dump|have dumps] that cannot be read")
    text = f"{capitalised(why)}. {capitalised(this.title)} is not completed. "
    return _verdict(this, kind, lost, text + _waiting_clause(this))


def _unfinished(this: Round, slow_s: float) -> Verdict:
    case, title, pending = this.case, this.title, this.pending
    done = this.without(pending)
    failed = [rank for rank in pending if this.calls[rank][-1].is_ended]
    late, gap = late_ranks(this, slow_s, needs_clocks=False)
    clocks = "" if all(case.clocks.is_known(rank) for rank in this.calls) else ", if their clocks agree"
    matched = "everything else about it matches"
    if late:
        text = f"{_late_text(this, late, gap, '[is|are] slow: [it|they] called')}{clocks}; {matched}. "
        return _verdict(this, model.SLOW_RANK, late, text + _waiting_clause(this))
    if done and not failed and (len(pending) < len(done) or is_synchronising(this.calls[pending[0]][-1].op)):
        text = f"{capitalised(about(pending, '[is|are] slow: still in'))} {title}, which {about(done, '[has|have] completed')}; "
        return _verdict(this, model.SLOW_RANK, pending, f"{text}{matched}. {_waiting_clause(this, done)}")
    if failed:
        errors = {rank: model.reason_text(this.calls[rank][-1]) or "it ended without completing" for rank in failed}
        reasons = "; ".join(f"on {ranks_text(ranks)}: {text}" for ranks, text in model.alike(errors)[:4])
        return _verdict(this, model.FAILED, failed, f"{capitalised(title)} failed, and the calls match: {reasons}.")
    waits = [rank for rank in pending if not this.calls[rank][-1].is_started]
    if waits and len(waits) < len(this.calls):
        text = f"{capitalised(about(waits, '[is|are] slow: [it has|they have] called'))} {title}, "
        text += f"which has not begun there, as when a device is busy with earlier work; {matched}. "
        return _verdict(this, model.SLOW_RANK, waits, text + _waiting_clause(this))
    arrivals = [case.created(rank, entries[0]) for rank, entries in this.calls.items()]
    text = f"{capitalised(title)} is under way on {ranks_text(pending)}, and nothing disagrees: all called the same, within "
    text += f"{span_text(max(arrivals) - min(arrivals))}{clocks}, {span_text(max(case.end_ns - max(arrivals), 0))} before "
    text += "the last event in any dump. Either it was still running, or the network or a device makes no progress. "
    return _verdict(this, model.STUCK, pending, text + _waiting_clause(this, done))


def _slow_note(this: Round, late: list[int], gap: int) -> Verdict:
    text = _late_text(this, late, gap, "[was|were] slow: [it|they] called", this.case.sites.at(this.calls[late[0]][0].frames))
    return _verdict(this, model.SLOW_RANK, late, text + "; it was completed.", is_problem=False)


def _late_text(this: Round, late: list[int], gap: int, words: str, site: str = "") -> str:
    others = this.without(late)
    whom = "the others" if len(late) <= len(others) else ranks_text(others)
    return f"{capitalised(about(late, words))} {this.title}{site} {span_text(gap)} after {whom}"


def _odd_shapes(this: Round) -> Verdict | None:
    """Return a note if shapes differ but sizes match, which works but is seldom intended."""
    if this.some[0].op.startswith(("all_to_all", "gather", "scatter", "broadcast", "reduce")):
        return None
    calls = this.calls
    found = model.classes(calls, lambda rank: tuple(tuple(map(tuple, entry.inputs)) for entry in calls[rank]))
    if len(found) < 2:
        return None
    clauses = [f"{about(ranks, '[has|have]')} {model.operands_text(calls[ranks[0]][0])}" for ranks in found[:4]]
    text = f"The shapes differ in {this.title}, though not the numbers of elements: {'; '.join(clauses)}. "
    culprits = [rank for ranks in found[1:] for rank in ranks]
    return _verdict(this, model.DIFFERENT_SHAPE, culprits, text + "This works, but is it intended?", is_problem=False)
