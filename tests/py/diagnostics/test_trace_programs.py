"""Random programs of 2 to 8 ranks with one injected fault: the analyser must name it, and nothing
else, and torch's agree."""

import importlib.util
import random

import pytest
import trace_dumps
import trace_torch
from dldist import trace

SEEDS = 8


def check(case, analysis):
    problems = analysis.problems
    if case.kind == "none":
        assert not problems
        return
    group = next(group for group in analysis.case.groups if group.name == case.group)
    roots = [verdict for verdict in problems if verdict.because is None]
    if case.kind in ("missing_rank", "dead_rank"):
        # Other ranks may wait for it in several groups, before the first call that it did not make.
        assert roots
        assert {(verdict.kind, tuple(verdict.culprits)) for verdict in roots} == {(case.kind, (case.faulty_rank,))}
        return
    (root,) = roots
    assert (root.kind, root.group, root.seq) == (case.kind, case.group, case.seq)
    # with two ranks, it is unknown which of them is wrong
    is_even = len(group.ranks) == 2 and case.kind != "slow_rank"
    assert root.culprits == ([max(group.ranks)] if is_even else [case.faulty_rank])
    assert set(root.others) | set(root.culprits) == set(group.ranks)


@pytest.mark.parametrize("keep", [None, 12], ids=["all", "ring of 12"])
@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("fault", trace_dumps.FAULTS)
def test_trace_names_the_fault_injected_into_a_random_program(fault, world, keep):
    for seed in range(SEEDS):
        case = trace_dumps.make_faulty_dumps(fault, world, seed, keep=keep)
        analysis = trace.analyse(case.dumps)
        try:
            check(case, analysis)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, rank {case.faulty_rank}, {case.group} #{case.seq}\n{analysis.text(8)}") from error


def test_trace_does_not_depend_on_the_order_of_dumps():
    for seed in range(20):
        case = trace_dumps.make_faulty_dumps("wrong_op", 5, seed)
        ranks = list(case.dumps)
        random.Random(seed).shuffle(ranks)
        shuffled = {rank: case.dumps[rank] for rank in ranks}
        assert trace.analyse(shuffled).text() == trace.analyse(case.dumps).text()


def test_trace_estimates_the_clock_differences_of_random_programs():
    for seed in range(20):
        case = trace_dumps.make_faulty_dumps("none", 4, seed, several=False)
        clocks = trace.analyse(case.dumps).case.clocks
        for rank, offset in enumerate(case.clocks):
            assert abs(clocks.offsets[rank] - (offset - case.clocks[0])) < 200_000_000


@pytest.mark.deadline(110)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch's analyser")
def test_torchs_trace_analyser_agrees_on_random_programs(tmp_path):
    cases = []
    for fault in trace_dumps.FAULTS:
        if fault == "dead_rank":
            continue  # it does not start without all dumps
        for world in range(2, 7):
            case = trace_dumps.make_faulty_dumps(fault, world, world, several=False, has_clocks=False)
            folder = tmp_path / f"{fault}_{world}"
            trace_dumps.write(folder, case.dumps)
            cases.append((case, folder))
    for (case, folder), torch_verdict in zip(cases, trace_torch.verdicts([folder for _, folder in cases])):
        problems = trace.analyse(folder).problems
        if case.kind == "none":
            assert not problems and torch_verdict["state"] == "FULLY_MATCHED"
        else:
            trace_torch.check_agrees(problems[0], torch_verdict)
