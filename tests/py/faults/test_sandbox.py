"""The errors when a sandbox forbids a system call."""

import errno
import os

import dldist
import pytest
import sandbox_workers
from procs import under_load


def test_shared_array_without_memfd_create_is_an_error_with_an_alternative(procs):
    outcome = procs.start(sandbox_workers.empty_without_memfd).result()
    if isinstance(outcome, str):
        pytest.skip(outcome)
    assert "cannot create a shared array of 4096 bytes: memfd_create failed; a sandbox may forbid it" in outcome["text"]
    assert "use ordinary memory: Operation not permitted" in outcome["text"]


@pytest.mark.exhaustive(every=4)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("error", ["ENOSYS", "EINVAL"])
def test_rank_that_cannot_send_is_named_on_all_ranks(procs, transport, error, size):
    server = dldist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    number = getattr(errno, error)
    children = [
        procs.start(sandbox_workers.all_reduce_without_sendmsg, server.port, rank, size, number,
                    env={"DLDIST_SHM": "1" if transport == "shm" else "0"})
        for rank in range(size)
    ]  # fmt: skip
    outcomes = [child.result() for child in children]
    if any(isinstance(outcome, str) for outcome in outcomes):
        pytest.skip(str(outcomes))
    last = size - 1
    for rank, outcome in enumerate(outcomes):
        assert outcome.get("rank") == last, (rank, outcome)
        assert f"lost rank {rank} " not in outcome["text"], outcome
        assert outcome["seconds"] < under_load(4), outcome
    assert os.strerror(number) in outcomes[last]["text"], outcomes


def test_objects_are_sent_even_if_the_sysinfo_call_is_forbidden(procs):
    outcome = procs.start(sandbox_workers.objects_without_sysinfo).result()
    if isinstance(outcome, str):
        pytest.skip(outcome)
    assert outcome["gathered"] == [["object of 0", "object of 1"]] * 2
