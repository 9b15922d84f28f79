"""One behavioural suite over every kind of store, and dldist's client with PyTorch's server."""

import re
import threading
import time
from datetime import timedelta

import dldist
import pytest
from kinds import KINDS, LONG, SHORT, TORCH_KINDS, Tcp, torch_server_features
from procs import under_load

ALL_BYTES = bytes(range(256))
BINARY_VALUES = {
    "empty": b"",
    "one-zero": b"\0",
    "all-bytes": ALL_BYTES,
    "newline": b"a\nb\r\n",
    "not-utf8": b"\xff\xfe\x80",
    "1-MiB": ALL_BYTES * 4096,
}
KEYS = {
    "empty": "",
    "unicode": "schl\u00fcssel/\u9375/\U0001f511",
    "surrogate-escape": "raw\udcff\udc80",
    "slashes": "/a//b/",
    "zero": "a\0b",
    "long": "k" * 4000,
    "bytes": b"\xff\x00\xfe",
    "all-bytes": ALL_BYTES,
}

PARAMS = [pytest.param(kind, id=name) for name, kind in KINDS.items()] + [
    pytest.param(kind, id=name, marks=pytest.mark.torch) for name, kind in TORCH_KINDS.items()
]


@pytest.fixture(params=PARAMS)
def kind(request, tmp_path):
    kind = request.param(str(tmp_path))
    yield kind
    kind.close()


@pytest.fixture
def store(kind):
    return kind.open()


def need(kind, feature):
    features = kind.features
    if features and type(kind).__name__ == "TorchLibuv":
        features = torch_server_features()
    if feature not in features:
        pytest.skip(f"{type(kind).__name__} has no {feature}; test_torch_interop.py has what happens then")


def finish(handle):
    """Wait until earlier requests of the handle are done.

    In PyTorch's protocol, set, append and queue_push have no response: they are done when a later
    request of the same handle is answered.
    """
    handle.num_keys()


class Background(threading.Thread):
    """Run a call in a thread; result() returns its value or raises its error."""

    def __init__(self, call, *args, **kwargs):
        super().__init__(daemon=True)
        self.call, self.args, self.kwargs = call, args, kwargs
        self.value = self.error = None
        self.start()

    def run(self):
        try:
            self.value = self.call(*self.args, **self.kwargs)
        except BaseException as error:
            self.error = error

    def result(self, timeout=10.0):
        self.join(timeout)
        assert not self.is_alive(), f"{self.call} did not return within {timeout} s"
        if self.error is not None:
            raise self.error
        return self.value


def assert_store_timeout(error, kind, *keys):
    assert isinstance(error, dldist.DistStoreTimeoutError)
    assert isinstance(error, dldist.DistStoreError)
    assert isinstance(error, dldist.DistTimeoutError)
    assert isinstance(error, TimeoutError)
    text = str(error)
    for part in (*keys, *kind.where):
        assert part in text, f"{part!r} is not in {text!r}"
    assert re.search(r"wait timeout after \d+ms, keys: |timed out after 0\.", text, re.IGNORECASE), text


# -- values --------------------------------------------------------------------------------------


def test_get_returns_the_set_value_as_bytes(store):
    assert store.set("key", "text") is None
    assert store.get("key") == b"text"
    assert type(store.get("key")) is bytes
    store.set("key", b"bytes")
    assert store.get("key") == b"bytes"


def test_values_are_visible_through_another_handle_of_the_store(kind, store):
    other = kind.open()
    store.set("a", "1")
    assert other.get("a") == b"1"
    other.set("a", "2")
    finish(other)
    assert store.get("a") == b"2"


@pytest.mark.parametrize("value", BINARY_VALUES.values(), ids=BINARY_VALUES.keys())
def test_binary_values_are_unchanged(store, value):
    store.set("key", value)
    assert store.get("key") == value
    store.append("key", b"\0end")
    assert store.get("key") == value + b"\0end"
    store.multi_set(["m1", "m2"], [value, b"x"])
    assert store.multi_get(["m2", "m1"]) == [b"x", value]
    assert store.compare_set("key", value + b"\0end", value[::-1]) == value[::-1]
    assert store.try_get("key") == value[::-1]


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_binary_keys_work_in_every_call(store, key):
    assert not store.check([key])
    assert store.try_get(key) is None
    store.set(key, "v")
    assert store.get(key) == b"v"
    assert store.check([key])
    store.wait([key], LONG)
    assert store.multi_get([key, key]) == [b"v", b"v"]
    assert store.compare_set(key, "v", "7") == b"7"
    assert store.add(key, 1) == 8
    assert store.delete_key(key)
    assert not store.check([key])


