"""Failures of groups: the ranks that get an error, its text, and the delay."""

import array
import re
import signal
import threading
import time

import dldist
import group_team
import group_workers as cases
import pytest
from procs import under_load, wait_asleep
from thread_ranks import error_of, on_threads

HOST = group_team.host_name()


@pytest.fixture(scope="module")
def teams():
    teams = group_team.Teams()
    yield teams
    teams.close()


# ---- in one call


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("variant", ["op", "dtype", "size", "root", "redop", "factor", "block"])
def test_mismatch_is_raised_on_all_ranks(teams, size, variant):
    """All ranks must get the error, under both of its names."""
    replies = teams(size).run(cases.mismatched, variant)
    for rank, (first, later) in enumerate(replies):
        assert "DistMismatchError" in first["kinds"], (rank, first)
        assert first["code"] == "MISMATCH" and first["seconds"] < under_load(3)
        assert first["rank"] in range(size) and first["rank"] != rank, (rank, first)
        assert first["host"] and first["pid"], first
        assert "DistMismatchError" in later["kinds"], (rank, later)
    text = replies[0][0]["text"]
    words = {"op": ["barrier", "all_reduce"], "dtype": ["int32", "float32"], "size": ["5 elements", "4 elements"],
             "root": ["root 0", "root 1"], "redop": ["SUM", "MAX"], "factor": ["by 2", "by 3"],
             "block": ["12", "16", "bytes"]}[variant]
    for word in words:
        assert word in text, text


@pytest.mark.parametrize("variant", ["all_reduce", "recv", "recv any", "async", "default"])
def test_timeout_names_the_call_and_the_missing_ranks(teams, variant):
    error = teams(3).run(cases.too_late, variant)[0]
    assert "DistTimeoutError" in error["kinds"] and "TimeoutError" in error["kinds"], error
    assert error["code"] == "OP_TIMED_OUT"
    assert 0.25 < error["seconds"] < under_load(2)
    assert "timed out" in error["text"] and "rank 0 of 3" in error["text"], error["text"]
    if variant in ("all_reduce", "async", "default"):
        assert "1" in error["text"] and "2" in error["text"], error["text"]
    if variant == "recv":
        assert error["rank"] == 1 and error["host"] == HOST


def test_timeout_on_another_rank_is_reported_with_that_rank():
    """The error on another rank must name the rank that timed out, and the local operation."""
    store = dldist.HashStore()
    has_posted = threading.Event()

    def rank_of(rank):
        with dldist.Group(store, rank, 2, timeout=20) as group:
            x = array.array("i", [1])
            if rank == 1:
                group.barrier()
                work = group.irecv(x, 0, tag=7)
                has_posted.set()
                error = error_of(work.wait)
                return error, error_of(group.barrier)
            group.barrier()
            assert has_posted.wait(10)
            error = error_of(group.all_reduce, x, timeout=0.1)
            return error, error_of(group.barrier)

    (own, own_later), (other, other_later) = on_threads(2, rank_of)
    for error in (own, own_later, other, other_later):
        assert isinstance(error, dldist.DistTimeoutError) and error.rank == 1, error
    assert re.search(r"^all_reduce #2 on group .* \(rank 0 of 2\): timed out after [\d.]+ s; rank 1 has not arrived; "
                     r"1 \(.*\) ", str(own)), own
    text = (r"all_reduce #2 of rank 0 \(.*, pid \d+\) timed out after [\d.]+ s waiting for this rank, which was done with "
            r"#1 barrier and had a recv from rank 0 \(tag 7\) under way \(timeout\)$")
    assert re.search(r"^recv on group .* \(rank 1 of 2\): " + text, str(other)), other
    assert re.search(r"the group has failed before: " + text, str(other_later)), other_later
    assert re.search(r"the group has failed before: all_reduce #2 of rank 0 \(.*\) timed out", str(own_later)), own_later


def test_abort_is_raised_on_all_ranks(teams):
    for rank, (first, later) in enumerate(teams(3).run(cases.aborted)):
        for error in (first, later):
            assert "DistAbortedError" in error["kinds"], error
            assert "enough of it" in error["text"] and "second abort" not in error["text"]
        assert first["seconds"] < under_load(2)
        if rank != 2:
            assert first["rank"] == 2, first


@pytest.mark.parametrize("size", [2, 3])
def test_abort_does_not_fail_completed_calls(teams, size):
    for sums, later in teams(size).run(cases.aborted_after_the_end):
        assert sums == [size] * 20
        assert "DistAbortedError" in later["kinds"] and "that was all" in later["text"], later


