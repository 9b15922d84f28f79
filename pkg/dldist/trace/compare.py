"""Compares the ranks' calls of a collective: op, sizes, dtypes and root, as the op requires."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from dldist.trace import model as model
from dldist.trace.model import Collective, Group, Verdict, call_name, group_by_key, operands_text, ranks_clause, ranks_text
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


def compare(collective: Collective) -> tuple[str, list[int]] | None:
    """Return the kind of difference and the differing ranks; None if the calls match."""
    calls = collective.calls
    if culprits := _minority(calls, lambda rank: tuple(entry.op for entry in calls[rank])):
        return model.WRONG_OP, culprits
    is_complete = set(calls) == set(collective.group.ranks)
    for position in range(len(collective.first_entries)):
        entries_by_rank = {rank: entries[position] for rank, entries in calls.items()}
        if culprits := _wrong_sizes(collective.group, entries_by_rank, is_complete):
            return model.WRONG_SIZE, culprits
        if culprits := _minority(entries_by_rank, lambda rank: _dtypes_key(entries_by_rank[rank])):
            return model.WRONG_DTYPE, culprits
        if is_complete and (culprits := _wrong_roots(entries_by_rank)):
            return model.WRONG_ROOT, culprits
    return None


def _minority(ranks: Iterable[int], get_key: Callable[[int], Any]) -> list[int]:
    """Return the ranks that are not in the largest set of ranks with equal keys."""
    return sorted(rank for members in group_by_key(ranks, get_key)[1:] for rank in members)


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


def _wrong_sizes(group: Group, entries_by_rank: dict[int, Entry], is_complete: bool) -> list[int]:
    first = next(iter(entries_by_rank.values()))
    size = len(group.ranks)
    if _kind(first.op) == "all_to_all":
        return _wrong_splits(group, entries_by_rank) if is_complete else []
    if _is_gather(first.op) and is_complete and all(len(entry.outputs) == size > 1 for entry in entries_by_rank.values()):
        return _wrong_parts(group, {r: (counts(e.inputs), counts(e.outputs)) for r, e in entries_by_rank.items()})
    if _is_scatter(first.op) and is_complete and all(len(entry.inputs) == size > 1 for entry in entries_by_rank.values()):
        return _wrong_parts(group, {r: (counts(e.outputs), counts(e.inputs)) for r, e in entries_by_rank.items()})
    if culprits := _minority(entries_by_rank, lambda rank: _size_key(entries_by_rank[rank])):
        return culprits
    total_in, total_out = sum(counts(first.inputs)), sum(counts(first.outputs))
    if _is_gather(first.op) and first.outputs and total_out != total_in * size:
        return sorted(entries_by_rank)
    if _is_scatter(first.op) and first.inputs and total_in != total_out * size:
        return sorted(entries_by_rank)
    return []


def _wrong_parts(group: Group, sizes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]) -> list[int]:
    """Return the ranks whose parts differ in size from the part sizes that all ranks list."""
    if culprits := _minority(sizes, lambda rank: sizes[rank][1]):
        return culprits
    return [rank for position, rank in enumerate(group.ranks) if sum(sizes[rank][0]) != sizes[rank][1][position]]


def _wrong_splits(group: Group, entries_by_rank: dict[int, Entry]) -> list[int]:
    size = len(group.ranks)
    if all(len(entry.inputs) == size == len(entry.outputs) for entry in entries_by_rank.values()):
        blamed: Counter[int] = Counter()
        for i, sender in enumerate(group.ranks):
            for j, receiver in enumerate(group.ranks):
                if counts(entries_by_rank[sender].inputs)[j] != counts(entries_by_rank[receiver].outputs)[i]:
                    blamed.update((sender, receiver))
        maximum = max(blamed.values(), default=0)
        return sorted(rank for rank, count in blamed.items() if count == maximum)
    sent = sum(sum(counts(entry.inputs)) for entry in entries_by_rank.values())
    received = sum(sum(counts(entry.outputs)) for entry in entries_by_rank.values())
    if sent == received:
        return []
    sizes = {rank: (counts(entry.inputs), counts(entry.outputs)) for rank, entry in entries_by_rank.items()}
    return _minority(sizes, lambda rank: sizes[rank]) or sorted(sizes)


def _wrong_roots(entries_by_rank: dict[int, Entry]) -> list[int]:
    first = next(iter(entries_by_rank.values()))
    if first.op not in ("gather", "scatter") or len(entries_by_rank) < 2:
        return []
    if not any(sum(counts(entry.inputs)) + sum(counts(entry.outputs)) for entry in entries_by_rank.values()):
        return []
    roots = [rank for rank, entry in sorted(entries_by_rank.items()) if _root_elements(entry)]
    if len(roots) == 1:
        return []
    return roots[1:] if roots else sorted(entries_by_rank)


def _root_elements(entry: Entry) -> int:
    """Return the number of elements in tensors that only a gather's or scatter's root passes."""
    return sum(counts(entry.outputs if entry.op == "gather" else entry.inputs))


def call_key(entries: list[Entry]) -> tuple[Any, ...]:
    return tuple((entry.op, _size_key(entry), _dtypes_key(entry)) for entry in entries)


def compare_order(calls: dict[int, list[Entry]], reference: dict[int, list[Entry]], seq: int) -> tuple[str, int]:
    """Compare a rank's calls from number `seq` with a reference rank's. Return "swapped" (and the
    number of the reference's call), "left out", "one more", or "" if the calls fit no pattern."""
    own_keys = _keys_from(calls, seq)
    reference_keys = _keys_from(reference, seq)
    if own_keys[0] == reference_keys[0]:
        return "", seq  # the same calls, but their sizes do not match
    length = min(len(own_keys), len(reference_keys))
    if length > 1 and own_keys[0] == reference_keys[1] and own_keys[1] == reference_keys[0] and own_keys[2:length] == reference_keys[2:length]:
        return "swapped", seq + 1
    if len(reference_keys) > 1 and own_keys[: len(reference_keys) - 1] == reference_keys[1 : len(own_keys) + 1]:
        return "left out", seq
    if len(own_keys) > 1 and reference_keys[: len(own_keys) - 1] == own_keys[1 : len(reference_keys) + 1]:
        return "one more", seq
    if own_keys[0] in reference_keys and reference_keys[0] in own_keys:
        return "swapped", seq + own_keys.index(reference_keys[0])
    return "", seq


def _keys_from(calls: dict[int, list[Entry]], seq: int) -> list[tuple[Any, ...]]:
    keys: list[tuple[Any, ...]] = []
    while seq in calls and len(keys) < _LOOK_AHEAD:
        keys.append(call_key(calls[seq]))
        seq += 1
    return keys


_HEADLINES = {
    model.WRONG_OP: "The ranks call different collectives",
    model.WRONG_ORDER: "The ranks call collectives in different order",
    model.WRONG_SIZE: "The sizes do not fit",
    model.WRONG_DTYPE: "The element types differ",
    model.WRONG_ROOT: "The ranks do not agree on the root",
}


def mismatch(collective: Collective, kind: str, culprits: list[int]) -> Verdict:
    """Return the verdict on ranks whose calls differ."""
    others = collective.without(culprits)
    reference = others[0] if others else culprits[0]
    order_text = ""
    if kind in (model.WRONG_OP, model.WRONG_SIZE) and others:
        kind, order_text = _describe_order(collective.group, collective.seq, kind, culprits, reference)
    calls = collective.calls
    sites = dict(zip(calls, collective.case.sites.distinct_names([entries[0].frames for entries in calls.values()])))
    texts = {rank: _call_text(kind, calls[rank]) + (f" at {sites[rank]}" if sites[rank] else "") for rank in calls}
    clauses = [f"{ranks_clause(ranks, '[calls|call]')} {text}" for ranks, text in model.group_by_value(texts)]
    if len(clauses) > 5:
        clauses = [*clauses[:4], f"{len(clauses) - 4} more kinds of calls"]
    op = call_name(calls[reference])
    number = f"#{collective.seq}" if kind in (model.WRONG_OP, model.WRONG_ORDER) else f"{op} #{collective.seq}"
    text = f"{_HEADLINES[kind]}: in {number} of {collective.group.title} {'; '.join(clauses)}.{order_text}"
    if failed := collective.failed():
        text += f" The reason given: {model.reason_text(failed)}."
    lines = {rank: f"{texts[rank]}, {model.state_text(calls[rank][-1], quiet_failure=True)}" for rank in calls}
    return collective.verdict(kind, text, culprits, lines, sites, op=op)


def _call_text(kind: str, entries: list[Entry]) -> str:
    text = call_name(entries)
    if kind == model.WRONG_OP:
        return text
    operands = "; ".join(operands_text(entry) for entry in entries[:4])
    if operands:
        text += f" of {operands}"
    if kind == model.WRONG_ROOT:
        text += " as the root" if _root_elements(entries[0]) else ", not as the root"
    return text


def _describe_order(group: Group, seq: int, kind: str, culprits: list[int], reference: int) -> tuple[str, str]:
    patterns = {compare_order(group.calls[rank], group.calls[reference], seq) for rank in culprits}
    if len(patterns) != 1:
        return kind, ""
    pattern, other_seq = patterns.pop()
    reference_text = ranks_text([reference])
    expected = call_name(group.calls[reference][seq])
    if pattern == "swapped":
        culprits_text = model.capitalised(ranks_clause(culprits, "[calls|call]"))
        return model.WRONG_ORDER, f" {culprits_text} the {expected} that {reference_text} calls as #{seq} only as #{other_seq}."
    culprits_text = ranks_clause(culprits, "[has|have]")
    if pattern == "left out":
        return kind, f" It looks as if {culprits_text} left out the {expected}: what follows is what {reference_text} calls next."
    if pattern == "one more":
        extra_call = call_name(group.calls[culprits[0]][seq])
        return kind, f" It looks as if {culprits_text} called one {extra_call} too many: what follows is what {reference_text} calls here."
    return kind, ""
