"""Stores written in Python: subclasses of Store passed to everything that takes a store."""

import gc
import threading
import weakref
from datetime import timedelta

import dldist
import pytest

SHORT = timedelta(milliseconds=200)


class DictStore(dldist.Store):
    """A store with only the required overrides, as users of c10d write them."""

    def __init__(self):
        super().__init__()
        self.data = {}
        self.calls = []

    def set(self, key, value):
        self.calls.append(("set", key, value))
        self.data[key] = value

    def get(self, key):
        self.calls.append(("get", key))
        return self.data[key]

    def add(self, key, amount):
        self.calls.append(("add", key, amount))
        total = int(self.data.get(key, b"0")) + amount
        self.data[key] = str(total).encode()
        return total

    def compare_set(self, key, expected, desired):
        self.calls.append(("compare_set", key, expected, desired))
        current = self.data.get(key)
        if current is None and expected != b"":
            return expected
        if current is None or current == expected:
            self.data[key] = desired
        return self.data[key]

    def wait(self, keys, timeout=None):
        self.calls.append(("wait", tuple(keys), timeout))
        for key in keys:
            if key not in self.data:
                raise dldist.DistStoreTimeoutError(f"no {key}")

    def check(self, keys):
        self.calls.append(("check", tuple(keys)))
        return all(key in self.data for key in keys)

    def delete_key(self, key):
        return self.data.pop(key, None) is not None

    def num_keys(self):
        return len(self.data)


@pytest.fixture
def base():
    return DictStore()


@pytest.fixture
def prefix(base):
    return dldist.PrefixStore("p", base)


def test_methods_of_a_python_store_get_joined_keys_and_bytes(base, prefix):
    prefix.set("k", "text")
    assert base.calls == [("set", "p/k", b"text")]
    assert prefix.get("k") == b"text"
    assert base.data == {"p/k": b"text"}
    assert prefix.add("n", 5) == 5
    assert prefix.add("n", -6) == -1
    assert prefix.compare_set("c", "", "1") == b"1"
    assert ("compare_set", "p/c", b"", b"1") in base.calls
    assert prefix.compare_set("no", "x", "1") == b"x"
    assert prefix.check(["k", "n"]) is True
    assert prefix.check(["k", "absent"]) is False
    assert prefix.wait(["k"]) is None
    assert prefix.num_keys() == 3
    assert prefix.delete_key("k") is True
    assert prefix.delete_key("k") is False


def test_nested_prefixes_are_joined_from_the_innermost_store(base):
    dldist.PrefixStore("q", dldist.PrefixStore("p", base)).set("k", "v")
    assert base.data == {"p/q/k": b"v"}


def test_python_store_can_be_used_through_its_own_methods(base):
    base.set("k", b"v")
    assert base.get("k") == b"v"
    assert isinstance(base, dldist.Store)


def test_timeout_is_passed_to_wait_of_a_python_store(base, prefix):
    prefix.set("k", "v")
    prefix.wait(["k"], timedelta(seconds=7))
    assert base.calls[-1] == ("wait", ("p/k",), timedelta(seconds=7))


def test_str_returned_by_a_python_store_is_encoded(prefix, base):
    base.data["p/k"] = "a str"
    assert prefix.get("k") == b"a str"


@pytest.mark.parametrize("value", [3, None, ["x"]])
def test_wrong_results_of_a_python_stores_methods_are_rejected(prefix, base, value):
    base.data["p/k"] = value
    with pytest.raises(TypeError):
        prefix.get("k")


def test_generic_operations_of_a_prefix_use_the_methods_of_a_python_store(prefix, base):
    """The generic methods must work: append by get and compare_set, multi_* by loops, try_get by
    check and get, barrier by add and wait."""
    prefix.append("log", "one ")
    prefix.append("log", "two")
    assert base.data["p/log"] == b"one two"
    prefix.multi_set(["a", "b"], ["1", "2"])
    assert prefix.multi_get(["b", "a"]) == [b"2", b"1"]
    assert prefix.try_get("a") == b"1"
    assert prefix.try_get("absent") is None
    assert prefix.barrier("b", 1) is None


def test_python_store_has_the_generic_operations(base):
    base.append("log", "one")
    assert base.data["log"] == b"one"
    base.multi_set(["a", "b"], ["1", "2"])
    assert base.multi_get(["b", "a"]) == [b"2", b"1"]
    assert base.try_get("absent") is None
    with pytest.raises(ValueError):
        base.multi_set(["a"], [])


class Custom(Exception):
    pass


FAILING_CALLS = {
    "set": lambda s: s.set("k", "v"),
    "get": lambda s: s.get("k"),
    "add": lambda s: s.add("k", 1),
    "compare_set": lambda s: s.compare_set("k", "", "v"),
    "wait": lambda s: s.wait(["k"]),
    "check": lambda s: s.check(["k"]),
    "num_keys": lambda s: s.num_keys(),
    "queue_push": lambda s: s.queue_push("k", "v"),
}


