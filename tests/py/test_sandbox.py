"""What is said where a sandbox forbids a system call."""

import pytest
import sandbox_workers


def test_shared_arrays_without_memfd(procs):
    outcome = procs.start(sandbox_workers.empty_without_memfd).result()
    if isinstance(outcome, str):
        pytest.skip(outcome)
    assert "cannot make a shared array of 4096 bytes: memfd_create failed; a sandbox may forbid it" in outcome["text"]
    assert "use ordinary memory: Operation not permitted" in outcome["text"]
