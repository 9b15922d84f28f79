"""Five staged hangs of processes with dldist groups: torch's analyser and dldist's must agree on
the same dumps."""

import importlib.util
import os

import dldist
import procs
import pytest
import trace_torch
import trace_workers
from dldist import trace

RANKS = 3
FAULTY_RANK = RANKS - 1
HANGS = ("missing_rank", "wrong_order", "wrong_size", "wrong_op", "slow_rank")
SEQ = 6  # of the first faulty call

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch's analyser")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with all ranks' dumps, in one subfolder per fault."""
    if importlib.util.find_spec("dldist.flight_recorder") is None:
        pytest.skip("this build has no flight recorder")
    folder = tmp_path_factory.mktemp("hangs")
    children = procs.Group()
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    try:
        ranks = [children.start(trace_workers.train, store.port, rank, RANKS, str(folder)) for rank in range(RANKS)]
        for fault in trace_workers.FAULTS:
            os.mkdir(folder / fault)
            for child in ranks:
                child.send(fault)
            for child in ranks:
                assert child.recv() == fault
        for child in ranks:
            child.send(None)
        for child in ranks:
            child.result()
    finally:
        children.close()
    return folder


@pytest.fixture(scope="module")
def torch_verdicts(folder):
    return dict(zip(trace_workers.FAULTS, trace_torch.verdicts([folder / fault for fault in trace_workers.FAULTS])))


def dldist_analysis(folder):
    return trace.analyse(folder, slow_s=trace_workers.LATE_S / 2)


def test_trace_of_a_program_without_a_fault_reports_no_problem(folder):
    analysis = trace.analyse(folder / "none", slow_s=20)  # no rank is late on purpose
    assert not analysis.verdicts, analysis.text(8)
    assert analysis.exit_status == 0
    assert analysis.case.groups[0].matched[-1] == SEQ + 1
    assert len(analysis.case.clocks.offsets) == RANKS


@pytest.mark.parametrize("fault", HANGS)
def test_trace_of_a_faulty_program_names_the_fault_and_its_rank(folder, fault):
    analysis = dldist_analysis(folder / fault)
    first = analysis.verdicts[0]
    assert (first.kind, first.culprits, first.seq) == (fault, [FAULTY_RANK], SEQ), analysis.text(8)
    # When rank 1 calls, its group may already have failed and refuse the call.
    assert first.others in ([0], [0, 1])
    assert "trace_workers.py" in first.text
    # Slow but completed: no rank is stuck.
    assert analysis.exit_status == (0 if fault == "slow_rank" else 1)


def test_trace_names_the_call_sites_of_ranks_that_disagree(folder):
    sites = dldist_analysis(folder / "wrong_op").verdicts[0].sites
    assert sites[0] == sites[1] != sites[FAULTY_RANK]
    assert sites[0].endswith(" in average()") and sites[FAULTY_RANK].endswith(" in collect()")
    assert "it is at reduce #5 (trace_workers.py:" in dldist_analysis(folder / "missing_rank").verdicts[0].text


@needs_torch
@pytest.mark.parametrize("fault", HANGS)
def test_torchs_trace_analyser_agrees_on_the_fault(folder, torch_verdicts, fault):
    """Class, collective and ranks must be equal. For a slow rank both report a full match, but
    dldist also names the late rank."""
    torch_verdict, first = torch_verdicts[fault], dldist_analysis(folder / fault).verdicts[0]
    print(f"torch: {torch_verdict['state']} #{torch_verdict['seq']} ranks {torch_verdict['ranks']}\ndldist: {first.text}")
    if fault == "slow_rank":
        assert torch_verdict["state"] == "FULLY_MATCHED" and not first.is_problem
    else:
        assert torch_verdict["state"] != "FULLY_MATCHED"
        trace_torch.check_agrees(first, torch_verdict)


@needs_torch
def test_torchs_trace_analyser_finds_no_fault_in_a_correct_program(torch_verdicts):
    assert torch_verdicts["none"]["state"] == "FULLY_MATCHED"
