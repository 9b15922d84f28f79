"""The report as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from dldist.trace import model as model
from dldist.trace.model import Group, call_name, ranks_clause, ranks_text, span_text, title_of
from dldist.trace.read import Entry

if TYPE_CHECKING:
    from dldist.trace import Analysis

WIDTH = 116


def numbers_text(numbers: list[int]) -> str:
    """Format collective numbers, such as "#1", "#1 to #40" or "#1 to #3 and #5"."""
    if not numbers:
        return "none"
    parts = [f"#{first}" if first == last else f"#{first} to #{last}" for first, last in model.runs(numbers)]
    if len(parts) > 4:
        parts = [*parts[:2], "...", parts[-1]]
    return model.join_words(parts)


def summary(analysis: Analysis) -> str:
    """Return the first paragraph of the report."""
    roots = [v for v in analysis.problems if v.because is None]
    if not roots:
        return " ".join([_success_text(analysis), *(v.text for v in analysis.notes)])
    parts = [roots[0].text]
    if len(roots) > 1:
        parts.append(f"Besides: {roots[1].text}")
    if len(roots) > 2:
        parts.append(f"{len(roots) - 2} more below.")
    if effects := len(analysis.problems) - len(roots):
        parts.append(f"{'One more problem follows' if effects == 1 else f'{effects} more problems follow'} from this.")
    return " ".join(parts)


def _success_text(analysis: Analysis) -> str:
    dumps = analysis.case.dumps
    if not any(dump.entries for dump in dumps.values()):
        return f"The dumps of {ranks_text(dumps)} can be read, but contain no calls."
    collectives = sum(len(group.matched) for group in analysis.case.groups)
    messages = sum(len(entries) for group in analysis.case.groups for entries in group.messages.values())
    parts = []
    if collectives:
        parts.append(f"{collectives} collective{'s' * (collectives != 1)}")
    if messages:
        parts.append(f"{messages} send{'s' * (messages != 1)} and receives")
    return f"Nothing is wrong: {' and '.join(parts) or 'everything'} of {ranks_text(dumps)} match and are completed."


def text(analysis: Analysis, last: int = 0) -> str:
    """Return the full report, with a table of each group's last `last` collectives."""
    blocks = [_fill(summary(analysis)), "\n".join(_dumps(analysis))]
    general = [v for v in analysis.verdicts if not v.group]
    if shown := [v for v in general if v.text not in blocks[0]]:
        blocks.append("\n".join(_fill(v.text) for v in shown))
    for group in analysis.case.groups:
        lines = _group(analysis, group)
        if last and group.calls:
            lines += ["", *("  " + line for line in _table(analysis, group, last))]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _fill(paragraph: str, indent: str = "") -> str:
    wrapped = textwrap.wrap(
        paragraph, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(wrapped)


def _dumps(analysis: Analysis) -> list[str]:
    case = analysis.case
    lines = [f"dumps: of {ranks_text(case.dumps)}" + (f", {len(case.dumps)} of {len(case.world)} ranks" if case.dumps else "")]
    if case.lost:
        lines.append(f"       none of {ranks_text(case.lost)}")
    lines += [f"       {error}" for error in analysis.unreadable.values()]
    partial = [rank for rank, dump in case.dumps.items() if dump.is_partial]
    if partial:
        lines.append(f"       {ranks_text(partial)}: calls are missing, such as old ones that newer ones have replaced")
    lines.append("clocks: " + clocks_text(analysis))
    return lines


def clocks_text(analysis: Analysis) -> str:
    clocks = analysis.case.clocks
    unknown = [rank for rank in analysis.case.dumps if not clocks.is_known(rank)]
    ahead = {rank: offset for rank, offset in sorted(clocks.offsets.items()) if offset}
    agreeing = [rank for rank in clocks.offsets if rank not in ahead]
    parts = []
    if len(agreeing) > 1:
        parts.append(
            f"those of {ranks_text(agreeing)} agree, within {span_text(max(clocks.errors[rank] for rank in agreeing))}"
        )
    for rank, offset in ahead.items():
        direction = "ahead of" if offset > 0 else "behind"
        parts.append(
            f"that of rank {rank} is {span_text(offset)} {direction} rank {clocks.reference}'s "
            f"(within {span_text(clocks.errors[rank])}), and its times are corrected"
        )
    if unknown and len(analysis.case.dumps) > 1:
        pronoun = "that" if len(unknown) == 1 else "those"
        parts.append(
            f"it is not known how {pronoun} of {ranks_clause(unknown, '[compares|compare]')}: "
            "the dumps have no times of a collective that was completed both there and elsewhere"
        )
    return "; ".join(parts) or "there is only one"


def _group(analysis: Analysis, group: Group) -> list[str]:
    members = f", {ranks_text(group.ranks)}" if group.ranks else ""
    inferred = " (going by their calls: no dump says which ranks belong to it)" if group.is_inferred else ""
    lines = [f"{group.title}{members}{inferred}"]
    if group.calls:
        lines.append(f"  collectives that match and are completed: {numbers_text(group.matched)}")
    elif not group.messages:
        lines.append("  nothing has been called")
    for verdict in (v for v in analysis.verdicts if v.group == group.name and any(v is group_verdict for group_verdict in group.verdicts)):
        location = f"{verdict.op} #{verdict.seq}" if verdict.seq is not None else verdict.op
        lines.append(f"  {location or 'the group'}: {verdict.kind}" + ("" if verdict.is_problem else " (no problem)"))
        if verdict.text not in summary(analysis):
            lines.append(_fill(verdict.text, "    "))
        if verdict.because:
            cause = verdict.because
            cause_call = f"{cause.op} #{cause.seq}" if cause.seq is not None else cause.op
            lines.append(_fill(f"That follows from {cause_call} of {title_of(cause.group, cause.desc)}.", "    "))
        lines += [f"      {line}" for line in verdict.lines]
    return lines + _later_calls(group)


def _later_calls(group: Group) -> list[str]:
    problem = next((v.seq for v in group.verdicts if v.is_problem and v.seq is not None), None)
    last = {rank: max(calls) for rank, calls in group.calls.items() if calls}
    ends = {rank: seq for rank, seq in last.items() if problem is not None and seq > problem}
    if not ends:
        return []
    texts = [f"{ranks_text(ranks)} up to #{seq}" for ranks, seq in model.group_by_value(ends)]
    return [_fill(f"Called after that: {model.join_words(texts)}; not compared.", "    ")]


def _table(analysis: Analysis, group: Group, last: int) -> list[str]:
    rows = [["", "", *(f"rank {rank}" for rank in group.ranks)]]
    for seq in group.numbers()[-last:]:
        calls = group.calls_of(seq)
        majority_name = call_name(calls[model.group_by_key(calls, lambda rank: call_name(calls[rank]))[0][0]])
        rows.append([f"#{seq}", majority_name, *(_cell(analysis, rank, calls.get(rank), majority_name) for rank in group.ranks)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]


def _cell(analysis: Analysis, rank: int, entries: list[Entry] | None, majority_name: str) -> str:
    if rank not in analysis.case.dumps:
        return "no dump"
    if entries is None:
        return "-"
    entry = entries[-1]
    state = "done" if entry.is_completed else "failed" if entry.is_ended else "started" if entry.is_started else "called"
    name = call_name(entries)
    return state if name == majority_name else f"{name}: {state}"