def test_str_and_bytes_keys_are_the_same_key(store):
    store.set("\u00fc", "1")
    assert store.get("\u00fc".encode()) == b"1"
    store.set(b"raw\xff", "2")
    assert store.get("raw\udcff") == b"2"


def test_key_that_cannot_be_encoded_is_rejected(store):
    with pytest.raises(UnicodeEncodeError):
        store.set("\ud800", "v")
    store.set("after", "v")


@pytest.mark.parametrize("value", [bytearray(b"abc"), memoryview(b"abc")], ids=["bytearray", "memoryview"])
def test_values_may_be_buffers(store, value):
    store.set("key", value)
    assert store.get("key") == b"abc"


def test_try_get_returns_none_for_a_missing_key(store):
    start = time.monotonic()
    assert store.try_get("key") is None
    assert time.monotonic() - start < under_load(1.0)
    store.set("key", "")
    assert store.try_get("key") == b""


def test_get_waits_for_the_key(kind, store):
    waiting = Background(kind.open().get, "late")
    store.set("other", "x")
    store.set("late", "v")
    assert waiting.result() == b"v"


def test_get_waits_at_most_its_timeout(kind, store):
    start = time.monotonic()
    with pytest.raises(dldist.DistStoreTimeoutError) as raised:
        store.get("absent", timeout=SHORT)
    elapsed = time.monotonic() - start
    assert 0.14 <= elapsed < under_load(2.0)
    assert_store_timeout(raised.value, kind, "absent")
    with pytest.raises(dldist.DistStoreTimeoutError):
        store.get("absent", SHORT)
    store.set("absent", "now")
    assert store.get("absent", timeout=LONG) == b"now"


# -- add -----------------------------------------------------------------------------------------


def test_add_returns_the_new_sum(store):
    assert store.add("n", 5) == 5
    assert store.add("n", 0) == 5
    assert store.add("n", -7) == -2
    assert store.get("n") == b"-2"
    store.set("n", "40")
    assert store.add("n", 2) == 42


def test_add_accepts_the_range_of_int64(store):
    assert store.add("big", 2**63 - 1) == 2**63 - 1
    assert store.get("big") == str(2**63 - 1).encode()
    assert store.add("small", -(2**63)) == -(2**63)
    for amount in (2**63, -(2**63) - 1, 2**100):
        with pytest.raises((OverflowError, TypeError, ValueError)):
            store.add("big", amount)
    assert store.add("big", 0) == 2**63 - 1


def test_add_wraps_around(kind, store):
    if type(kind).__name__.startswith("Torch"):
        pytest.skip("what torch's server makes of an overflow is not ours to say")
    store.set("n", str(2**63 - 1))
    assert store.add("n", 1) == -(2**63)


@pytest.mark.parametrize("value", ["twelve", "-", "x12", "99999999999999999999", b"\xff"])
def test_add_to_text_is_an_error(kind, store, value):
    if type(kind).__name__.startswith("Torch"):
        pytest.skip("torch's server drops the connection; test_torch_interop.py has the client's error")
    other = kind.open()
    store.set("word", value)
    with pytest.raises(dldist.DistStoreError, match="word") as raised:
        store.add("word", 1)
    assert not isinstance(raised.value, dldist.DistTimeoutError)
    assert store.get("word") == (value if isinstance(value, bytes) else value.encode())
    assert store.add("n", 1) == 1
    assert other.add("n", 1) == 2


def test_add_treats_an_empty_value_as_zero(kind, store):
    if type(kind).__name__.startswith("Torch"):
        pytest.skip("torch's server drops the connection")
    store.set("n", "")
    assert store.add("n", 3) == 3


def test_add_from_many_threads_loses_nothing(kind):
    handles = [kind.open() for _ in range(4)]
    threads = [Background(lambda s: [s.add("n", 1) for _ in range(50)], handle) for handle in handles]
    sums = sorted(value for thread in threads for value in thread.result(20))
    assert sums == list(range(1, 201))