@pytest.mark.parametrize("name", FAILING_CALLS)
def test_exceptions_of_a_python_store_are_raised_unchanged(name):
    error = Custom("original")

    def fail(*_):
        raise error

    failing = type("Failing", (DictStore,), {name: fail})()
    wrapped = dldist.PrefixStore("q", dldist.PrefixStore("p", failing))
    with pytest.raises(Custom) as raised:
        FAILING_CALLS[name](wrapped)
    assert raised.value is error


class Bare(dldist.Store):
    pass


MISSING = {
    "set": lambda s: s.set("k", "v"),
    "get": lambda s: s.get("k"),
    "add": lambda s: s.add("k", 1),
    "compare_set": lambda s: s.compare_set("k", "", "v"),
    "wait": lambda s: s.wait(["k"]),
    "check": lambda s: s.check(["k"]),
    "delete_key": lambda s: s.delete_key("k"),
    "num_keys": lambda s: s.num_keys(),
    "append": lambda s: s.append("k", "v"),
    "multi_get": lambda s: s.multi_get(["k"]),
    "multi_set": lambda s: s.multi_set(["k"], ["v"]),
    "queue_push": lambda s: s.queue_push("k", "v"),
    "queue_pop": lambda s: s.queue_pop("k"),
    "queue_len": lambda s: s.queue_len("k"),
    "list_keys": lambda s: s.list_keys(),
    "clone": lambda s: s.clone(),
}


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("through_prefix", [False, True], ids=["direct", "prefix"])
def test_missing_methods_of_a_python_store_are_named(name, through_prefix):
    """A missing override must raise NotImplementedError (a RuntimeError, as in c10d) that names the
    class, and never recurse."""
    store = dldist.PrefixStore("p", Bare()) if through_prefix else Bare()
    with pytest.raises(NotImplementedError) as raised:
        MISSING[name](store)
    assert not isinstance(raised.value, RecursionError)
    assert "Bare" in str(raised.value) or name in str(raised.value), str(raised.value)


class Minimal(dldist.Store):
    """A store with the methods that torch requires."""

    def __init__(self):
        super().__init__()
        self.data = {}

    def set(self, key, value):
        self.data[key] = value

    def get(self, key):
        return self.data[key]

    def add(self, key, amount):
        total = int(self.data.get(key, b"0")) + amount
        self.data[key] = str(total).encode()
        return total

    def compare_set(self, key, expected, desired):
        if self.data.get(key, b"") == expected:
            self.data[key] = desired
        return self.data.get(key, expected)


@pytest.mark.parametrize("through_prefix", [False, True], ids=["direct", "prefix"])
def test_generic_operations_need_only_four_methods_of_a_python_store(through_prefix):
    plain = Minimal()
    store = dldist.PrefixStore("p", plain) if through_prefix else plain
    for value in ("a", "a", "bc"):  # also the same value twice
        store.append("k", value)
    assert store.get("k") == b"aabc"
    store.multi_set(["x", "y"], ["1", "2"])
    assert store.multi_get(["x", "y"]) == [b"1", b"2"]
    with pytest.raises(NotImplementedError):
        store.check(["k"])


def test_base_class_store_has_no_operations():
    with pytest.raises((TypeError, NotImplementedError)):
        dldist.Store().set("k", "v")


def test_super_calls_of_a_python_store_use_the_generic_operations(base):
    class Counting(DictStore):
        multi = 0

        def multi_get(self, keys):
            self.multi += 1
            return super().multi_get(keys)

        def append(self, key, value):
            super().append(key, value + b"!" if isinstance(value, bytes) else value + "!")

    store = Counting()
    wrapped = dldist.PrefixStore("p", store)
    wrapped.multi_set(["a", "b"], ["1", "2"])
    assert wrapped.multi_get(["a", "b"]) == [b"1", b"2"]
    assert store.multi == 1
    wrapped.append("log", "x")
    assert store.data["p/log"] == b"x!"


def test_super_call_of_a_required_store_method_does_not_recurse():
    class Calls(dldist.Store):
        def set(self, key, value):
            super().set(key, value)

    with pytest.raises(NotImplementedError):
        Calls().set("k", "v")
    with pytest.raises(NotImplementedError):
        dldist.PrefixStore("p", Calls()).set("k", "v")


def test_python_store_need_not_call_the_constructor_of_its_base_class():
    class Lazy(DictStore):
        def __init__(self):
            self.data = {}
            self.calls = []

    store = Lazy()
    dldist.PrefixStore("p", store).set("k", "v")
    assert store.data == {"p/k": b"v"}


