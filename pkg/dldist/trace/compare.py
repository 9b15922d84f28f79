"""Compares the ranks' calls of a collective: op, sizes, dtypes and root, as the op requires."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from dldist.trace import model as model
from dldist.trace.model import Group, Round, Verdict, about, classes, operands_text, ranks_text, what
from dldist.trace.read import Entry

_LOOK_AHEAD = 64


def _is_gather(op: str) -> bool:
    """Return True for an all_gather of any form and library."""
    return "all_gather" in op


def _is_scatter(op: str) -> bool:
    """Return True for a reduce_scatter with equal parts, of any library."""
    return "reduce_scatter" in op and op != "reduce_scatter_v"


def counts(shapes: list[list[int]]) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in shapes)


def compare(this: Round) -> tuple[str, list[int]] | None:
    """Return the kind of difference and the differing ranks; None if the calls match."""
    calls = this.calls
    if culprits := _outsiders(calls, lambda rank: tuple(entry.op for entry in calls[rank])):
        return model.WRONG_OP, culprits
    whole = set(calls) == set(this.group.ranks)
    for position in range(len(this.some)):
        column = {rank: entries[position] for rank, entries in calls.items()}
        if culprits := _wrong_sizes(this.group, column, whole):
            return model.WRONG_SIZE, culprits
        if culprits := _outsiders(column, lambda rank: _dtypes_key(column[rank])):
            return model.WRONG_DTYPE, culprits
        if whole and (culprits := _wrong_roots(column)):
            return model.WRONG_ROOT, culprits
    return None


def _outsiders(ranks: Iterable[int], key: Callable[[int], Any]) -> list[int]:
    """Return the ranks that are not in the largest set of ranks with equal keys."""
    return sorted(rank for members in classes(ranks, key)[1:] for rank in members)


def _kind(op: str) -> str:
    return "all_to_all" if op.startswith(("all_to_all", "alltoall")) else op


def _size_key(entry: Entry) -> Any:
    inputs, outputs = counts(entry.inputs), counts(entry.outputs)
    if entry.op == "gather" or entry.op in ("reduce", "_reduce_oop"):
        return inputs
    if entry.op == "scatter":
        return outputs
    if entry.op in ("broadcast", "_broadcast_oop"):
        return inputs or outputs
    if entry.op.endswith("_v") or _kind(entry.op) == "all_to_all":
        return None
    return inputs, outputs


def _dtypes_key(entry: Entry) -> Any:
    # Compare sets, because recorders differ in whether they record dtypes of empty tensors.
    inputs, outputs = frozenset(entry.input_dtypes), frozenset(entry.output_dtypes)
    if entry.op == "gather":
        return inputs
    if entry.op == "scatter":
        return outputs
    if entry.op in ("broadcast", "_broadcast_oop"):
        return inputs or outputs
    if _kind(entry.op) == "all_to_all":
        return inputs | outputs
    return inputs, outputs


def _wrong_sizes(group: Group, column: dict[int, Entry], whole: bool) -> list[int]:
    some = next(iter(column.values()))
    size = len(group.ranks)
    if _kind(some.op) == "all_to_all":
        return _wrong_splits(group, column) if whole else []
    if _is_gather(some.op) and whole and all(len(entry.outputs) == size > 1 for entry in column.values()):
        return _wrong_parts(group, {r: (counts(e.inputs), counts(e.outputs)) for r, e in column.items()})
    if _is_scatter(some.op) and whole and all(len(entry.inputs) == size > 1 for entry in column.values()):
        return _wrong_parts(group, {r: (counts(e.outputs), counts(e.inputs)) for r, e in column.items()})
    if culprits := _outsiders(column, lambda rank: _size_key(column[rank])):
        return culprits
    total_in, total_out = sum(counts(some.inputs)), sum(counts(some.outputs))
    if _is_gather(some.op) and some.outputs and total_out != total_in * size:
        return sorted(column)
    if _is_scatter(some.op) and some.inputs and total_in != total_out * size:
        return sorted(column)
    return []


def _wrong_parts(group: Group, sizes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]) -> list[int]:
    """Return the ranks whose parts differ in size from the part sizes that all ranks list."""
    if culprits := _outsiders(sizes, lambda rank: sizes[rank][1]):
        return culprits
    return [rank for position, rank in enumerate(group.ranks) if sum(sizes[rank][0]) != sizes[rank][1][position]]


def _wrong_splits(group: Group, column: dict[int, Entry]) -> list[int]:
    size = len(group.ranks)
    if all(len(entry.inputs) == size == len(entry.outputs) for entry in column.values()):
        blamed: Counter[int] = Counter()
        for i, sender in enumerate(group.ranks):
            for j, receiver in enumerate(group.ranks):
                if counts(column[sender].inputs)[j] != counts(column[receiver].outputs)[i]:
                    blamed.update((sender, receiver))
        worst = max(blamed.values(), default=0)
        return sorted(rank for rank, times in blamed.items() if times == worst)
    sent = sum(sum(counts(entry.inputs)) for entry in column.values())
    received = sum(sum(counts(entry.outputs)) for entry in column.values())
    if sent == received:
        return []
    return _outsiders(column, lambda rank: (counts(column[rank].inputs), counts(column[rank].outputs))) or sorted(column)


def _wrong_roots(column: dict[int, Entry]) -> list[int]:
    some = next(iter(column.values()))
    if some.op not in ("gather", "scatter") or len(column) < 2:
        return []
    if not any(sum(counts(entry.inputs)) + sum(counts(entry.outputs)) for entry in column.values()):
        return []
    roots = [rank for rank, entry in sorted(column.items()) if _root_elements(entry)]
    if len(roots) == 1:
        return []
    return roots[1:] if roots else sorted(column)


def _root_elements(entry: Entry) -> int:
    """Return the number of elements in tensors that only a gather's or scatter's root passes."""
    return sum(counts(entry.outputs if entry.op == "gather" else entry.inputs))


def key(entries: list[Entry]) -> tuple[Any, ...]:
    return tuple((entry.op, _size_key(entry), _dtypes_key(entry)) for entry in entries)


def order(calls: dict[int, list[Entry]], reference: dict[int, list[Entry]], seq: int) -> tuple[str, int]:
    """Compare a rank's calls from number `seq` with a reference rank's. Return "swapped" (with the
    number of the reference's call), "left out", "one more", or "" if no pattern fits."""
    ours = _keys_from(calls, seq)
    theirs = _keys_from(reference, seq)
    if ours[0] == theirs[0]:
        return "", seq  # equal calls, such as all_to_all, whose sizes do not match together
    both = min(len(ours), len(theirs))
    if both > 1 and ours[0] == theirs[1] and ours[1] == theirs[0] and ours[2:both] == theirs[2:both]:
        return "swapped", seq + 1
    if len(theirs) > 1 and ours[: len(theirs) - 1] == theirs[1 : len(ours) + 1]:
        return "left out", seq
    if len(ours) > 1 and theirs[: len(ours) - 1] == ours[1 : len(theirs) + 1]:
        return "one more", seq
    if ours[0] in theirs and theirs[0] in ours:
        return "swapped", seq + ours.index(theirs[0])
    return "", seq


def _keys_from(calls: dict[int, list[Entry]], seq: int) -> list[tuple[Any, ...]]:
    keys: list[tuple[Any, ...]] = []
    while seq in calls and len(keys) < _LOOK_AHEAD:
        keys.append(key(calls[seq]))
        seq += 1
    return keys


_HEADS = {
    model.WRONG_OP: "The ranks call different collectives",
    model.WRONG_ORDER: "The ranks call collectives in different order",
    model.WRONG_SIZE: "The sizes do not fit",
    model.WRONG_DTYPE: "The element types differ",
    model.WRONG_ROOT: "The ranks do not agree on the root",
}


def mismatch(this: Round, kind: str, culprits: list[int]) -> Verdict:
    """Return the verdict on ranks whose calls differ."""
    others = this.without(culprits)
    reference = others[0] if others else culprits[0]
    note = ""
    if kind in (model.WRONG_OP, model.WRONG_SIZE) and others:
        kind, note = _order_note(this.group, this.seq, kind, culprits, reference)
    calls = this.calls
    sites = dict(zip(calls, this.case.sites.apart([entries[0].frames for entries in calls.values()])))
    texts = {rank: _call_text(kind, calls[rank]) + (f" at {sites[rank]}" if sites[rank] else "") for rank in calls}
    clauses = [f"{about(ranks, '[calls|call]')} {text}" for ranks, text in model.alike(texts)]
    if len(clauses) > 5:
        clauses = [*clauses[:4], f"{len(clauses) - 4} more kinds of calls"]
    op = what(calls[reference])
    number = f"#{this.seq}" if kind in (model.WRONG_OP, model.WRONG_ORDER) else f"{op} #{this.seq}"
    text = f"{_HEADS[kind]}: in {number} of {this.group.title} {'; '.join(clauses)}.{note}"
    if failed := this.failed():
        text += f" The reason given: {model.reason_text(failed)}."
    lines = {rank: f"{texts[rank]}, {model.state_text(calls[rank][-1], quiet_failure=True)}" for rank in calls}
    return this.verdict(kind, text, culprits, lines, sites, op=op)


def _call_text(kind: str, entries: list[Entry]) -> str:
    text = what(entries)
    if kind == model.WRONG_OP:
        return text
    operands = "; ".join(operands_text(entry) for entry in entries[:4])
    if operands:
        text += f" of {operands}"
    if kind == model.WRONG_ROOT:
        text += " as the root" if _root_elements(entries[0]) else ", not as the root"
    return text


def _order_note(group: Group, seq: int, kind: str, culprits: list[int], reference: int) -> tuple[str, str]:
    found = {order(group.calls[rank], group.calls[reference], seq) for rank in culprits}
    if len(found) != 1:
        return kind, ""
    how, where = found.pop()
    whom = ranks_text([reference])
    expected = what(group.calls[reference][seq])
    if how == "swapped":
        who = model.capitalised(about(culprits, "[calls|call]"))
        return model.WRONG_ORDER, f" {who} the {expected} that {whom} calls as #{seq} only as #{where}."
    who = about(culprits, "[has|have]")
    if how == "left out":
        return kind, f" It looks as if {who} left out the {expected}: what follows is what {whom} calls next."
    if how == "one more":
        own = what(group.calls[culprits[0]][seq])
        return kind, f" It looks as if {who} called one {own} too many: what follows is what {whom} calls here."
    return kind, ""