# -- compare_set ---------------------------------------------------------------------------------


def test_compare_set_without_expected_value_sets_a_missing_key(store):
    assert store.compare_set("key", "", "new") == b"new"
    assert store.get("key") == b"new"


def test_compare_set_with_expected_value_sets_no_missing_key(store):
    assert store.compare_set("key", "old", "new") == b"old"
    assert not store.check(["key"])


def test_compare_set_replaces_the_expected_value(store):
    store.set("key", "old")
    assert store.compare_set("key", "old", "new") == b"new"
    assert store.get("key") == b"new"


def test_compare_set_returns_and_keeps_another_value(store):
    store.set("key", "other")
    assert store.compare_set("key", "old", "new") == b"other"
    assert store.get("key") == b"other"


def test_compare_set_has_one_winner(kind):
    handles = [kind.open() for _ in range(4)]
    names = [f"handle-{i}".encode() for i in range(4)]
    threads = [Background(h.compare_set, "leader", "", name) for h, name in zip(handles, names)]
    seen = {thread.result() for thread in threads}
    assert len(seen) == 1 and seen <= set(names)


# -- check, wait, delete, num_keys ---------------------------------------------------------------


def test_check_is_true_only_if_all_keys_exist(store):
    assert store.check([]) is True
    assert store.check(["a"]) is False
    store.set("a", "1")
    assert store.check(["a"]) is True
    assert store.check(["a", "b"]) is False
    store.set("b", "")
    assert store.check(["a", "b", "a"]) is True


def test_wait_ends_when_all_keys_exist(kind, store):
    assert store.wait([]) is None
    store.set("a", "1")
    assert store.wait(["a"]) is None
    other = kind.open()
    waiting = Background(other.wait, ["a", "b", "c", "c"], timedelta(seconds=10))
    store.set("c", "3")
    store.set("b", "2")
    assert waiting.result() is None


def test_wait_that_times_out_names_the_missing_keys(kind, store):
    store.set("has-it", "1")
    start = time.monotonic()
    with pytest.raises(dldist.DistStoreTimeoutError) as raised:
        store.wait(["has-it", "absent1", "absent2"], SHORT)
    elapsed = time.monotonic() - start
    assert 0.14 <= elapsed < under_load(2.0)
    assert_store_timeout(raised.value, kind, "absent1", "absent2")
    assert "has-it" not in str(raised.value)
    store.set("absent1", "1")
    assert store.get("absent1") == b"1"
    assert store.add("n", 1) == 1


def test_default_timeout_applies_to_calls_without_a_timeout(kind, store):
    handle = store.clone()
    handle.set_timeout(SHORT)
    try:
        for call in (lambda: handle.wait(["absent"]), lambda: handle.get("absent"), lambda: handle.multi_get(["absent"])):
            start = time.monotonic()
            with pytest.raises(dldist.DistStoreTimeoutError) as raised:
                call()
            assert 0.14 <= time.monotonic() - start < under_load(2.0)
            assert_store_timeout(raised.value, kind, "absent")
    finally:
        handle.set_timeout(LONG)


def test_delete_key_removes_the_key_and_reports_whether_it_existed(store):
    assert store.delete_key("key") is False
    store.set("key", "1")
    assert store.delete_key("key") is True
    assert store.check(["key"]) is False
    assert store.delete_key("key") is False
    store.set("key", "2")
    assert store.get("key") == b"2"


def test_num_keys_counts_the_existing_keys(kind, store):
    assert store.num_keys() == kind.own_keys
    store.set("a", "1")
    store.set("b", "1")
    store.set("a", "2")
    store.add("n", 1)
    assert store.num_keys() == kind.own_keys + 3
    store.delete_key("a")
    assert store.num_keys() == kind.own_keys + 2


def test_append_extends_the_value(kind, store):
    store.append("log", "one ")
    finish(store)
    other = kind.open()
    other.append("log", b"two")
    finish(other)
    assert store.get("log") == b"one two"


def test_append_from_many_threads_loses_nothing(kind):
    handles = [kind.open() for _ in range(3)]

    def append_all(handle, char):
        for _ in range(30):
            handle.append("log", char)
        finish(handle)

    threads = [Background(append_all, handle, char) for handle, char in zip(handles, "abc")]
    for thread in threads:
        thread.result(20)
    assert sorted(handles[0].get("log")) == sorted(b"abc" * 30)