def test_native_stores_can_be_subclassed_or_raise():
    for kind in (dldist.HashStore, dldist.TCPStore):
        try:
            derived = type("Derived", (kind,), {})
        except TypeError as error:
            assert "not an acceptable base type" in str(error)
        else:
            assert issubclass(derived, dldist.Store)


def test_reference_cycle_through_a_python_store_is_collected():
    store = DictStore()
    store.own_prefix = dldist.PrefixStore("p", store)
    store.own_prefix.set("k", "v")
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None


def test_prefix_store_keeps_a_python_store_alive():
    store = DictStore()
    data = store.data
    prefix = dldist.PrefixStore("p", store)
    del store
    gc.collect()
    prefix.set("k", "v")
    assert data == {"p/k": b"v"}


def test_methods_of_a_python_store_can_be_called_from_other_threads(base, prefix):
    errors = []

    def use(number):
        try:
            for index in range(200):
                prefix.set(f"{number}.{index}", "v")
                assert prefix.get(f"{number}.{index}") == b"v"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not errors, errors[0]
    assert base.num_keys() == 800


def test_python_store_may_wrap_a_native_store():
    """A store that counts calls and forwards them, the usual purpose of subclasses, must work."""

    class Counting(dldist.Store):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.count = 0

        def set(self, key, value):
            self.count += 1
            self.inner.set(key, value)

        def get(self, key):
            return self.inner.get(key)

    inner = dldist.HashStore()
    store = Counting(inner)
    prefix = dldist.PrefixStore("p", store)
    prefix.set("k", "v")
    assert prefix.get("k") == b"v"
    assert inner.get("p/k") == b"v"
    assert store.count == 1


class WholeStore(DictStore):
    """A store that also has the methods that only a wrapper uses."""

    limit = timedelta(seconds=30)
    is_extended = True

    def clone(self):
        other = type(self)()
        other.data = self.data
        return other

    def list_keys(self):
        return list(self.data)

    def multi_get(self, keys):
        return [self.data[key] for key in keys]

    def has_extended_api(self):
        return self.is_extended

    def set_timeout(self, timeout):
        self.limit = timeout

    @property
    def timeout(self):
        return self.limit


def test_all_methods_of_a_python_store_are_used_through_a_prefix():
    base = WholeStore()
    prefix = dldist.PrefixStore("p", base)
    prefix.multi_set(["a", "b"], ["1", "2"])
    base.set("elsewhere", "3")
    assert prefix.list_keys() == ["a", "b"]
    assert prefix.clone().get("a") == b"1"
    for whose in (dldist.PrefixStore, dldist.Store):  # a subclass of PrefixStore may call either
        assert whose.has_extended_api(prefix) is True
        whose.set_timeout(prefix, timedelta(seconds=7))
        assert base.limit == timedelta(seconds=7) and whose.timeout.__get__(prefix) == timedelta(seconds=7)
        base.limit = timedelta(seconds=30)
    base.is_extended = False
    assert dldist.Store.has_extended_api(prefix) is False
    other = dldist.Store.clone(prefix)
    assert other.get("b") == b"2"
    other.set("c", "3")
    assert base.data["p/c"] == b"3"


WRONG_RESULTS = {
    "add": (lambda s: s.add("k", 1), "many", r"add\(\) of a store must return an int, not str"),
    "num_keys": (lambda s: s.num_keys(), 1.5, r"num_keys\(\) of a store must return an int, not float"),
    "queue_len": (lambda s: s.queue_len("k"), None, r"queue_len\(\) of a store must return an int, not NoneType"),
    "list_keys": (lambda s: s.list_keys(), 3, "not iterable"),
    "list_keys of numbers": (lambda s: s.list_keys(), [3], r"list_keys\(\) of a store must return bytes, not int"),
    "multi_get": (lambda s: s.multi_get(["a", "b"]), [b"1"], r"multi_get\(\) of a store returned 1 values for 2 keys"),
    "clone": (lambda s: dldist.Store.clone(s), 3, r"clone\(\): argument 'return' must be a Store, not int"),
}


@pytest.mark.parametrize("case", WRONG_RESULTS)
def test_error_about_a_wrong_result_of_a_python_store_names_the_method(case):
    call, result, text = WRONG_RESULTS[case]
    store = type("Wrong", (WholeStore,), {case.split()[0]: lambda *_: result})()
    with pytest.raises((TypeError, ValueError), match=text):
        call(dldist.PrefixStore("p", store))


def test_exception_in_a_store_method_that_cannot_fail_is_reported_as_unraisable(monkeypatch):
    def fail(*_):
        raise Custom("not now")

    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: reported.append((type(unraisable.exc_value), unraisable.object)))
    store = type("Failing", (WholeStore,), {"has_extended_api": fail, "set_timeout": fail})()
    prefix = dldist.PrefixStore("p", store)
    assert dldist.Store.has_extended_api(prefix) is False
    dldist.Store.set_timeout(prefix, 3)
    assert reported == [(Custom, store)] * 2
