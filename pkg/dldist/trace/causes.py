"""Finds causes among problems: a rank may be missing from a call because it waits in another call.
"""

from __future__ import annotations

from dldist.trace import model as model
from dldist.trace.model import Case, Group, Verdict, ranks_text

_WAITED_FOR = {model.MISSING_RANK, model.UNMATCHED_RECV, model.UNMATCHED_SEND, model.SLOW_RANK}
_WEIGHT = {
    kind: weight
    for weight, kinds in enumerate(
        [
            (model.WRONG_MEMBERS, model.WRONG_ORDER, model.WRONG_OP, model.WRONG_SIZE, model.WRONG_DTYPE, model.WRONG_ROOT),
            (model.DEAD_RANK,),
            (model.MISSING_RANK, model.UNMATCHED_RECV, model.UNMATCHED_SEND),
            (model.SLOW_RANK,),
            (model.FAILED,),
            (model.STUCK, model.UNREADABLE),
        ]
    )
    for kind in kinds
}


def check_members(case: Case, group: Group) -> Verdict | None:
    """Return a verdict if the members of the group differ between dumps."""
    expected = set(group.ranks)
    differing = {}
    for rank in group.ranks:
        config = case.dumps[rank].groups.get(group.name) if rank in case.dumps else None
        if config and set(config.ranks) != expected:
            differing[rank] = ranks_text(config.ranks)
    if not differing:
        return None
    clauses = [f"{ranks_text(ranks)}: {text_of_ranks}" for ranks, text_of_ranks in model.group_by_value(differing)]
    text = f"The ranks do not agree on who belongs to {group.title}: {ranks_text(expected)} by some dumps, and by "
    text += "; by ".join(f"that of {clause}" for clause in clauses) + "."
    others = sorted(expected - set(differing))
    return Verdict(model.WRONG_MEMBERS, text, group.name, group.desc, None, "", sorted(differing), others)


def sort_verdicts(verdicts: list[Verdict]) -> list[Verdict]:
    """Sort verdicts: causes, effects, notes. Set `because` of each effect to its cause."""
    problems = sorted((v for v in verdicts if v.is_problem), key=lambda v: _WEIGHT.get(v.kind, 9))
    causes = {id(v): [other for other in problems if other is not v and _explains(other, v)] for v in problems}
    settled = [v for v in problems if not causes[id(v)]]
    remaining = [v for v in problems if causes[id(v)]]
    first: list[Verdict] = list(settled)
    while remaining:
        found = next(((v, c) for v in remaining for c in causes[id(v)] if any(c is known for known in settled)), None)
        if found is None:
            # The rest cause each other in a circle, which is represented by its first verdict.
            representative = remaining[0]
            _describe_circle(representative, causes)
            first.append(representative)
            settled.append(representative)
            remaining.remove(representative)
            continue
        found[0].because = found[1]
        settled.append(found[0])
        remaining = [v for v in remaining if v is not found[0]]
    effects = [v for v in settled if v.because]
    return [*first, *effects, *(v for v in verdicts if not v.is_problem)]


def _explains(cause: Verdict, effect: Verdict) -> bool:
    """Return True if `effect` waits for a rank that is itself waiting in `cause`."""
    return effect.kind in _WAITED_FOR and bool(set(effect.culprits) & set(cause.waiting)) and effect.group + effect.op != ""


def _describe_circle(representative: Verdict, causes: dict[int, list[Verdict]]) -> None:
    chain, verdict = [representative], causes[id(representative)][0]
    while not any(verdict is known for known in chain):
        chain.append(verdict)
        verdict = causes[id(verdict)][0]
    start = next(i for i, known in enumerate(chain) if known is verdict)
    circle = chain[start:]
    ranks = sorted({rank for v in circle for rank in v.culprits})
    representative.text = f"{model.capitalised(ranks_text(ranks))} wait for each other in a circle. " + representative.text