def test_multi_get_returns_the_values_of_multi_set(kind, store):
    assert store.multi_set([], []) is None
    assert store.multi_get([]) == []
    store.multi_set(["a", "b", "c"], ["1", b"2", ""])
    assert store.multi_get(["c", "a", "b", "a"]) == [b"", b"1", b"2", b"1"]
    waiting = Background(kind.open().multi_get, ["a", "late"])
    store.set("late", "4")
    assert waiting.result() == [b"1", b"4"]


def test_multi_set_of_unequal_lengths_is_rejected(kind, store):
    for keys, values in ((["a", "b"], ["1"]), (["a"], ["1", "2"]), ([], ["1"])):
        with pytest.raises(ValueError):
            store.multi_set(keys, values)
    assert store.num_keys() == kind.own_keys


def test_every_store_has_the_extended_api(store):
    assert store.has_extended_api() is True


def test_clone_outlives_its_store(store):
    twin = store.clone()
    assert type(twin) is type(store)
    twin.set("a", "1")
    finish(twin)
    assert store.get("a") == b"1"
    del store
    twin.set("b", "2")
    assert twin.get("a") == b"1"


# -- queues, list_keys, barrier ------------------------------------------------------------------


def test_queue_returns_items_in_the_order_of_pushes(kind, store):
    need(kind, "queues")
    other = kind.open()
    for value in ("1", b"2", ALL_BYTES, ""):
        store.queue_push("q", value)
    finish(store)
    assert other.queue_len("q") == 4
    assert [other.queue_pop("q") for _ in range(4)] == [b"1", b"2", ALL_BYTES, b""]
    assert store.queue_len("q") == 0
    assert store.queue_len("never") == 0


def test_queue_pop_of_an_empty_queue_raises_without_blocking(kind, store):
    need(kind, "queues")
    start = time.monotonic()
    with pytest.raises(dldist.DistQueueEmptyError, match="q") as raised:
        store.queue_pop("q", block=False)
    assert time.monotonic() - start < under_load(1.0)
    assert isinstance(raised.value, dldist.DistStoreError)
    with pytest.raises(dldist.DistQueueEmptyError):
        store.queue_pop("q", False)
    store.queue_push("q", "x")
    assert store.queue_pop(key="q", block=False) == b"x"


def test_queue_pop_waits_for_an_item(kind, store):
    need(kind, "queues")
    waiting = Background(kind.open().queue_pop, "q")
    store.queue_push("q", "late")
    assert waiting.result() == b"late"
    assert store.queue_len("q") == 0


def test_queue_pop_removes_no_item_after_its_timeout(kind, store):
    need(kind, "queues")
    with pytest.raises(dldist.DistStoreTimeoutError) as raised:
        store.queue_pop("q", timeout=SHORT)
    assert_store_timeout(raised.value, kind, "q")
    store.queue_push("q", "x")
    finish(store)
    assert kind.open().queue_len("q") == 1
    assert store.queue_pop("q", timeout=LONG) == b"x"


def test_each_queue_item_is_popped_once(kind, store):
    need(kind, "queues")
    poppers = [Background(kind.open().queue_pop, "q") for _ in range(4)]
    for value in "wxyz":
        store.queue_push("q", value)
    assert sorted(popper.result() for popper in poppers) == [b"w", b"x", b"y", b"z"]


def test_queue_and_value_with_the_same_key_are_separate(kind, store):
    need(kind, "queues")
    store.queue_push("q", "item")
    assert store.check(["q"]) is True
    assert store.wait(["q"], LONG) is None
    if not type(kind).__name__.startswith("Torch"):
        assert store.num_keys() == kind.own_keys
    assert store.delete_key("q") is False
    store.set("q", "value")
    assert store.get("q") == b"value"
    assert store.queue_pop("q") == b"item"
    assert store.delete_key("q") is True
    assert store.check(["q"]) is False


def test_wait_ends_when_a_queue_gets_an_item(kind, store):
    need(kind, "queues")
    waiting = Background(kind.open().wait, ["q"])
    store.queue_push("q", "item")
    assert waiting.result() is None


