"""The monitor with real processes: dumps on all ranks, the ways to request them, and reports."""

import os
import pickle
import re
import signal
import stat
import time

import dldist
import group_team
import monitor_workers as workers
import procs
import pytest

GIL_S = 2.5


@pytest.fixture
def children():
    children = procs.Group()
    yield children
    children.close()


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "dump_")


def entries_of(path):
    with open(path, "rb") as file:
        return pickle.load(file)


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [0, 1]], ids=["of the group", "beside the group"])
def test_timeout_writes_a_dump_on_every_rank(children, prefix, members):
    size = 4
    env = {"DLDIST_FR_DUMP_FILE": prefix, "DLDIST_COORD_CHECK_MS": "300"}
    ranks, store = group_team.start_ranks(children, workers.one_times_out, size, prefix, members, env=env)
    assert ranks[0].recv() == "timed out"
    since = time.monotonic()
    for rank in ranks:
        rank.send(since)
    replies = [rank.recv() for rank in ranks]
    for rank in ranks:
        rank.send("leave")
    assert [rank.result() for rank in ranks] == [True] * size
    for number, (seconds, report) in enumerate(replies):
        assert seconds is not None and seconds < procs.under_load(2), (number, seconds, report)
        dump = entries_of(f"{prefix}{number}")
        assert dump["entries"], dump
        assert f"{prefix}{number}" in report
    assert "timed out" in replies[0][1]
    if len(members) < size:
        # If two ranks fail, the first notification is used.
        assert replies[3][1].startswith(("rank 0 of group", "rank 1 of group")), replies[3][1]
        assert "requests a dump from all ranks" in replies[3][1]


def test_timeout_writes_no_dump_by_default(children, tmp_path):
    prefix = str(tmp_path / "torch" / "comm_lib_trace_rank_")
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    ranks, store = group_team.start_ranks(children, workers.lagging, 2, "has failed", env=env)
    ranks[0].send("go")
    report = ranks[0].recv()
    for rank in ranks:
        rank.send("leave")
        rank.result()
    assert "DLDIST_FR_DUMP_FILE" in report
    assert not os.path.exists(prefix + "0"), report


def report_of_rank_0(ranks, store):
    """Wait until rank 1 is in its all_reduce, make rank 0 time out, and end all ranks."""
    deadline = time.monotonic() + workers.LIMIT_S
    while not published(store, 1, b"all_reduce") and time.monotonic() < deadline:
        time.sleep(0.01)
    ranks[0].send("go")
    report = ranks[0].recv()
    for rank in ranks:
        rank.send("leave")
        rank.result()
    return report


def test_timeout_report_names_ranks_that_did_not_call(children):
    env = {"DLDIST_DESYNC_DEBUG": "1", "DLDIST_COORD_CHECK_MS": "50", "DLDIST_DUMP_ON_TIMEOUT": "0"}
    ranks, store = group_team.start_ranks(children, workers.lagging, 3, "the ranks of group", env=env)
    report = report_of_rank_0(ranks, store)
    missing = [line for line in report.splitlines() if line.startswith("  never called ")]
    assert len(missing) == 1 and missing[0].endswith("all_reduce: rank 2"), report
    assert "rank 1: last called" in report and "barrier" in report, report


def test_timeout_report_over_a_python_store_names_ranks_that_did_not_call(children):
    env = {"DLDIST_COORD_CHECK_MS": "50", "DLDIST_DUMP_ON_TIMEOUT": "0"}
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    ranks = []
    for rank in range(3):
        env["DLDIST_DESYNC_DEBUG"] = "0" if rank == 2 else "1"  # rank 2 does not publish its state
        args = (store.port, rank, 3, "the ranks of group", True)
        ranks.append(children.start(workers.lagging, *args, env=env))
    report = report_of_rank_0(ranks, store)
    assert "rank 1: last called" in report, report
    assert "never called anything, or have exited: rank 2\n" in report, report


def published(store, rank, expected):
    keys = [key for key in store.list_keys() if "watch/" in key and key.endswith(f"/state/{rank}")]
    return bool(keys) and expected in store.get(keys[0])


