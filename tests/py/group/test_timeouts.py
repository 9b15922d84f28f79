"""Timeouts must mean the same everywhere: None is the group's or object's own, and 0 polls once.
c10d names keep c10d's meaning."""

import threading
import time
from array import array

import dldist
import dldist.functional as F
import pytest
from dldist.testing import threads


def late():
    return pytest.raises(dldist.DistTimeoutError, match="timeout")


@threads(2)
def poll_once(group, waits_of, is_late):
    """Test a timeout of 0 on rank 0, before and after rank 1 has joined."""
    if group.rank == 1:
        is_late.wait(20)
        group.all_reduce(array("f", [1]))
        return
    wait, work = waits_of(group)
    with late():
        wait(0)
    is_late.set()
    work.wait()
    wait(0)


def future_of(group):
    work = group.all_reduce(array("f", [1]), async_op=True)
    return work.get_future().wait, work


def pending_of(group):
    pending = F.all_reduce(array("f", [1]), group=group, async_op=True)
    return pending.wait, pending._works[0]


@pytest.mark.parametrize("waits_of", [future_of, pending_of])
def test_wait_with_timeout_zero_checks_once(waits_of):
    poll_once(waits_of, threading.Event())


@threads(2)
def poll_a_block_once(group, is_late):
    x = array("f", [1])
    if group.rank == 1:
        is_late.wait(20)
        with group.coalesce():
            group.all_reduce(x)
        return
    with group.coalesce(async_op=True) as block:
        group.all_reduce(x)
    with late():
        block.wait(0)
    is_late.set()
    assert block.wait() and block.wait(0)


def test_wait_with_timeout_zero_checks_a_coalesced_block_once():
    poll_a_block_once(threading.Event())


def test_wait_with_timeout_zero_checks_a_future_once():
    future = dldist.Future()
    with late():
        future.wait(0)
    future.set_result(3)
    assert future.wait(0) == 3


@threads(2)
def wait_as_c10d(group, is_late):
    x = array("f", [1])
    if group.rank == 1:
        is_late.wait(20)
        group.all_reduce(x)
        return
    work = group.all_reduce(x, async_op=True)
    threading.Timer(0.2, is_late.set).start()
    start = time.monotonic()
    assert work.wait(0)
    assert time.monotonic() - start >= 0.1


def test_work_wait_has_no_limit_by_default_as_in_torch_distributed():
    wait_as_c10d(threading.Event())


@threads(2)
def messages(group):
    x, other = array("f", [0]), 1 - group.rank
    with late():
        group.recv(x, other, timeout=0)
    group.barrier()
    group.send(array("f", [1]), other)
    group.barrier()
    group.recv(x, other, timeout=0)
    return x[0]


def test_receive_with_timeout_zero_returns_only_messages_that_have_arrived():
    assert messages() == [1.0, 1.0]


def test_store_call_with_timeout_zero_checks_once():
    store = dldist.HashStore()
    with late():
        store.get("absent", timeout=0)
    store.set("here", "1")
    assert store.get("here", timeout=0) == b"1"