def test_list_keys_returns_the_existing_keys(kind, store):
    need(kind, "list_keys")
    assert store.list_keys() == []
    store.set("a", "1")
    store.set("b/c", "2")
    store.set("", "3")
    store.add("n", 1)
    assert sorted(store.list_keys()) == ["", "a", "b/c", "n"]
    store.delete_key("a")
    assert sorted(store.list_keys()) == ["", "b/c", "n"]


def test_list_keys_returns_keys_that_get_accepts(kind, store):
    need(kind, "list_keys")
    store.set(b"raw\xff", "1")
    store.set("\u9375", "2")
    keys = store.list_keys()
    assert sorted(store.get(key) for key in keys) == [b"1", b"2"]


def test_barrier_of_a_store_waits_for_all_ranks(kind):
    need(kind, "barrier")
    handles = [kind.open() for _ in range(3)]
    early = [Background(handle.barrier, "b", 3) for handle in handles[:2]]
    assert all(thread.is_alive() for thread in early)
    handles[2].barrier(key="b", world_size=3)
    for thread in early:
        assert thread.result() is None


def test_barrier_of_one_rank_returns_immediately(kind, store):
    need(kind, "barrier")
    assert store.barrier("b", 1) is None


def test_barrier_raises_after_its_timeout(kind, store):
    need(kind, "barrier")
    start = time.monotonic()
    with pytest.raises(dldist.DistStoreTimeoutError) as raised:
        store.barrier("gate", 2, timeout=SHORT)
    assert 0.14 <= time.monotonic() - start < under_load(2.0)
    assert_store_timeout(raised.value, kind, "gate")
    store.set("after", "1")
    assert store.get("after") == b"1"


@pytest.mark.parametrize("world_size", [0, -1])
def test_barrier_rejects_an_invalid_world_size(store, world_size):
    with pytest.raises(ValueError, match="world_size"):
        store.barrier("b", world_size, timeout=SHORT)


# -- arguments -----------------------------------------------------------------------------------

BAD_CALLS = {
    "set-key": (lambda s: s.set(3, "v"), "key", "int"),
    "set-value": (lambda s: s.set("k", 3), "value", "int"),
    "set-none": (lambda s: s.set("k", None), "value", "NoneType"),
    "get-key": (lambda s: s.get(None), "key", "NoneType"),
    "get-timeout": (lambda s: s.get("k", timeout="soon"), "timeout", "str"),
    "try_get-key": (lambda s: s.try_get(1.5), "key", "float"),
    "add-key": (lambda s: s.add([], 1), "key", "list"),
    "add-amount": (lambda s: s.add("k", "1"), "amount", "str"),
    "add-float": (lambda s: s.add("k", 1.0), "amount", "float"),
    "compare_set-expected": (lambda s: s.compare_set("k", 1, "x"), "expected", "int"),
    "compare_set-desired": (lambda s: s.compare_set("k", "x", 1), "desired", "int"),
    "wait-keys": (lambda s: s.wait(3), "keys", "int"),
    "wait-item": (lambda s: s.wait(["a", 3]), "keys", "int"),
    "wait-timeout": (lambda s: s.wait(["a"], []), "timeout", "list"),
    "wait-str": (lambda s: s.wait("key", SHORT), "keys", "str"),
    "check-bytes": (lambda s: s.check(b"key"), "keys", "bytes"),
    "check-keys": (lambda s: s.check(None), "keys", "NoneType"),
    "delete_key": (lambda s: s.delete_key(0), "key", "int"),
    "append-value": (lambda s: s.append("k", 0), "value", "int"),
    "multi_get-keys": (lambda s: s.multi_get(0), "keys", "int"),
    "multi_set-values": (lambda s: s.multi_set(["k"], [0]), "values", "int"),
    "queue_push-value": (lambda s: s.queue_push("k", 0), "value", "int"),
    "queue_pop-key": (lambda s: s.queue_pop(0), "key", "int"),
    "queue_len-key": (lambda s: s.queue_len(0), "key", "int"),
    "barrier-key": (lambda s: s.barrier(0, 1), "key", "int"),
    "barrier-world_size": (lambda s: s.barrier("k", "1"), "world_size", "str"),
    "set_timeout": (lambda s: s.set_timeout("1"), "timeout", "str"),
}