def test_abort_from_another_thread_ends_the_pending_call(teams):
    for error in teams(2).run(cases.aborted_from_a_thread):
        assert "DistAbortedError" in error["kinds"] and "by a thread" in error["text"], error
        assert error["seconds"] < under_load(2)


def test_calls_fail_after_close(teams):
    for after, blocked in teams(2).run(cases.closed):
        assert "DistBackendError" in after["kinds"] and after["code"] == "CLOSED", after
        assert "closed" in after["text"]
        assert "DistBackendError" in blocked["kinds"] and blocked["code"] == "CLOSED", blocked
        assert blocked["seconds"] < under_load(2)


def test_exception_in_a_with_block_aborts_the_group(teams):
    left, other = teams(2).run(cases.left_by_exception)
    assert left["kinds"][0] == "LookupError"
    assert "DistAbortedError" in other["kinds"] and "no such thing" in other["text"], other


@pytest.mark.parametrize(("absent", "is_all", "named"), [([1], False, "Rank 1 "), ([1], True, "Ranks 1 "), ([1, 2], True, "Ranks 1, 2 "),
                                                         ([2, 3], False, "Rank 2 "), ([], True, None)])
def test_monitored_barrier_names_the_absent_ranks(teams, absent, is_all, named):
    replies = teams(4).run(cases.monitored, absent, is_all, 0.5)
    # The group stays usable.
    assert [again["kinds"] for _, again in replies] == [[]] * 4, replies
    if named is None:
        assert [first["kinds"] for first, _ in replies] == [[]] * 4
        return
    error = replies[0][0]
    assert "DistTimeoutError" in error["kinds"], error
    assert f"[Rank 0]: {named}failed to pass monitoredBarrier in 500 ms" in error["text"]
    assert error["rank"] == absent[0] and error["host"] == HOST
    for rank in range(1, 4):
        assert f"Rank {rank} successfully reached monitoredBarrier" in replies[rank][0]["text"], replies[rank]


# ---- processes that die


@pytest.mark.parametrize("variant", ["barrier", "all_reduce", "recv", "wait"])
def test_lost_rank_is_an_error_in_every_call(procs, variant):
    """After SIGKILL, all ranks must get an error within a second, in every call and group."""
    ranks, _store = group_team.start_ranks(procs, cases.lose_last_rank, 3, variant)
    pids = [child.recv()[1] for child in ranks]
    time.sleep(0.1)
    ranks[2].kill()
    killed_at = time.monotonic()
    for child in ranks[:2]:
        results = child.recv(10)
        for error in results:
            assert "DistPeerLostError" in error["kinds"] and "ConnectionError" in error["kinds"], error
            assert (error["rank"], error["host"], error["pid"]) == (2, HOST, pids[2]), error
            assert error["code"] == "PEER_LOST"
            assert "rank 2" in error["text"] and str(pids[2]) in error["text"]
        assert results[0]["at"] - killed_at < under_load(3)
    for child in ranks[:2]:
        child.send("end")
        assert child.result() is None
        assert child.stderr_text() == ""


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("variant", ["barrier", "all_reduce", "recv", "wait", "future", "monitored_barrier"])
def test_ctrl_c_ends_the_call_and_fails_the_other_rank(procs, variant):
    """Ctrl-C must act soon (test_blocking_calls.py: in 100 ms), and the other rank get an error."""
    ranks, _store = group_team.start_ranks(procs, cases.interrupted, 2, variant)
    for child in ranks:
        child.recv()
    wait_asleep([ranks[0].pid], ranks[0].pid)
    sent_at = time.monotonic()
    ranks[0].kill(signal.SIGINT)
    error, other = ranks[0].recv(10), ranks[1].recv(10)
    assert error["kinds"][0] == "KeyboardInterrupt", error
    assert error["at"] - sent_at < under_load(2), error["at"] - sent_at
    assert "DistAbortedError" in other["kinds"], other
    assert "interrupted" in other["text"] and other["rank"] == 0, other
    assert other["at"] - sent_at < under_load(2)
    for child in ranks:
        child.send("end")
        child.result()


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("how", ["pending", "watched", "blocked thread", "cycle", "global", "shared", "closed"])
def test_process_exit_without_closing_a_group_is_silent(procs, how):
    """Processes must exit soon and without output."""
    ranks, _store = group_team.start_ranks(procs, cases.exit_without_close, 2, how)
    start = time.monotonic()
    for child in ranks:
        assert child.result() == "done"
        assert child.stderr_text() == ""
    assert time.monotonic() - start < 10


def test_forked_child_cannot_use_a_group(procs):
    child = procs.start(cases.forks)
    lines, status = child.result()
    assert status == 0
    assert lines[-1] == "own True 5"
    for line in lines[:-1]:
        assert line.startswith("DistBackendError: "), lines
    assert child.stderr_text() == ""


