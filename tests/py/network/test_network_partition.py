"""The same processes make a new world after a network partition, with references to the old one.

DLDIST_TEST_CUT_S sets the length of the partition in seconds.
"""

import os
import time

import netns
import network_partition_workers
import pytest
from procs import ChildFailed

pytestmark = pytest.mark.skipif(netns.why_unavailable() is not None, reason=f"no hosts: {netns.why_unavailable()}")

TWO_BY_TWO = (0, 0, 1, 1)
CUT_S = float(os.environ.get("DLDIST_TEST_CUT_S", "6"))


def run_partition(procs, hosts, layout, way, front, hold, env, cut_s=CUT_S):
    address = hosts.address(0)
    children = [
        hosts.start(procs, host, network_partition_workers.survive_partition, front, hold, rank, len(layout), address, env=env)
        for rank, host in enumerate(layout)
    ]
    port = children[0].recv(60)
    for child in children:
        child.send(port)
    for child in children:
        assert child.recv(40) == "works"
    hosts.cut(1) if way == "cut" else hosts.set_down(1)
    time.sleep(cut_s)
    hosts.restore_switch(1) if way == "cut" else hosts.set_up(1)
    errors = [child.recv(40) for child in children]
    for child in children:
        child.send("mended")
    failures = []
    for child in children:
        try:
            assert child.recv(60) == "together"
        except ChildFailed as failure:  # a single failure does not show which rank waited for which
            failures.append(str(failure))
    assert not failures, "\n".join(failures)
    for child in children:
        child.send("done")
    again = [child.result(40) for child in children]
    return errors, again


SECRET = {"DLDIST_SECRET": "only we know"}
NO_SHARED_MEMORY = {"DLDIST_SHM": "0"}


@pytest.mark.exhaustive(every=5)
@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    "way, front, hold, env",
    [
        ("down", "world", "closed", {}),
        ("down", "world", "failed", SECRET),
        ("down", "world", "closed", NO_SHARED_MEMORY),
        ("down", "c10d", "closed", {}),
        ("cut", "c10d", "closed", SECRET),
    ],
)
def test_new_world_works_after_the_network_was_cut_and_restored(procs, way, front, hold, env):
    with netns.Hosts(2) as hosts:
        try:
            errors, again = run_partition(procs, hosts, TWO_BY_TWO, way, front, hold, env)
        finally:
            procs.close()
    for error, text in zip(errors, again, strict=True):
        assert error["kind"] in ("DistTimeoutError", "DistPeerLostError"), error
        if hold == "failed":
            assert "the group has failed before" in text, text