@pytest.mark.parametrize("call, argument, type_name", BAD_CALLS.values(), ids=BAD_CALLS.keys())
@pytest.mark.parametrize("name", ["hash", "tcp", "prefix-hash"])
def test_error_of_a_store_call_names_the_wrong_argument(name, call, argument, type_name, tmp_path):
    kind = KINDS[name](str(tmp_path))
    store = kind.open()
    with pytest.raises(TypeError) as raised:
        call(store)
    text = str(raised.value)
    assert argument in text and type_name in text, text
    store.set("after", "v")
    assert store.num_keys() == kind.own_keys + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.set(),
        lambda s: s.set("a"),
        lambda s: s.set("a", "b", "c"),
        lambda s: s.get(),
        lambda s: s.get("a", SHORT, 1),
        lambda s: s.get("a", patience=1),
        lambda s: s.num_keys(1),
        lambda s: s.wait(),
    ],
)
def test_store_calls_reject_a_wrong_number_of_arguments(call):
    with pytest.raises(TypeError):
        call(dldist.HashStore())


# -- timeouts as values --------------------------------------------------------------------------


def test_timeout_of_a_store_is_returned_as_it_was_set(store):
    handle = store.clone()
    for value in (timedelta(seconds=7), timedelta(milliseconds=250), timedelta(days=3, microseconds=1000)):
        assert handle.set_timeout(value) is None
        assert handle.timeout == value
    handle.set_timeout(LONG)


def test_default_timeout_of_a_store_is_300_seconds(tmp_path):
    assert dldist.HashStore().timeout == timedelta(seconds=300)
    assert dldist.FileStore(str(tmp_path / "f")).timeout == timedelta(seconds=300)
    master = dldist.TCPStore("127.0.0.1", 0, is_master=True)
    assert master.timeout == timedelta(seconds=300)
    assert dldist.PrefixStore("p", master).timeout == timedelta(seconds=300)
    assert dldist.HashStore(timeout=timedelta(seconds=2)).timeout == timedelta(seconds=2)


def test_prefix_store_shares_the_timeout_of_its_store():
    base = dldist.HashStore()
    prefix = dldist.PrefixStore("p", base)
    prefix.set_timeout(timedelta(seconds=3))
    assert base.timeout == timedelta(seconds=3)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(microseconds=1)])
def test_tiny_timeouts_of_store_calls_end_immediately(store, timeout):
    start = time.monotonic()
    with pytest.raises(dldist.DistStoreTimeoutError):
        store.wait(["absent"], timeout)
    assert time.monotonic() - start < under_load(1.0)
    store.set("absent", "now")
    assert store.get("absent") == b"now"


def test_huge_timeout_does_not_overflow(kind, store):
    waiting = Background(store.get, "key", timeout=timedelta.max)
    kind.open().set("key", "v")
    assert waiting.result() == b"v"


# -- the kinds themselves ------------------------------------------------------------------------


def test_two_hash_stores_do_not_share_data():
    first, second = dldist.HashStore(), dldist.HashStore()
    first.set("a", "1")
    assert second.check(["a"]) is False


def test_all_stores_are_subclasses_of_store():
    for kind in (dldist.TCPStore, dldist.FileStore, dldist.HashStore, dldist.PrefixStore):
        assert issubclass(kind, dldist.Store)


def test_key_of_nested_prefix_stores_begins_with_the_innermost_prefix():
    base = dldist.HashStore()
    nested = dldist.PrefixStore("q", dldist.PrefixStore("p", base))
    nested.set("k", "v")
    assert base.get("p/q/k") == b"v"
    assert base.list_keys() == ["p/q/k"]
    assert dldist.PrefixStore("p", base).list_keys() == ["q/k"]
    assert nested.list_keys() == ["k"]
    assert nested.num_keys() == 1


def test_nesting_of_prefix_stores_is_limited():
    """Nesting must be limited: each level uses stack in every call, and 20,000 levels caused a
    segmentation fault."""
    store = dldist.HashStore()
    with pytest.raises(ValueError, match="nested too deeply: got 501 levels, expected at most 500"):
        for _ in range(20_000):
            store = dldist.PrefixStore("p", store)
    store.set("k", "v")
    assert store.get("k") == store.clone().get("k") == b"v"
    assert store.has_extended_api()
    assert store.timeout == store._underlying_non_prefix_store.timeout