# ---- memory after a failure


def test_other_ranks_do_not_write_an_array_after_its_call_has_failed(procs):
    """The other rank is stopped in its all_reduce, mostly during its copy into this rank's array,
    and resumed after this rank has failed."""
    for _ in range(4):
        store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        failing, stopped = (procs.start(cases.reduces_until_it_fails, store.port, rank) for rank in range(2))
        assert failing.recv() == stopped.recv() == "ready"
        failing.send("go")
        stopped.send("go")
        assert stopped.recv() == "under way"
        stopped.kill(signal.SIGSTOP)
        assert failing.recv() == "OP_TIMED_OUT"
        stopped.kill(signal.SIGCONT)
        stopped.recv()
        for child in (failing, stopped):
            child.send("look")
            assert child.result() == "intact"


# ---- meeting


def test_connecting_a_group_times_out_without_the_other_ranks():
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    start = time.monotonic()
    with pytest.raises(dldist.DistTimeoutError) as raised:
        dldist.Group(store, 1, 3, connect_timeout=0.3)
    assert time.monotonic() - start < under_load(3)
    text = str(raised.value)
    assert "rank 1" in text and "0" in text and "2" in text, text


def test_timeout_for_connecting_defaults_to_the_timeout_of_the_store():
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True, timeout=0.3)
    start = time.monotonic()
    with pytest.raises(dldist.DistTimeoutError):
        dldist.Group(store, 0, 2)
    assert time.monotonic() - start < under_load(3)


def test_timeout_for_connecting_is_at_most_the_timeout_of_the_group():
    store = dldist.HashStore()
    with pytest.raises(dldist.DistTimeoutError):
        dldist.Group(store, 0, 2, timeout=0.2)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), (0, -1)])
def test_invalid_ranks_are_rejected(rank, size):
    with pytest.raises(ValueError):
        dldist.Group(dldist.HashStore(), rank, size)


def test_group_of_two_ranks_needs_a_store():
    with pytest.raises(ValueError, match="store"):
        dldist.Group(None, 0, 2)
    with pytest.raises(TypeError, match="store"):
        dldist.Group("store", 0, 2)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("DLDIST_PORT_RANGE", "a-b", "range of ports"), ("DLDIST_PORT_RANGE", "9-5", "range of ports"),
     ("DLDIST_SHM", "yes", '"0" or "1"'), ("DLDIST_TCP_LANES", "0", "number"),
     ("DLDIST_WAIT", "spin", '"adaptive", "poll" or "sleep"'),
     ("DLDIST_ALGORITHM", "all_reduce=unknown", "unknown")],
)
def test_malformed_environment_variables_are_errors(procs, name, value, text):
    child = procs.start(cases.open_alone, env={name: value})
    kinds, message = child.result()
    assert "ValueError" in kinds and name in message and text in message


def test_rank_that_waits_by_polling_does_not_sleep(procs, tmp_path):
    """Count sleeps: only DLDIST_WAIT=poll does not sleep.

    On a busy machine its core is sometimes taken away. The polling rank waits a quarter of the
    time.
    """
    counts = {}
    for way in ("poll", "sleep"):
        ranks = [procs.start(cases.sleeps_in_barrier, str(tmp_path / way), rank, env={"DLDIST_WAIT": way}) for rank in (0, 1)]
        counts[way] = [child.result() for child in ranks][0]
    assert counts["sleep"] >= 5 and counts["poll"] <= max(2, counts["sleep"] / 6), counts


# ---- the failed call


def call_of(error):
    return error.op, error.seq, error.group


def test_errors_identify_the_call_that_failed():
    """Errors must identify their call: a collective has a number; messages and calls that never
    started have none."""
    store, is_over = dldist.HashStore(), threading.Event()

    def case(rank):
        group = dldist.Group(store, rank, 2, timeout=20, name="known")
        x = array.array("f", [1])
        group.barrier()
        if rank == 1:
            is_over.wait(under_load(10))
            return None
        message = error_of(group.recv, x, src=1, timeout=0.2)
        late = error_of(group.all_reduce, x, timeout=0.3)
        refused = error_of(group.all_reduce, x)
        is_over.set()
        return message, late, refused

    message, late, refused = on_threads(2, case)[0]
    assert call_of(message) == ("recv", None, "known") and 0.15 < message.elapsed < under_load(2)
    assert call_of(late) == ("all_reduce", 2, "known") and 0.25 < late.elapsed < under_load(3)
    assert call_of(refused) == ("all_reduce", None, "known") and refused.elapsed == 0
    plain = dldist.DistError("made by a program")
    assert call_of(plain) == (None, None, None) and plain.elapsed is None
