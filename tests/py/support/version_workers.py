"""Workers of the ranks of test_versions.py, with either build. See procs.py."""

import array
import time

import dldist


def _outcome(function):
    """Return the outcome of a function, the build, and the seconds that it took."""
    began = time.monotonic()
    try:
        value = function()
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
    return {"value": value, "file": dldist.__file__, "took": time.monotonic() - began}


def serve(channel, secret):
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=10, secret=secret)
    channel.send(store.port)
    channel.recv()
    return _outcome(lambda: store.get("key") if store.check(["key"]) else None)


def connect(_channel, port, secret):
    def use():
        store = dldist.TCPStore("127.0.0.1", port, timeout=5, secret=secret)
        store.set("key", "value")
        return store.get("key").decode()

    return _outcome(use)


def share_file(_channel, path, own, other):
    def use():
        store = dldist.FileStore(path, 2)
        store.set(own, "value of " + own)
        return [store.get(other).decode(), store.add("sum", 1) > 0]

    return _outcome(use)


def make_world(_channel, path, rank):
    def use():
        store = dldist.FileStore(path, 2)
        with dldist.World(store, rank, 2, timeout=10, connect_timeout=10) as world:
            x = array.array("d", [rank + 1.0])
            world.all_reduce(x)
            return x[0]

    return _outcome(use)