def test_prefix_store_lists_only_its_own_keys():
    base = dldist.HashStore()
    base.set("k", "outside")
    prefix = dldist.PrefixStore("p", base)
    assert prefix.check(["k"]) is False
    assert prefix.list_keys() == []
    assert prefix.num_keys() == 1
    dldist.PrefixStore("p2", base).set("k", "2")
    assert prefix.list_keys() == []


def test_prefix_store_over_an_object_that_is_no_store_is_rejected():
    with pytest.raises(ValueError, match="store"):
        dldist.PrefixStore("p", None)
    with pytest.raises(TypeError, match="store.*int|int.*store"):
        dldist.PrefixStore("p", 3)
    with pytest.raises(TypeError, match="prefix"):
        dldist.PrefixStore(3, dldist.HashStore())


def test_underlying_store_of_a_prefix_store_is_the_same_object():
    base = dldist.HashStore()
    prefix = dldist.PrefixStore("p", base)
    assert prefix.underlying_store is base
    assert dldist.PrefixStore("q", prefix).underlying_store is prefix


def test_file_store_knows_its_path(tmp_path):
    path = str(tmp_path / "store")
    assert dldist.FileStore(path).path == path
    assert dldist.FileStore(tmp_path / "store", 2, timeout=LONG).path == path


def test_tcp_store_knows_its_host_and_port(tmp_path):
    kind = Tcp(str(tmp_path))
    client = kind.open()
    assert client.host == "127.0.0.1"
    assert client.port == kind.root.port > 0
    assert str(client.port) in repr(client) and "TCPStore" in repr(client)


def test_timeout_errors_of_stores_have_the_texts_of_torch():
    master = dldist.TCPStore("127.0.0.1", 0, is_master=True, timeout=SHORT)
    with pytest.raises(dldist.DistStoreError, match=r"^wait timeout after 150ms, keys: /a key \(1 of 1 missing\): get on TCPStore at "):
        master.get("a key")
    with pytest.raises(dldist.DistStoreError, match=r"^wait timeout after 150ms, keys: /p/a, /p/b \(2 of 2 missing\): wait on TCPStore "):
        dldist.PrefixStore("p", master).wait(["a", "b"])
    with pytest.raises(dldist.DistStoreError, match=r"^Wait timeout after 150ms, keys: a \(1 of 1 missing\): wait on HashStore$"):
        dldist.HashStore(timeout=SHORT).wait(["a"])


def test_store_with_a_world_size_of_zero_is_rejected():
    for port in (0, 1):
        with pytest.raises(ValueError, match="TCPStore world size cannot be 0"):
            dldist.TCPStore("127.0.0.1", port, 0, False)


def test_num_keys_of_a_tcp_store_counts_the_join_key_only_with_a_world_size():
    master = dldist.TCPStore("127.0.0.1", 0, 1, True, LONG)
    assert master.num_keys() == 1
    assert master.list_keys() == []


@pytest.mark.parametrize(
    "arguments, error, name",
    [
        (("127.0.0.1", 0, 0, True), ValueError, "world.size"),
        (("127.0.0.1", 65536), (ValueError, TypeError, OverflowError), "port"),
        (("127.0.0.1", -1), (ValueError, TypeError, OverflowError), "port"),
        (("127.0.0.1", "80"), TypeError, "port"),
        ((b"\xff", 0), TypeError, "host_name"),
        ((None, 0), TypeError, "host_name"),
        (("127.0.0.1", 0, "2", True), TypeError, "world_size"),
        (("127.0.0.1", 0, 1, True, "soon"), TypeError, "timeout"),
        (("127.0.0.1", 0, 1, True, LONG, True, False, "fd"), TypeError, "master_listen_fd"),
    ],
)
def test_tcp_store_constructor_rejects_wrong_arguments(arguments, error, name):
    with pytest.raises(error, match=name):
        dldist.TCPStore(*arguments)


def test_tcp_store_client_of_port_zero_is_rejected():
    with pytest.raises((ValueError, dldist.DistNetworkError), match=r"port|127\.0\.0\.1"):
        dldist.TCPStore("127.0.0.1", 0, timeout=SHORT)


def test_file_store_constructor_rejects_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match="file_name"):
        dldist.FileStore(3)
    with pytest.raises(TypeError, match="world_size"):
        dldist.FileStore(str(tmp_path / "f"), "2")
    with pytest.raises(TypeError, match="timeout"):
        dldist.HashStore(timeout=[])
