"""Ctrl-C and signal handlers must work in every call that can block. The list must be complete."""

import blocking_calls as calls
import group_team
import pytest
from ports import reserve_port


def test_every_public_call_is_listed_as_blocking_or_not():
    known = {name.partition(" ")[0] if not name.startswith("c10d") else name for name in calls.BLOCKING}
    known |= {*calls.NOT_BLOCKING, *calls.TESTED_ELSEWHERE}
    public = calls.public_calls()
    assert not public - known, "list in blocking_calls.py if these can block, and how"
    inits = {name for name in known if name.endswith(".__init__")}
    gone = known - public - inits
    assert not gone, "these no longer exist"
    assert not {*calls.BLOCKING} & calls.NOT_BLOCKING


def check(results, names):
    assert set(results) == set(names)
    bad = {name: result for name, result in results.items() if result[0] != "interrupted" or result[1] >= calls.LIMITS_S[name]}
    assert not bad


@pytest.mark.exhaustive(every=2)
@pytest.mark.deadline(240)
@pytest.mark.parametrize("is_shm", [True, False], ids=["shared memory", "messages"])
def test_every_blocking_call_reacts_to_a_signal(procs, is_shm):
    names = [name for name in calls.BLOCKING if (name in calls.WITHOUT_SHARED_MEMORY) != is_shm]
    env = {} if is_shm else {"DLDIST_SHM": "0"}
    store = group_team.dldist.TCPStore("127.0.0.1", 0, is_master=True)
    peer = procs.start(calls.run_rank_1, store.port, env=env)
    caller = procs.start(calls.interrupt_calls, store.port, names, env=env)
    assert peer.recv() == "ready"
    check(caller.result(230), names)


@pytest.mark.deadline(60)
@pytest.mark.parametrize("rank", [0, 1])
def test_init_process_group_reacts_to_a_signal(procs, rank):
    outcome, seconds = procs.start(calls.interrupt_initializing, f"tcp://127.0.0.1:{reserve_port()}", rank).result(50)
    assert outcome == "interrupted" and seconds < 0.1
