"""Many cycles of open, use and close must leave descriptors, threads and memory unchanged."""

import gc
import os
import sys
from datetime import timedelta

import dldist
import procs as helper
import pytest

LOOPBACK = "127.0.0.1"
CYCLES = 1000
WARM_UP = 100
RSS_ALLOWED = 3 << 20
TINY = timedelta(milliseconds=1)


def hash_cycle(_directory):
    store = dldist.HashStore()
    store.set("k", "v" * 1000)
    twin = store.clone()
    assert twin.get("k")[:1] == b"v"
    twin.queue_push("q", "left over")


def prefix_cycle(_directory):
    store = dldist.PrefixStore("q", dldist.PrefixStore("p", dldist.HashStore()))
    store.set("k", "v" * 1000)
    store.multi_get(["k", "k"])
    store.clone().list_keys()


def python_cycle(_directory):
    class Nothing(dldist.Store):
        def set(self, key, value):
            self.last = value

    dldist.PrefixStore("p", Nothing()).set("k", "v")


def file_cycle(directory):
    store = dldist.FileStore(os.path.join(directory, "store"), 1)
    store.set("k", "v" * 1000)
    assert store.get("k")[:1] == b"v"


def tcp_cycle(_directory):
    master = dldist.TCPStore(LOOPBACK, 0, 2, True, wait_for_workers=False)
    client = dldist.TCPStore(LOOPBACK, master.port, 2, False, wait_for_workers=False)
    client.set("k", "v" * 1000)
    assert master.get("k")[:1] == b"v"
    client.queue_push("q", "left over")


def tcp_secret_cycle(_directory):
    master = dldist.TCPStore(LOOPBACK, 0, is_master=True, secret="s")
    client = dldist.TCPStore(LOOPBACK, master.port, secret="s")
    client.set("k", "v")
    assert client.clone().get("k") == b"v"


def multi_tenant_cycle(_directory):
    first = dldist.TCPStore(LOOPBACK, 0, is_master=True, multi_tenant=True)
    second = dldist.TCPStore(LOOPBACK, first.port, is_master=True, multi_tenant=True)
    second.set("k", "v")
    assert first.get("k") == b"v"


CYCLE_KINDS = [hash_cycle, prefix_cycle, python_cycle, file_cycle, tcp_cycle, tcp_secret_cycle, multi_tenant_cycle]


def usage():
    gc.collect()
    return helper.fd_count(), helper.thread_count(), helper.rss_bytes()


def measure(cycle, directory, count):
    for _ in range(min(WARM_UP, count)):
        cycle(directory)
    before = usage()
    for _ in range(count):
        cycle(directory)
    after = usage()
    print(f"{count} cycles: descriptors {before[0]} -> {after[0]}, threads {before[1]} -> {after[1]}, "
          f"RSS {(after[2] - before[2]) >> 10:+} KiB")
    assert after[0] == before[0], "descriptors"
    assert after[1] == before[1], "threads"
    assert after[2] - before[2] < RSS_ALLOWED, "memory"


@pytest.mark.exhaustive(every=3)
@pytest.mark.deadline(120)
@pytest.mark.parametrize("cycle", CYCLE_KINDS, ids=lambda cycle: cycle.__name__)
def test_opening_and_closing_stores_leaks_nothing(cycle, tmp_path):
    measure(cycle, str(tmp_path), CYCLES)


@pytest.fixture(scope="module")
def master():
    return dldist.TCPStore(LOOPBACK, 0, is_master=True)


def failing_calls(store):
    return [
        lambda: store.get("absent" * 50, timeout=TINY),
        lambda: store.wait(["absent", "x" * 3000], TINY),
        lambda: store.queue_pop("q", timeout=TINY),
        lambda: store.queue_pop("q", block=False),
        lambda: store.barrier("never", 1000000, timeout=TINY),
        lambda: store.set("k", 3),
        lambda: store.set(3, "v"),
        lambda: store.wait(["a", 3]),
        lambda: store.multi_set(["a", "b"], ["1"]),
        lambda: store.multi_set(["a", "b"], ["1", 2]),
        lambda: store.add("word", 1),
        lambda: store.add("word", 2**70),
        lambda: store.set("k", "v", unknown=1),
        lambda: store.set("\ud800", "v"),
    ]


@pytest.mark.exhaustive(every=2)
@pytest.mark.deadline(120)
@pytest.mark.parametrize("kind", ["hash", "tcp", "prefix", "file"])
def test_failing_store_calls_leak_nothing(kind, master, tmp_path):
    """Failing calls must leak nothing, neither in the client nor in the server."""
    store = {
        "hash": dldist.HashStore,
        "tcp": lambda: master,
        "prefix": lambda: dldist.PrefixStore("p", dldist.HashStore()),
        "file": lambda: dldist.FileStore(str(tmp_path / "store")),
    }[kind]()
    store.set("word", "not a number")
    calls = failing_calls(store)

    def cycle(_directory):
        for call in calls:
            with pytest.raises(Exception):
                call()

    measure(cycle, None, 100 if kind == "file" else 300)
    assert "x" * 3000 not in store.list_keys()


