"""Worlds that cannot be made: ranks die, are interrupted, time out or disagree while others wait
for a missing rank."""

import signal
import time

import dldist
import group_team
import pytest
import rendezvous_failure_workers
from ports import reserve_port
from thread_ranks import error_of, on_threads

LONG = 60.0  # no test waits this long
SOON_S = 20.0  # on a busy machine; normally a second


@pytest.fixture
def port():
    return reserve_port()


def start(children, place, size, ranks, timeouts=None):
    started = {
        rank: children.start(rendezvous_failure_workers.join, place, rank, size, (timeouts or {}).get(rank, LONG)) for rank in ranks
    }
    let_go(started.values())
    return started


def let_go(children):
    """Release all children together, once the last has started. Their timeouts start here."""
    for child in children:
        assert child.recv() == "begin"
    for child in children:
        child.send("go")


def await_joined(store, ranks, prefix):
    store.wait([f"{prefix}dldist/default/0/rank/{rank}" for rank in ranks], 20)


def wait_for_ranks(port, ranks):
    """Wait until these ranks have joined the world's meeting at rank 0's store."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=20.0)
    await_joined(store, ranks, "default/1/")


def check_lost(outcome, rank, pid):
    assert "DistPeerLostError" in outcome["kinds"], outcome
    assert outcome["rank"] == rank and outcome["pid"] == pid and outcome["host"] == group_team.host_name(), outcome
    assert f"lost rank {rank} (" in outcome["text"]
    assert outcome["seconds"] < SOON_S


@pytest.mark.deadline(60)
def test_rank_that_dies_during_a_rendezvous_is_named_on_all_ranks(procs, port):
    """A dead rank must be named although rank 3 never joins and nothing is known about it."""
    ranks = start(procs, f"tcp://127.0.0.1:{port}", 4, [0, 1, 2])
    wait_for_ranks(port, [0, 1, 2])
    ranks[1].kill()
    for rank in (0, 2):
        check_lost(ranks[rank].recv(SOON_S), 1, ranks[1].pid)


@pytest.mark.deadline(60)
def test_dead_rank_is_named_in_a_rendezvous_by_file_or_without_shared_memory(procs, tmp_path, monkeypatch):
    """Without shared memory, a process is monitored through its port."""
    monkeypatch.setenv("DLDIST_SHM", "0")
    place = f"file://{tmp_path}/store"
    ranks = start(procs, place, 3, [0, 1])
    await_joined(dldist.FileStore(f"{tmp_path}/store"), [0, 1], "default/1/")
    ranks[1].kill()
    check_lost(ranks[0].recv(SOON_S), 1, ranks[1].pid)


@pytest.mark.deadline(60)
def test_rank_0_that_dies_together_with_its_store_is_named(procs, port):
    ranks = start(procs, f"tcp://127.0.0.1:{port}", 3, [0, 1])
    wait_for_ranks(port, [0, 1])
    ranks[0].kill()
    check_lost(ranks[1].recv(SOON_S), 0, ranks[0].pid)


@pytest.mark.deadline(60)
def test_missing_rank_is_named_after_rank_0_has_timed_out_and_ended(procs, port):
    """Rank 1 never joins. Rank 0 times out first, and its process exits with the store."""
    ranks = start(procs, f"tcp://127.0.0.1:{port}", 3, [0, 2], {0: 3.0})
    wait_for_ranks(port, [0, 2])
    outcome = ranks[0].recv(SOON_S)
    assert "missing: 1" in outcome["text"], outcome
    ranks[0].kill()
    outcome = ranks[2].recv(SOON_S)
    assert "DistTimeoutError" in outcome["kinds"] and outcome["rank"] == 1, outcome
    assert "rank 0 waited 3" in outcome["text"] and "missing: 1; then the store failed" in outcome["text"], outcome


@pytest.mark.deadline(60)
def test_port_used_by_another_program_is_not_reported_as_loss_of_rank_0(procs, port):
    place = f"tcp://127.0.0.1:{port}"
    (waiting,) = start(procs, place, 2, [0]).values()
    wait_for_ranks(port, [0])
    failing = procs.start(rendezvous_failure_workers.join_without_a_port, place, 1, 2)
    let_go([failing])
    outcome = failing.recv()
    assert "DistNetworkError" in outcome["kinds"] and outcome["text"].startswith("cannot listen on "), outcome
    waiting.kill()


@pytest.mark.deadline(60)
@pytest.mark.parametrize("victim", [0, 1])
def test_rank_interrupted_during_a_rendezvous_is_named_on_all_ranks(procs, port, victim):
    ranks = start(procs, f"tcp://127.0.0.1:{port}", 4, [0, 1, 2])
    wait_for_ranks(port, [0, 1, 2])
    ranks[victim].kill(signal.SIGINT)
    for rank, child in ranks.items():
        outcome = child.recv(SOON_S)
        if rank == victim:
            assert outcome["kinds"][0] == "KeyboardInterrupt"
            continue
        assert "DistAbortedError" in outcome["kinds"] and outcome["rank"] == victim, outcome
        assert "aborted the group: interrupted while it was being created" in outcome["text"]


@pytest.mark.deadline(60)
def test_rank_that_has_timed_out_is_not_named_as_missing(procs, port):
    ranks = start(procs, f"tcp://127.0.0.1:{port}", 3, [0, 1], {0: 1.0, 1: 4.0})
    wait_for_ranks(port, [0, 1])
    host = group_team.host_name()
    first = ranks[0].recv()
    assert "DistTimeoutError" in first["kinds"] and first["rank"] == 2
    assert f"2 of 3 have joined: 0 ({host}, pid {ranks[0].pid}), 1 ({host}, pid {ranks[1].pid}); missing: 2" in first["text"]
    assert first["seconds"] < 3.5, "the others' need of the store held back the error"
    second = ranks[1].recv()
    assert "DistTimeoutError" in second["kinds"] and second["rank"] == 2
    assert f"2 of 3 have joined: 0 ({host}, pid {ranks[0].pid}, has left since), 1 (" in second["text"]
    assert second["text"].endswith("missing: 2 (timeout)")


def join_at(port, rank, size):
    store = dldist.TCPStore("127.0.0.1", port, timeout=LONG)
    with dldist.Group(store, rank, size, name="w", timeout=LONG) as group:
        group.barrier()
    return "made"


@pytest.mark.deadline(60)
def test_different_world_sizes_are_an_error_on_both_ranks():
    """Both ranks must get the error, over a store that outlives them."""
    server = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    began = time.monotonic()
    errors = on_threads(2, lambda rank: error_of(join_at, server.port, rank, [2, 2**31 - 1][rank]))
    assert time.monotonic() - began < SOON_S
    for rank, error in enumerate(errors):
        assert isinstance(error, dldist.DistMismatchError) and error.rank == 1 - rank
        text = str(error)
        assert "ranks disagree on the number of ranks: rank " in text and "rank 0 (" in text and "rank 1 (" in text
        assert ") has 2147483647" in text and ") has 2" in text.replace(") has 2147483647", "")


@pytest.mark.deadline(60)
def test_abandoned_rendezvous_of_another_size_does_not_block_its_name(procs):
    server = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    dead = procs.start(rendezvous_failure_workers.wait_alone, server.port, 3)
    server.wait(["dldist/w/0/rank/0"], 20)
    dead.kill()
    dead.process.wait()
    assert on_threads(2, lambda rank: join_at(server.port, rank, 2)) == ["made", "made"]


@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    "size, short, spare", [(3, 1, spare) for spare in range(4, 12)] + [(4, 2, spare) for spare in range(7, 13)]
)
def test_only_the_rank_without_descriptors_is_named(procs, size, short, spare):
    """The rank may fail to listen, connect, accept or map memory. Either all ranks make the world,
    or none does.

    Without a descriptor for another rank's memory it makes the world, but the barrier needs
    connections. A rank may have passed the barrier before another fails in it.
    """
    server = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    ranks = [
        procs.start(rendezvous_failure_workers.join_with_few_descriptors, server.port, rank, size, spare if rank == short else None)
        for rank in range(size)
    ]
    for child in ranks:
        assert child.recv() == "begin"
    outcomes = [child.recv(40) for child in ranks]
    assert len({outcome["done"] for outcome in outcomes}) == 1, outcomes
    for rank, outcome in enumerate(outcomes):
        if outcome["text"] == "passed":
            continue
        assert "Too many open files" in outcome["text"], outcome
        assert rank == short or (outcome["rank"] == short and f"rank {short} (" in outcome["text"]), outcome
        assert outcome["code"] != "PEER_LOST", outcome


@pytest.mark.deadline(60)
@pytest.mark.parametrize("secret", ["another", ""])
def test_rank_with_a_wrong_secret_is_named_on_waiting_ranks(procs, port, secret):
    place = f"tcp://127.0.0.1:{port}"
    waiting = procs.start(rendezvous_failure_workers.join, place, 0, 2, 3.0, env={"DLDIST_SECRET": "right", "DLDIST_LOG": "INFO"})
    refused = procs.start(rendezvous_failure_workers.join, place, 1, 2, 2.0, env={"DLDIST_SECRET": secret})
    let_go([waiting, refused])
    assert "DistAuthError" in refused.recv()["kinds"]
    outcome = waiting.recv()
    assert "DistTimeoutError" in outcome["kinds"] and outcome["rank"] == 1
    refused_process = f"{group_team.host_name()} (pid {refused.pid})"
    assert outcome["text"].endswith(f"missing: 1; the store refused clients without its secret: {refused_process} (timeout)"), outcome["text"]
    waiting.send(None)
    waiting.result()
    assert f"waits for other ranks; the store refused clients without its secret: {refused_process}" in waiting.stderr_text()
