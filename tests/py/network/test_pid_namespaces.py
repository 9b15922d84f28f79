"""Ranks that share the network and memory but have separate pid namespaces, like the containers of
a pod.

No process here can be found by another under its own pid, and some processes have the same pid.
"""

import re
import subprocess
import time

import dldist
import host_workers
import procs as procs_module
import pytest

NEW_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--"]
# Use up this many process ids, and then run the rest of the command.
AFTER = ["sh", "-c", 'n=$1; shift; while [ "$n" -gt 0 ]; do true & wait; n=$((n - 1)); done; "$@"; exit $?', "sh"]
# Ranks 1 and 2 have the same pid.
NUMBERS_USED = (0, 100, 100)


def why_impossible():
    try:
        done = subprocess.run([*NEW_PID_NAMESPACE, "true"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or str(done.returncode) if done.returncode != 0 else None


pytestmark = pytest.mark.skipif(why_impossible() is not None, reason=f"no PID namespaces: {why_impossible()}")

SIZE = 3
ADDRESS = "127.0.0.1"


def start(procs, rank, has_shm):
    env = {"DLDIST_SHM": "1" if has_shm else "0"}
    options = {"timeout": 20, "connect_timeout": 20}
    prefix = [*NEW_PID_NAMESPACE, *AFTER, str(NUMBERS_USED[rank])]
    return procs.start(host_workers.start, "run_sample_of_cases", rank, SIZE, ADDRESS, (), options, env=env, prefix=prefix)


def publish_two_ranks(ranks):
    """Let ranks 0 and 1 join, and check for more than a second that each finds the other alive."""
    port = ranks[0].recv()
    for child in ranks[:2]:
        child.send(port)
    store = dldist.TCPStore(ADDRESS, port, timeout=20)
    store.wait([f"dldist/default/0/rank/{rank}" for rank in range(2)])
    time.sleep(1.2)
    return port


@pytest.mark.deadline(60)
@pytest.mark.parametrize("has_shm", [True, False], ids=["shared memory", "TCP"])
def test_ranks_in_separate_pid_namespaces_are_not_taken_for_dead_or_confused(procs, has_shm):
    ranks = [start(procs, rank, has_shm) for rank in range(SIZE)]
    ranks[2].send(publish_two_ranks(ranks))
    transport = "shared memory" if has_shm else "TCP"
    for rank, child in enumerate(ranks):
        pid, members = child.result()
        assert pid == NUMBERS_USED[rank] + 2
        assert [(number, way) for _, number, way in members] == [
            (NUMBERS_USED[other] + 2, "self" if other == rank else transport) for other in range(SIZE)
        ]


@pytest.mark.deadline(60)
@pytest.mark.parametrize("has_shm", [True, False], ids=["shared memory", "TCP"])
def test_rank_started_twice_is_detected_across_pid_namespaces(procs, has_shm):
    ranks = [start(procs, rank, has_shm) for rank in (0, 1, 1)]
    ranks[2].send(publish_two_ranks(ranks))
    for child in ranks:
        with pytest.raises(procs_module.ChildFailed) as failure:
            child.result()
        assert re.search(r"rank 1 was started twice: got \(.*, pid 102\) and \(.*, pid 102\)", str(failure.value)), failure.value
