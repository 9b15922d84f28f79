"""Names and signatures, compared with torch's stores and with dldist's type stub."""

import ast
import ctypes
import inspect
import subprocess
import sys
from array import array
from datetime import timedelta

import dldist
import dldist.functional
import pytest
from dldist import _core
from type_stub import parameters, runtime_shape, stub_classes, stub_functions, stub_shape, stub_tree

STORE_KINDS = ["Store", "TCPStore", "FileStore", "HashStore", "PrefixStore"]

METHODS = """set get try_get add compare_set wait check delete_key num_keys append multi_get multi_set queue_push
queue_pop queue_len list_keys barrier clone set_timeout has_extended_api""".split()

# Members of torch's classes that dldist's lack, with the reason.
NOT_IN_DLDIST = {
    "_pybind11_conduit_v1_": "machinery of pybind11",
    "collect_client_counters": "a debugging aid of torch's own client",
    "collect_server_counters": "a debugging aid of torch's own server",
}

ERRORS = {
    "DistError": [RuntimeError],
    "DistBackendError": ["DistError"],
    "DistNetworkError": ["DistError"],
    "DistStoreError": ["DistError"],
    "DistQueueEmptyError": ["DistStoreError"],
    "DistTimeoutError": ["DistError", TimeoutError],
    "DistStoreTimeoutError": ["DistStoreError", "DistTimeoutError"],
    "DistNetworkTimeoutError": ["DistNetworkError", "DistTimeoutError"],
    "DistAuthError": ["DistNetworkError"],
}


@pytest.mark.parametrize("name", ERRORS)
def test_exceptions_have_the_listed_base_classes(name):
    error = getattr(dldist, name)
    assert error.__module__ == "dldist"
    for base in ERRORS[name]:
        assert issubclass(error, getattr(dldist, base) if isinstance(base, str) else base)
    with pytest.raises(error, match="text"):
        raise error("text")


def test_all_names_in_all_exist():
    for name in [*STORE_KINDS, *ERRORS]:
        assert name in dldist.__all__, name
    for name in dldist.__all__:
        assert getattr(dldist, name) is not None
    assert isinstance(dldist.__version__, str)


