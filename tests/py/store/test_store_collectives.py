"""_StoreCollectives over every kind of store. Ranks are threads, each with its own handle."""

import inspect
import threading
from datetime import timedelta

import dldist
import pytest
from dldist._api.store_collectives import _ControlCollectives, _StoreCollectives
from kinds import LONG, LOOPBACK, SHORT

SIZE = 3


class DictStore(dldist.Store):
    """A store written in Python, over another store."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattribute__(self, name):
        if name in ("set", "get", "add", "check", "wait", "delete_key", "num_keys"):
            return getattr(super().__getattribute__("inner"), name)
        return super().__getattribute__(name)


def hash_stores(_):
    root = dldist.HashStore(timeout=LONG)
    return lambda: root.clone()


def file_stores(directory):
    return lambda: dldist.FileStore(str(directory / "store"), timeout=LONG)


def tcp_stores(_):
    master = dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=LONG)
    return lambda: dldist.PrefixStore("control", dldist.TCPStore(LOOPBACK, master.port, timeout=LONG))


@pytest.fixture(params=[hash_stores, file_stores, tcp_stores], ids=["hash", "file", "tcp"])
def open_store(request, tmp_path):
    return request.param(tmp_path)


def on_all(open_store, call):
    """Return the results of call(collectives, rank) on each rank, or the errors raised."""
    results = {}
    # all stay open to the end, because closing the last handle may delete the data
    stores = [open_store() for _ in range(SIZE)]

    def run(rank):
        try:
            results[rank] = call(_StoreCollectives(stores[rank], rank, SIZE), rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return [results[rank] for rank in range(SIZE)]


def test_barrier_over_a_store_waits_for_all_ranks(open_store):
    here = []

    def call(collectives, rank):
        here.append(rank)
        collectives.barrier("one", LONG)
        seen = len(here)
        collectives.barrier("two", timeout=LONG, block=rank == 0)
        return seen

    assert on_all(open_store, call) == [SIZE] * SIZE


def test_all_sum_adds_the_amounts_of_all_ranks(open_store):
    assert on_all(open_store, lambda collectives, rank: collectives.all_sum("k", 10**rank, LONG)) == [111] * SIZE


def test_broadcast_gives_the_value_to_all_ranks(open_store):
    def call(collectives, rank):
        return collectives.broadcast_send("k", b"\x00data", LONG) if rank == 1 else collectives.broadcast_recv("k", LONG)

    assert on_all(open_store, call) == [b"\x00data", None, b"\x00data"]


def test_gather_returns_the_values_in_rank_order(open_store):
    def call(collectives, rank):
        return collectives.gather_recv("k", f"r{rank}", LONG) if rank == 2 else collectives.gather_send("k", f"r{rank}", LONG)

    assert on_all(open_store, call) == [None, None, [b"r0", b"r1", b"r2"]]


def test_scatter_gives_each_rank_its_value(open_store):
    def call(collectives, rank):
        return collectives.scatter_send("k", ["a", b"b", "c"], LONG) if rank == 0 else collectives.scatter_recv("k", LONG)

    assert on_all(open_store, call) == [b"a", b"b", b"c"]


def test_all_gather_gives_all_values_to_all_ranks(open_store):
    expected = [b"0", b"11", b""]
    assert on_all(open_store, lambda collectives, rank: collectives.all_gather("k", expected[rank], LONG)) == [expected] * SIZE


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda collectives: collectives.barrier("k", SHORT), r"^barrier failed -- missing ranks: 0, 2, (?i:wait timeout after)"),
        (lambda collectives: collectives.all_sum("k", 1, SHORT), r"^barrier failed -- missing ranks: 0, 2, "),
        (lambda collectives: collectives.gather_recv("k", "x", SHORT), r"^gather failed -- missing ranks: 0, 2, "),
        (lambda collectives: collectives.all_gather("k", "x", SHORT), r"^all_gather failed -- missing ranks: 0, 2, "),
    ],
    ids=["barrier", "all_sum", "gather_recv", "all_gather"],
)
def test_error_of_a_collective_over_a_store_names_missing_ranks(open_store, call, text):
    collectives = _StoreCollectives(open_store(), 1, SIZE)
    with pytest.raises(RuntimeError, match=text):
        call(collectives)


@pytest.mark.parametrize("name", ["broadcast_recv", "scatter_recv"])
def test_receiving_over_a_store_without_a_sender_times_out(open_store, name):
    with pytest.raises(RuntimeError, match="(?i:wait timeout after)"):
        getattr(_StoreCollectives(open_store(), 1, SIZE), name)("k", SHORT)


def test_timeout_keeps_its_type_and_the_stores_timeout_is_unchanged():
    store = dldist.HashStore(timeout=LONG)
    with pytest.raises(dldist.DistStoreTimeoutError, match="missing ranks: 0"):
        _StoreCollectives(store, 1, 2).barrier("k", 0.05)
    assert store.timeout == LONG


def test_closed_store_is_not_reported_as_a_missing_rank():
    master = dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=LONG)
    collectives = _StoreCollectives(dldist.TCPStore(LOOPBACK, master.port, timeout=LONG), 0, 2)
    started = threading.Event()
    errors = []

    def wait():
        started.set()
        try:
            collectives.barrier("k", LONG)
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait(10)
    master.wait(["k/0"], LONG)  # the call is waiting by now, or about to
    del master
    thread.join(30)
    assert not thread.is_alive() and len(errors) == 1
    assert "missing ranks" not in str(errors[0]) and isinstance(errors[0], dldist.DistNetworkError)


class FailingStore(dldist.Store):
    """A store whose wait() and check() raise the given errors, if any. No key is ever set."""

    def __init__(self, of_wait, of_check):
        super().__init__()
        self.errors = {"wait": of_wait, "check": of_check}

    def set(self, key, value):
        pass

    def add(self, key, amount):
        return 1

    def wait(self, keys, timeout):
        raise self.errors["wait"]

    def check(self, keys):
        if self.errors["check"]:
            raise self.errors["check"]
        return False


@pytest.mark.parametrize("late", [dldist.DistStoreTimeoutError("late"), RuntimeError("late")])
def test_failure_of_the_store_is_not_reported_as_missing_ranks(late):
    lost = dldist.DistNetworkError("lost the store")
    for store in (FailingStore(lost, None), FailingStore(late, lost)):
        with pytest.raises(dldist.DistNetworkError, match="^lost the store$"):
            _StoreCollectives(store, 0, 2).barrier("k", SHORT)
    with pytest.raises(type(late), match="missing ranks: 0, 1, late"):
        _StoreCollectives(FailingStore(late, None), 0, 2).barrier("k", SHORT)


def test_key_of_a_collective_over_a_store_can_be_used_only_once():
    store = dldist.HashStore()
    collectives = _StoreCollectives(store, 0, 1)
    collectives.barrier("foo", SHORT)
    for call in (
        lambda: collectives.barrier("foo"),
        lambda: collectives.all_sum("foo", 1),
        lambda: collectives.broadcast_send("foo", "x"),
        lambda: collectives.broadcast_recv("foo"),
        lambda: collectives.gather_send("foo", "x"),
        lambda: collectives.gather_recv("foo", "x"),
        lambda: collectives.scatter_send("foo", ["x"]),
        lambda: collectives.scatter_recv("foo"),
        lambda: collectives.all_gather("foo", "x"),
    ):
        with pytest.raises(RuntimeError, match="^Key foo has already been used"):
            call()
    assert collectives.all_gather("bar", "x", timedelta(seconds=1)) == [b"x"]


def test_collectives_work_over_a_python_store():
    store = DictStore(dldist.HashStore(timeout=LONG))
    assert on_all(lambda: store, lambda collectives, rank: collectives.all_gather("k", str(rank), LONG)) == [[b"0", b"1", b"2"]] * SIZE


def test_collectives_over_a_store_reject_wrong_arguments():
    store = dldist.HashStore()
    with pytest.raises(TypeError, match="'store' must be a Store, not dict"):
        _StoreCollectives({}, 0, 1)
    for rank, size in ((1, 1), (-1, 1)):
        with pytest.raises(ValueError, match=f"'rank' is out of range: got {rank}, expected 0 to 0"):
            _StoreCollectives(store, rank, size)
    collectives = _StoreCollectives(store, 0, 2)
    with pytest.raises(ValueError, match="got 3, expected 2"):
        collectives.scatter_send("k", ["a", "b", "c"])
    with pytest.raises(TypeError, match="'timeout'"):
        collectives.barrier("other", "soon")


def test_base_class_of_store_collectives_has_no_constructor():
    """As in c10d, only subclasses have a constructor."""

    class Bare(_ControlCollectives):
        pass

    class Own(_ControlCollectives):
        def __init__(self):
            self.here = True

    for kind in (_ControlCollectives, Bare):
        with pytest.raises(TypeError, match=f"{kind.__name__}: No constructor defined!"):
            kind()
    assert Own().here
    with pytest.raises(NotImplementedError):
        Own().barrier("key")
    assert issubclass(_StoreCollectives, _ControlCollectives)
    assert dldist._ControlCollectives is _ControlCollectives


CALLS = [
    ("barrier", ("b",)),
    ("barrier", ("b",)),
    ("all_sum", ("s", 5)),
    ("all_sum", ("t", True)),
    ("all_sum", ("u", 2.5)),
    ("all_gather", ("g", b"x\xff")),
    ("gather_recv", ("r", "x")),
    ("scatter_send", ("c", ["a"])),
    ("broadcast_send", ("d", "")),
    ("broadcast_recv", ("d",)),
    ("broadcast_recv", ("missing",)),
    ("scatter_recv", ("missing too",)),
]


@pytest.mark.torch
def test_collectives_over_a_store_match_torchs_results_and_errors():
    """In a world of one, results and types of errors must be equal."""
    import torch.distributed as torch_distributed

    def outcomes(package):
        collectives = package._StoreCollectives(package.HashStore(), 0, 1)
        for name, arguments in CALLS:
            try:
                yield getattr(collectives, name)(*arguments, timeout=timedelta(milliseconds=50))
            except (RuntimeError, TypeError) as error:
                yield "TypeError" if isinstance(error, TypeError) else "RuntimeError"

    dldist_outcomes, torch_outcomes = list(outcomes(dldist)), list(outcomes(torch_distributed))
    assert dldist_outcomes == torch_outcomes


def shapes(kind):
    return {name: list(inspect.signature(value).parameters) for name, value in vars(kind).items() if name[0] != "_"}


def test_base_class_of_store_collectives_declares_every_call():
    assert shapes(_ControlCollectives) == shapes(_StoreCollectives)
