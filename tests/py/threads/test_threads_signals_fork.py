"""One client used by many threads; Ctrl-C and other signals in blocking calls; the interpreter
lock; forked children."""

import ctypes
import functools
import operator
import os
import signal
import threading
import time
from datetime import timedelta

import dldist
import procs as helper
import pytest
import workers
from ports import reserve_port

LOOPBACK = "127.0.0.1"
LONG = timedelta(seconds=20)
KINDS = ["hash", "file", "tcp"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def opened(kind, tmp_path):
    """Return a store of the kind, and the address at which another process finds it."""
    return open_local(kind, tmp_path)


def open_local(kind, tmp_path):
    if kind in ("tcp", "prefix"):
        store = dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=LONG)
        return store, store.port
    if kind == "file":
        place = str(tmp_path / "store")
        return dldist.FileStore(place, timeout=LONG), place
    return dldist.HashStore(timeout=LONG), None


# -- threads -------------------------------------------------------------------------------------


@pytest.mark.deadline(60)
def test_blocked_store_calls_delay_no_others(kind, tmp_path):
    """16 threads are blocked on one client; a 17th must use it as before, and then release them one
    by one."""
    master, place = open_local(kind, tmp_path)
    client = dldist.TCPStore(LOOPBACK, place, timeout=LONG) if kind == "tcp" else master
    results = {}
    calls = {}
    for index in range(16):
        name = f"late{index}"
        calls[name] = [
            lambda name=name: client.get(name),
            lambda name=name: client.wait([name]),
            lambda name=name: client.queue_pop(name),
            lambda name=name: client.multi_get([name, "there"]),
        ][index % 4]
    client.set("there", "1")

    def block(name):
        results[name] = calls[name]()

    def rounds():
        start = time.monotonic()
        for index in range(50):
            client.set("own", str(index))
            assert client.get("own") == str(index).encode()
        return (time.monotonic() - start) / 50

    alone = rounds()
    threads = [threading.Thread(target=block, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    helper.poll_until(lambda: all(thread.native_id for thread in threads))
    helper.wait_at_rest([thread.native_id for thread in threads])
    crowded = rounds()
    print(f"{kind}: set+get {alone * 1e6:.0f} us without, {crowded * 1e6:.0f} us with 16 blocked calls")
    assert crowded < 0.1, "a blocked call held up another"
    assert not results
    for index, name in enumerate(calls):
        if index % 4 == 2:
            client.queue_push(name, "v")
        else:
            client.set(name, "v")
        thread = threads[index]
        thread.join(5)
        assert not thread.is_alive(), f"{name} was not interrupted"
    assert all(results[f"late{index}"] == (b"v", None, b"v", [b"v", b"1"])[index % 4] for index in range(16))


@pytest.mark.deadline(60)
def test_blocked_store_calls_have_separate_timeouts(kind, opened):
    """Calls with different timeouts on one client must each end at their own time."""
    store, _ = opened
    ends = {}

    def block(milliseconds):
        start = time.monotonic()
        try:
            store.get("absent", timeout=timedelta(milliseconds=milliseconds))
        except dldist.DistStoreTimeoutError:
            ends[milliseconds] = time.monotonic() - start

    threads = [threading.Thread(target=block, args=(ms,)) for ms in (3000, 100, 400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    for milliseconds in (100, 400, 3000):
        assert milliseconds / 1000 - 0.01 <= ends[milliseconds] < milliseconds / 1000 + helper.under_load(2), ends


@pytest.mark.deadline(60)
def test_one_store_client_may_be_used_by_many_threads(kind, opened):
    """Responses must reach the calling thread."""
    store, _ = opened
    errors = []

    def hammer(number):
        try:
            for index in range(100):
                value = f"{number}.{index}" * (1 + index)
                store.set(f"k{number}", value)
                assert store.get(f"k{number}") == value.encode()
                store.add("total", 1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(45)
        assert not thread.is_alive()
    assert not errors, errors[0]
    assert store.add("total", 0) == 800


def test_other_threads_run_while_a_store_call_blocks(opened):
    """A blocking call must release the lock; otherwise this thread could not observe it at rest,
    nor end it."""
    store, _ = opened
    values = []
    thread = threading.Thread(target=lambda: values.append(store.get("k")))
    thread.start()
    helper.wait_at_rest([thread.native_id])
    assert not values
    store.set("k", "v")
    thread.join(10)
    assert values == [b"v"]


# -- signals -------------------------------------------------------------------------------------

INTERRUPTS = [(kind, call) for kind in ("hash", "file", "tcp", "prefix") for call in workers.BLOCKING_CALLS] + [
    ("tcp", "connect"),
    ("tcp", "wait_for_workers"),
    ("file", "open"),
]


def place_for(kind, call, tmp_path, keep):
    if call == "connect":
        return reserve_port()
    if call == "open":
        return str(tmp_path / "no" / "such" / "directory" / "store")
    store, place = open_local(kind, tmp_path)
    keep.append(store)
    return place


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("kind, call", INTERRUPTS, ids=[f"{kind}-{call}" for kind, call in INTERRUPTS])
def test_ctrl_c_ends_every_blocking_store_call(kind, call, tmp_path, procs):
    keep = []
    child = procs.start(workers.interruptible, kind, place_for(kind, call, tmp_path, keep), call)
    assert child.recv() == "ready"
    helper.wait_at_rest([child.pid], child.pid)
    sent = time.monotonic()
    child.kill(signal.SIGINT)
    how, at, usable = child.result()
    assert how == "interrupted"
    print(f"{kind} {call}: KeyboardInterrupt after {(at - sent) * 1e3:.1f} ms")
    assert at - sent < helper.under_load(2)
    if usable is not None:
        assert usable == (b"1", b"item", 0)


@pytest.mark.parametrize("place_kind", ["hash", "file", "tcp", "prefix"])
def test_other_signals_do_not_end_a_blocking_store_call(place_kind, tmp_path, procs):
    store, place = open_local(place_kind, tmp_path)
    child = procs.start(workers.user_signals, place_kind, place)
    assert child.recv() == "ready"
    helper.wait_at_rest([child.pid], child.pid)
    for _ in range(20):
        child.kill(signal.SIGUSR1)
        time.sleep(0.005)
    if place_kind == "hash":
        child.send("set it")
    else:
        target = dldist.PrefixStore("p", store) if place_kind == "prefix" else store
        target.set("key", "v")
    value, handled = child.result()
    assert value == b"v"
    assert handled >= 1, "no handler ran during the wait"


def test_exception_of_a_signal_handler_ends_a_blocking_store_call(procs):
    store, port = open_local("tcp", None)
    child = procs.start(workers.handler_raises, port)
    assert child.recv() == "ready"
    helper.wait_at_rest([child.pid], child.pid)
    child.kill(signal.SIGUSR1)
    assert child.result() == ("from the handler", b"1")
    assert store.get("after") == b"1"


def test_interrupted_queue_pop_removes_no_item(procs):
    """An interrupted pop must not stay queued in the server: the item must go to another caller."""
    store, port = open_local("tcp", None)
    child = procs.start(workers.interruptible, "tcp", port, "queue_pop")
    child.recv()
    helper.wait_at_rest([child.pid], child.pid)
    child.kill(signal.SIGINT)
    assert child.result()[0] == "interrupted"
    store.queue_push("queue", "x")
    assert store.queue_pop("queue", timeout=timedelta(seconds=2)) == b"x"


# -- fork ----------------------------------------------------------------------------------------


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("with_thread", [False, True], ids=["quiet", "thread-blocked"])
@pytest.mark.parametrize("fork_kind", ["hash", "file", "tcp", "tcp-master", "prefix"])
def test_forked_child_cannot_use_a_store_client(fork_kind, with_thread, tmp_path, procs):
    keep, place = open_local(fork_kind.partition("-")[0], tmp_path)
    child = procs.start(workers.forks, fork_kind, place, with_thread)
    parent_pid, forked_pid, status, lines, values = child.result()
    assert status == 0, (status, lines, child.stderr_text())
    *uses, own = lines
    assert own == "b'1'"
    assert len(uses) == 4
    for line in uses:
        assert line.startswith("DistStoreError: "), line
        assert str(parent_pid) in line and str(forked_pid) in line, line
    assert values == b"12"
    del keep


def test_exit_of_a_forked_child_does_not_close_its_parents_connections(procs):
    """The exit of a forked child must only close its copies of descriptors: the parent's connection
    must stay open."""
    master, port = open_local("tcp", None)
    client = dldist.TCPStore(LOOPBACK, port, timeout=LONG)
    client.set("a", "1")
    child = procs.start(workers.forks, "tcp", port, False)
    child.result()
    assert client.get("a") == b"1"
    assert master.get("after") == b"2"
    assert os.getpid() != child.pid


# ---- output at exit


def test_function_called_at_exit_runs_despite_a_pending_ctrl_c():
    """For example, the last traceback. A pending Ctrl-C hits a Python function as it is entered."""
    press = ctypes.PyDLL(None)["raise"]
    called = []
    despite = functools.partial(dldist._core._call_despite_ctrl_c, called.append)

    def call_both(first, second):
        # From C, so that no signal check happens between the two.
        return list(map(operator.call, [first, second], [signal.SIGINT, "word"]))

    with pytest.raises(KeyboardInterrupt):
        call_both(press, lambda word: called.append(word))
    assert called == []
    call_both(press, despite)
    assert called == ["word"]


@pytest.mark.parametrize(("presses", "calls"), [(1, 2), (2, 3), (9, 3)])
def test_function_called_at_exit_is_repeated_if_ctrl_c_interrupts_it(presses, calls):
    began = []

    def called_at_exit():
        began.append(None)
        if len(began) <= presses:
            signal.raise_signal(signal.SIGINT)
        return "said"

    if presses < calls:
        assert dldist._core._call_despite_ctrl_c(called_at_exit) == "said"
    else:  # signalled again
        with pytest.raises(KeyboardInterrupt):
            dldist._core._call_despite_ctrl_c(called_at_exit)
    assert len(began) == calls


def test_other_exceptions_of_a_function_called_at_exit_are_raised():
    with pytest.raises(ZeroDivisionError):
        dldist._core._call_despite_ctrl_c(lambda: 1 // 0)
    with pytest.raises(TypeError, match="'function' is missing"):
        dldist._core._call_despite_ctrl_c()