def test_writing_to_the_named_pipe_requests_a_dump(children, prefix, tmp_path):
    env = {"DLDIST_FR_DUMP_FILE": prefix, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_"}
    ranks, store = group_team.start_ranks(children, workers.idle, 2, env=env)
    for rank in ranks:
        assert rank.recv() == "ready"
    pipe = f"{tmp_path}/pipe_1.pipe"
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    for _ in range(2):
        with open(pipe, "w") as file:
            file.write("1")
        assert workers.await_file(f"{prefix}1", time.monotonic()) is not None
        os.unlink(f"{prefix}1")
    assert not os.path.exists(f"{prefix}0")
    for rank in ranks:
        rank.send(None)
        rank.result()
    assert not os.path.exists(pipe)


@pytest.mark.parametrize(("setting", "number"), [(None, signal.SIGUSR2), ("sigusr1", signal.SIGUSR1), ("12", 12)])
def test_configured_signal_requests_a_dump(children, prefix, setting, number):
    """The signal must work while the main thread waits in C."""
    env = {"DLDIST_FR_DUMP_FILE": prefix, "DLDIST_FR_DUMP_FORMAT": "json", "DLDIST_DUMP_SIGNAL": setting or ""}
    ranks, store = group_team.start_ranks(children, workers.idle, 2, env=env)
    for rank in ranks:
        assert rank.recv() == "ready"
    ranks[0].send(("wait in a barrier", None))
    assert ranks[0].recv() == "waiting"
    os.kill(ranks[0].pid, number)
    assert workers.await_file(f"{prefix}0.json", time.monotonic()) is not None
    ranks[1].send(("wait in a barrier", None))
    assert [ranks[1].recv(), ranks[1].recv(), ranks[0].recv()] == ["waiting", "met", "met"]
    for rank in ranks:
        rank.send(None)
        rank.result()


@pytest.mark.parametrize(
    ("setting", "before", "meanwhile", "afterwards"),
    [
        ("", "default", "heard", "default"),
        ("", "ignored", "ignored", "ignored"),
        ("", "of the program", "of the program", "of the program"),
        ("none", "default", "default", "default"),
        ("0", "default", "default", "default"),
        ("SIGUSR2", "of the program", "heard", "of the program"),
    ],
)
def test_dump_signal_does_not_replace_a_handler_of_the_program(children, prefix, setting, before, meanwhile, afterwards):
    env = {"DLDIST_DUMP_SIGNAL": setting, "DLDIST_FR_DUMP_FILE": prefix}
    ranks, store = group_team.start_ranks(children, workers.uses_a_signal, 2, before, meanwhile == "heard", prefix, env=env)
    for rank in ranks:
        assert rank.result() == [meanwhile, afterwards]


def test_signals_are_delivered_to_the_main_thread(children):
    """Ctrl-C must go to the main thread, or it would not wake that thread from a C call."""
    ranks, store = group_team.start_ranks(children, workers.signal_receiving_threads, 2, env={"DLDIST_LOG": "info"})
    for rank in ranks:
        assert rank.result() == ["main"]
def test_dump_signals_have_their_earlier_handlers_again_after_the_end(children):
    before, heard = children.start(workers.signal_after_the_end).result()
    assert (before, heard) == ([], [signal.SIGUSR1, signal.SIGUSR2])


def test_dump_is_written_while_the_gil_is_held(children, prefix, tmp_path):
    """The dump must be written before the GIL is free, and the report say how long it was held."""

    def ask_for_dump():
        with open(f"{tmp_path}/0.pipe", "w") as file:
            file.write("1")
        assert workers.await_file(f"{prefix}0", time.monotonic()) is not None
        os.unlink(f"{prefix}0")

    env = {"DLDIST_FR_DUMP_FILE": prefix, "DLDIST_DUMP_PIPE": f"{tmp_path}/"}
    ranks, store = group_team.start_ranks(children, workers.idle, 2, env=env)
    for rank in ranks:
        assert rank.recv() == "ready"
    # the monitor, a thread started by Python, needs the GIL once when it starts
    ask_for_dump()
    os.mkfifo(gate := f"{tmp_path}/gate")
    ranks[0].send(("hold the GIL", gate))
    assert ranks[0].recv() == "holding"
    begun = time.monotonic()
    for _ in range(2):  # the first dump may be written before the GIL is held
        ask_for_dump()
    time.sleep(max(begun + GIL_S - time.monotonic(), 0))
    with open(gate, "w") as file:
        file.write("1")
    assert ranks[0].recv() == "released"
    ranks[0].send(("report", "the GIL is free again"))
    report = ranks[0].recv()
    assert re.search(r"another thread has held the GIL for \d+\.\d s and still holds it", report), report
    assert re.search(r"the GIL is free again after ([2-9]|\d\d)\.\d", report), report
    for rank in ranks:
        rank.send(None)
        rank.result()


def test_forked_child_has_no_monitor_thread(children, prefix):
    env = {"DLDIST_FR_DUMP_FILE": prefix, "DLDIST_DUMP_SIGNAL": str(int(signal.SIGUSR2))}
    ranks, store = group_team.start_ranks(children, workers.forks, 2, env=env)
    assert ranks[0].recv() == "(False, '')"
    for rank in ranks:
        rank.result()
    assert not os.path.exists(f"{prefix}0")


def test_group_of_one_rank_has_no_monitor_thread(children):
    child = children.start(workers.alone)
    assert child.recv() is False
    child.result()


def test_malformed_environment_variable_of_the_monitor_is_an_error(children):
    child = children.start(workers.refused, env={"TORCH_NCCL_ENABLE_MONITORING": "perhaps"})
    errors = child.recv()
    assert ("DistArgumentError", "Invalid value for environment variable: TORCH_NCCL_ENABLE_MONITORING ('perhaps')") in errors
    child.result()


def test_monitor_thread_does_not_delay_process_exit(children):
    ranks, store = group_team.start_ranks(children, workers.exit_without_close, 2)
    for rank in ranks:
        assert rank.recv() == "ready"
    for rank in ranks:
        rank.send("go")
    begun = [rank.result() for rank in ranks]
    assert time.monotonic() - min(begun) < procs.under_load(1.5)


def test_log_has_the_error_that_a_python_store_raised_in_the_monitor(children):
    child = children.start(workers.has_a_store_that_fails, env={"DLDIST_LOG": "debug", "DLDIST_COORD_CHECK_MS": "20"})
    for text in child.result():
        assert text.endswith("of a store written in Python raised KeyError('out of order \\udc80')"), text