def test_failing_store_constructors_leak_nothing(tmp_path):
    taken = dldist.TCPStore(LOOPBACK, 0, is_master=True)
    calls = [
        lambda: dldist.TCPStore(LOOPBACK, taken.port, is_master=True),
        lambda: dldist.TCPStore(LOOPBACK, taken.port, secret="s", timeout=timedelta(seconds=1)),
        lambda: dldist.TCPStore(LOOPBACK, 1, timeout=TINY),
        lambda: dldist.TCPStore(LOOPBACK, 0, 2, True, TINY),
        lambda: dldist.TCPStore(LOOPBACK, 0, 0, True),
        lambda: dldist.TCPStore(LOOPBACK, "x"),
        lambda: dldist.TCPStore(),
        lambda: dldist.FileStore(str(tmp_path / "no" / "store"), timeout=TINY),
        lambda: dldist.FileStore(3),
        lambda: dldist.HashStore(timeout="x"),
        lambda: dldist.PrefixStore("p", None),
    ]

    def cycle(_directory):
        for call in calls:
            with pytest.raises(Exception):
                call()

    measure(cycle, None, 200)


def test_store_calls_release_their_arguments_and_values():
    """Arguments, keys in lists and values must be released, on success and on failure."""
    store = dldist.HashStore()
    key, value, array = "a key of its own", b"a value of its own", bytearray(b"abc")
    keys, timeout = [key], timedelta(milliseconds=1, microseconds=7)
    objects = (key, value, array, keys, timeout, store, dldist.HashStore, None)
    store.set(key, value)

    def round_trip():
        store.set(key, value)
        store.set(key, array)
        store.append(key, value)
        store.get(key, timeout=timeout)
        store.wait(keys, timeout)
        store.check(keys)
        store.multi_set(keys, [array])
        store.multi_get(keys)
        store.compare_set(key, value, array)
        store.queue_push(key, value)
        store.queue_pop(key)
        store.try_get(key)
        store.list_keys()
        store.set_timeout(timeout)
        dldist.PrefixStore(key, store).set(key, value)
        for call in (
            lambda: store.get("absent", timeout=timeout),
            lambda: store.set(key, timeout),
            lambda: store.wait([key, timeout]),
            lambda: store.multi_set(keys, [timeout]),
            lambda: store.multi_set(keys, []),
            lambda: dldist.PrefixStore(key, timeout),
        ):
            try:
                call()
            except Exception:
                pass

    for _ in range(5):
        round_trip()
    gc.collect()
    before = [sys.getrefcount(item) for item in objects]
    for _ in range(100):
        round_trip()
    gc.collect()
    after = [sys.getrefcount(item) for item in objects]
    for item, old, new in zip(objects, before, after):
        # The count of an immortal object, such as None since 3.12, has no meaning.
        assert old > 1 << 30 or abs(new - old) < 20, f"{item!r}: {old} -> {new}"
    array.append(0)  # raises BufferError if a buffer is still held


def test_exceptions_are_freed_without_the_garbage_collector():
    """Exceptions must be freed without the garbage collector: no reference cycle through them."""
    import weakref

    store = dldist.HashStore()
    gc.disable()
    try:
        try:
            store.get("absent", timeout=TINY)
        except dldist.DistStoreTimeoutError as error:
            gone = weakref.ref(error)
        assert gone() is None
    finally:
        gc.enable()


def test_disconnected_clients_leak_nothing_in_the_store_server(procs):
    import workers

    server = procs.start(workers.tcp_server)
    port = server.recv()

    def cycle():
        client = dldist.TCPStore(LOOPBACK, port)
        client.set("k", "v")
        with pytest.raises(dldist.DistStoreTimeoutError):
            client.wait(["absent"], TINY)

    def server_usage():
        return helper.fd_count(server.pid), helper.thread_count(server.pid)

    for _ in range(50):
        cycle()
    keeper = dldist.TCPStore(LOOPBACK, port)
    keeper.get("k")
    helper.poll_until(lambda: helper.fd_count(server.pid) < 100)
    before, rss = server_usage(), helper.rss_bytes(server.pid)
    for _ in range(500):
        cycle()
    keeper.get("k")
    helper.poll_until(lambda: server_usage() == before, description=f"server back to {before}")
    grown = helper.rss_bytes(server.pid) - rss
    print(f"server grew by {grown >> 10} KiB over 500 clients")
    assert grown < 2 << 20
    server.send("stop")


PY_TP_CLEAR = 51  # a number from the stable ABI


def test_types_that_support_tp_clear_do_not_release_the_gil_in_deallocation():
    """A type that releases the GIL in its deallocation must not have tp_clear: another thread would
    see a partly cleared cycle."""
    import ctypes

    from dldist import _core

    slot_of = ctypes.pythonapi.PyType_GetSlot
    slot_of.argtypes, slot_of.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_void_p
    types = {name: kind for name, kind in vars(_core).items() if isinstance(kind, type) and not issubclass(kind, Exception)}
    assert {"PrefixStore", "Window", "Plan", "Work"} <= set(types)
    assert {name for name, kind in types.items() if slot_of(kind, PY_TP_CLEAR)} == {"Group", "NcclGroup"}
