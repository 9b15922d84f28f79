"""One-sided messages of NCCL between processes: puts, signals, waits for signals; over the stubs of
tests/stubs."""

import contextlib
import importlib.util
import pickle

import dldist
import nccl_stubs
import nccl_window_workers
import procs
import pytest
import trace_torch
from dldist import trace

pytestmark = pytest.mark.exhaustive(every=4)

VERSION = "2.32.3"
NOTHING = {"window": 0, "memory": 0}
NONBLOCKING = {"config": {"blocking": 0}}


def start(name, size, tmp_path, version, options):
    environment = nccl_stubs.build(version).environment(devices=size, folder=tmp_path)
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    children = procs.Group()
    if name == "windows_of_c10d":
        ranks = [children.start(nccl_window_workers.windows_of_c10d, version, environment, store.port, rank, size) for rank in range(size)]
    else:
        ranks = [
            children.start(nccl_window_workers.run, name, version, environment, store.port, rank, size, options)
            for rank in range(size)
        ]
    return store, children, ranks


def run(name, size, tmp_path, version=VERSION, **options):
    store, children, ranks = start(name, size, tmp_path, version, options)
    try:
        return [rank.result(60.0) for rank in ranks]
    finally:
        children.close()
        del store


def check(name, size, tmp_path, version=VERSION, **options):
    assert run(name, size, tmp_path, version, **options) == [(None, NOTHING, 0)] * size


@pytest.mark.parametrize("version,size,options", [("2.29.2", 2, {}), ("2.30.7", 3, NONBLOCKING), (VERSION, 3, {}), (VERSION, 1, {})])
def test_nccl_windows_may_have_every_dtype(tmp_path, version, size, options):
    check("all_dtypes", size, tmp_path, version, **options)


@pytest.mark.parametrize("name", ["parts_and_offsets", "a_ring_in_order", "signals_are_counted", "a_batch", "graphs"])
@pytest.mark.parametrize("version,options", [("2.29.7", NONBLOCKING), (VERSION, {})])
def test_operations_of_an_nccl_window_run_in_order(tmp_path, name, version, options):
    check(name, 3 if name != "graphs" else 2, tmp_path, version, **options)


def test_put_into_an_nccl_window_need_not_be_waited_for(tmp_path):
    check("put_without_a_wait", 2, tmp_path)


def test_waiting_for_a_signal_blocks_the_stream_and_not_the_host(tmp_path):
    check("wait_before_the_signal", 2, tmp_path)


def test_closing_an_nccl_window_waits_for_the_other_ranks(tmp_path):
    check("close_waits_for_other_ranks", 2, tmp_path)


@pytest.mark.parametrize("name", ["channels_are_separate", "signal_follows_puts_of_other_channels"])
def test_signal_channels_of_nccl_windows_are_separate_and_follow_puts(tmp_path, name):
    check(name, 2, tmp_path, "2.31.2", config={"num_rma_sig": 3})


@pytest.mark.parametrize("name", ["wrong_arguments", "ranks_that_disagree", "recorded", "left_open"])
def test_nccl_group_stays_usable_after_wrong_or_unfinished_use_of_a_window(tmp_path, name):
    check(name, 2, tmp_path)


@pytest.mark.parametrize("name", ["time_outs", "an_abort_ends_a_wait", "nccl_fails", "registering_hangs"])
def test_failed_operation_of_an_nccl_window_fails_the_group(tmp_path, name):
    check(name, 2, tmp_path)


def test_creating_an_nccl_window_without_a_rank_is_an_error(tmp_path):
    check("a_rank_does_not_come", 2, tmp_path)


def test_waiting_in_an_nccl_window_for_a_dead_rank_is_an_error(tmp_path):
    store, children, ranks = start("a_peer_dies", 2, tmp_path, VERSION, {})
    try:
        assert ranks[0].result(60.0) == (None, NOTHING, 0)
        assert ranks[1].wait_exit(60.0) == 3
    finally:
        children.close()
        del store


def test_nan_check_rejects_nan_in_puts(tmp_path):
    check("nan", 2, tmp_path, is_nan_check=True)


def test_windows_with_an_older_nccl_are_an_error(tmp_path):
    check("too_old", 2, tmp_path, "2.28.7")


@pytest.mark.parametrize("version,reply", [(VERSION, "done"), ("2.29.2", "done"), ("2.28.7", "too old")])
def test_nccl_windows_work_by_their_torch_distributed_names_if_supported(tmp_path, version, reply):
    assert run("windows_of_c10d", 2, tmp_path, version) == [reply] * 2


# ---- flight recorder dumps


@pytest.mark.parametrize("has_puts", [False, True])
def test_trace_analyser_reads_dumps_with_one_sided_operations(tmp_path, has_puts):
    analysis = dumps_of(tmp_path, has_puts)
    assert not analysis.problems, analysis.text(8)


@pytest.mark.deadline(130)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch's analyser")
def test_torch_trace_reader_rejects_dumps_with_puts(tmp_path):
    """torch does not know puts, so it must reject a dump that has them."""
    dumps_of(tmp_path / "without", has_puts=False)
    (torch_verdict,) = trace_torch.verdicts([tmp_path / "without" / "dumps"])
    assert torch_verdict["state"] == "FULLY_MATCHED", torch_verdict
    dumps_of(tmp_path / "with", has_puts=True)
    with pytest.raises(AssertionError, match="put .*is not a supported operation"):
        trace_torch.verdicts([tmp_path / "with" / "dumps"])


def dumps_of(folder, has_puts):
    """Write dumps into folder/dumps; return the verdict of dldist's analyser."""
    folder.mkdir(exist_ok=True)
    check("dumped_with_puts" if has_puts else "dumped_without_puts", 2, folder)
    analysis = trace.analyse(folder / "dumps", slow_s=20)
    names = {entry["profiling_name"] for rank in range(2) for entry in entries_of(folder, rank)}
    assert "nccl:all_reduce" in names and has_puts is any(name.startswith("nccl:put ") for name in names), names
    return analysis


def entries_of(folder, rank):
    with open(folder / "dumps" / f"fr_{rank}", "rb") as file:
        return pickle.load(file)["entries"]


# ---- the allocator, in a separate process


def test_allocating_memory_for_windows_needs_nccl_2_19(tmp_path):
    with contextlib.closing(procs.Group()) as children:
        assert children.start(nccl_window_workers.allocator_in_c, VERSION, nccl_stubs.build(VERSION).environment(folder=tmp_path)).result(60.0) == 0
        old = children.start(nccl_window_workers.allocator_in_c, "2.18.1", nccl_stubs.build("2.18.1").environment(folder=tmp_path)).result(60.0)
    assert "ncclMemAlloc" in old and "2.19" in old, old



def test_trace_analyser_knows_sender_and_receiver_of_one_sided_operations():
    from dldist.trace import read

    for text, ends in (("put 1->2", (1, 2)), ("signal 0->1", (0, 1)), ("wait_signal 2<-1", (1, 2))):
        assert read._message_ranks(read._MESSAGE.fullmatch(text)) == ends