def test_dir_of_the_package_shows_only_public_names():
    public_modules = {"carriers", *dldist._MODULES}
    out = subprocess.run(
        [sys.executable, "-c", "import dldist.functional as F, dldist; print(dir(dldist), '|', dir(F))"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    package, functional = map(ast.literal_eval, map(str.strip, out.split("|")))
    assert set(package) == {*dldist.__all__, *public_modules}
    assert functional == dldist.functional.__all__


def test_arrays_are_instances_of_the_tensor_protocol():
    """Arrays must be objects that export DLPack or a buffer, on every Python."""
    with dldist.World() as world:
        arrays = [array("i", [1]), bytearray(1), memoryview(b"1"), (ctypes.c_int * 2)(), world.empty(1)]
        assert all(isinstance(each, dldist.Tensor) for each in arrays)
    assert not any(isinstance(each, dldist.Tensor) for each in (1, 1.0, "1", [1], None, dldist.empty))


@pytest.mark.parametrize("kind", STORE_KINDS)
def test_store_methods_are_documented(kind):
    for name in METHODS:
        method = getattr(getattr(dldist, kind), name)
        assert callable(method)
        assert method.__doc__, f"{kind}.{name} has no documentation"
        inspect.signature(method)
    assert getattr(dldist, kind).__module__ == "dldist"
    assert getattr(dldist, kind).__doc__


@pytest.mark.torch
@pytest.mark.parametrize("kind", STORE_KINDS)
def test_stores_have_the_public_names_of_torchs_stores(kind):
    import torch.distributed

    torch_class = getattr(torch.distributed, kind)
    missing = [
        name
        for name in dir(torch_class)
        if not (name.startswith("__") and name.endswith("__"))
        and name not in NOT_IN_DLDIST
        and not hasattr(getattr(dldist, kind), name)
    ]
    assert not missing, "new in torch: add them, or say in NOT_IN_DLDIST why not"


def test_tcp_store_has_the_signature_of_torchs():
    """The signature must have c10d's order, names and defaults, and dldist's arguments after them,
    by keyword."""
    names = [p.name for p in parameters(dldist.TCPStore) if not p.name.startswith("_")]
    assert names == [
        "host_name",
        "port",
        "world_size",
        "is_master",
        "timeout",
        "wait_for_workers",
        "multi_tenant",
        "master_listen_fd",
        "use_libuv",
        "secret",
        "max_key_bytes",
        "max_value_bytes",
    ]
    by_name = {p.name: p for p in parameters(dldist.TCPStore)}
    own = ("secret", "max_key_bytes", "max_value_bytes")
    assert all(by_name[name].kind is inspect.Parameter.KEYWORD_ONLY for name in own)
    defaults = {name: by_name[name].default for name in names if name not in ("host_name", "port", "timeout")}
    assert defaults == {
        "world_size": None,
        "is_master": False,
        "wait_for_workers": True,
        "multi_tenant": False,
        "master_listen_fd": None,
        "use_libuv": True,
        "secret": None,
        "max_key_bytes": None,
        "max_value_bytes": None,
    }


def test_constructors_of_stores_accept_the_argument_styles_of_torch():
    """Constructors must accept the calls of torch's own tests and users."""
    from datetime import timedelta

    short = timedelta(seconds=5)
    master = dldist.TCPStore("127.0.0.1", 0, 1, True)
    dldist.TCPStore(host_name="127.0.0.1", port=master.port, world_size=1, is_master=False, timeout=short)
    dldist.TCPStore("127.0.0.1", master.port, None, False, short, wait_for_workers=False, use_libuv=False)
    dldist.TCPStore("127.0.0.1", master.port, -1, False, short, False, False, None, True)
    dldist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    dldist.PrefixStore("p", master)
    dldist.PrefixStore(prefix="p", store=master)
    store = dldist.HashStore()
    store.set("k", "v")
    store.queue_push("q", "x")
    assert store.queue_pop(key="q", block=True) == b"x"
    store.barrier(key="b", world_size=1, timeout=short)
    store.wait(["k"], short)


def test_type_stub_has_all_public_names():
    runtime = {name for name in dir(_core) if not name.startswith("_")}
    stub = set(stub_classes()) | set(stub_functions(stub_tree().body))
    for node in stub_tree().body:
        if isinstance(node, ast.AnnAssign):
            stub.add(node.target.id)
    assert {name for name in stub if not name.startswith("_")} == runtime


@pytest.mark.parametrize("kind", STORE_KINDS)
def test_type_stub_has_the_same_signatures_as_the_extension(kind):
    methods = stub_functions(stub_classes()[kind].body)
    runtime = getattr(_core, kind)
    assert methods or kind != "Store"
    for name, node in methods.items():
        if any(isinstance(d, ast.Name) and d.id in ("property", "overload") for d in node.decorator_list):
            assert hasattr(runtime, name)
        elif name == "__init__":
            assert stub_shape(node, True) == runtime_shape(runtime, False), f"{kind}()"
        elif not name.startswith("__"):
            assert stub_shape(node, True) == runtime_shape(getattr(runtime, name), True), f"{kind}.{name}"


def test_type_stub_has_every_method_of_the_extension():
    """The stub must have every method that the runtime classes add over their base."""
    for kind in STORE_KINDS:
        own = {name for name in vars(getattr(_core, kind)) if not name.startswith("_")}
        stub = set(stub_functions(stub_classes()[kind].body)) | {
            node.target.id for node in stub_classes()[kind].body if isinstance(node, ast.AnnAssign)
        }
        inherited = set(stub_functions(stub_classes()["Store"].body))
        assert own <= stub | inherited, kind


STATUS_ERRORS = {
    "INVALID_ARGUMENT": "ValueError",
    "NOT_SUPPORTED": "NotImplementedError",
    "OUT_OF_MEMORY": "MemoryError",
    "NETWORK": "DistNetworkError",
    "NETWORK_TIMED_OUT": "DistNetworkTimeoutError",
    "PROTOCOL": "DistNetworkError",
    "AUTH": "DistAuthError",
    "STORE": "DistStoreError",
    "QUEUE_EMPTY": "DistQueueEmptyError",
    "TIMED_OUT": "DistStoreTimeoutError",
    "CLOSED": "DistStoreError",
    "FORKED": "DistStoreError",
}


needs_statuses = pytest.mark.skipif(not hasattr(_core, "_raise_status"), reason="the extension is built without DLDIST_FAULTS=1")


@needs_statuses
def test_every_status_code_of_the_core_has_an_exception():
    """No status of the core may raise SystemError or nothing."""
    names = list(_core._status_names())
    assert names[0] == "OK" and set(STATUS_ERRORS) <= set(names)
    _core._raise_status(0)
    for code, name in enumerate(names[1:], start=1):
        try:
            _core._raise_status(code)
        except SystemError:
            pytest.fail(f"{name} is a SystemError")
        except BaseException as error:
            expected = STATUS_ERRORS.get(name)
            if expected is not None:
                assert expected in [kind.__name__ for kind in type(error).__mro__], (name, type(error))
        else:
            assert name == "INTERRUPTED", f"{name} raises nothing"


def test_texts_of_timeout_errors_contain_the_word_timeout():
    """Errors must contain the word once, whatever the core's text: programs search for it."""
    with pytest.raises(dldist.DistTimeoutError, match=r"barrier timed out after 0\.\d+ s.*\(timeout\)$"):
        dldist.HashStore().barrier("k", 2, timedelta(milliseconds=1))
    with pytest.raises(dldist.DistTimeoutError, match="^Wait timeout after 1ms(?!.*timeout)"):
        dldist.HashStore().wait(["k"], timedelta(milliseconds=1))
    with pytest.raises(dldist.DistTimeoutError, match="timeout"):
        dldist.Future().wait(0.001)


@needs_statuses
def test_texts_of_timeout_status_codes_contain_the_word_timeout():
    late = [code for code, name in enumerate(_core._status_names()) if "TIMED_OUT" in name]
    assert len(late) == 3
    for code in late:
        with pytest.raises(dldist.DistTimeoutError) as raised:
            _core._raise_status(code)
        assert str(raised.value).lower().count("timeout") == 1, str(raised.value)


def _kinds_of(error):
    yield error
    for kind in error.__subclasses__():
        yield from _kinds_of(kind)


def test_exceptions_can_be_pickled():
    """Every exception must be found by its name, and keep type, text, arguments and attributes."""
    import pickle

    from dldist._launch import spawn

    arguments = {
        spawn.ProcessException: ("text", 1, 2),
        spawn.ProcessRaisedException: ("text", 1, 2),
        spawn.ProcessExitedException: ("text", 1, 2, -9, "SIGKILL"),
    }
    own = [kind for kind in _kinds_of(dldist.DistError) if kind.__module__.startswith("dldist")]
    assert {dldist.DistArgumentError, dldist.DistTypeError, spawn.ProcessExitedException} < set(own)
    assert all(getattr(dldist, kind.__name__) is kind for kind in arguments)
    assert all(getattr(dldist, kind.__name__) is kind for kind in own if kind.__module__ == "dldist")
    for kind in own:
        for given in (arguments[kind],) if kind in arguments else (("text",), ("text", 3), ()):
            error = kind(*given)
            error.code, error.rank, error.host, error.pid, error.other = "CODE", 3, "host", 4, [5]
            same = pickle.loads(pickle.dumps(error))
            assert (type(same), same.args, vars(same), str(same)) == (kind, error.args, vars(error), str(error))


@needs_statuses
@pytest.mark.parametrize("code", [-1, 10**6])
def test_unknown_status_code_raises_an_error(code):
    with pytest.raises(Exception) as raised:
        _core._raise_status(code)
    assert not isinstance(raised.value, SystemError)


def test_store_objects_reject_pickling_and_new_attributes():
    """Instances must reject pickling and new attributes."""
    import pickle

    store = dldist.HashStore()
    with pytest.raises(TypeError):
        pickle.dumps(store)
    with pytest.raises(AttributeError):
        store.unknown
    assert store == store and store != dldist.HashStore()
    assert "HashStore" in repr(store)
