"""Stores, tensors, recorder and package used by many threads; the GIL must stay off on a
free-threaded Python.

These tests also pass with the GIL. They are for free-threaded builds.
"""

import array
import functools
import gc
import os
import subprocess
import sys
import threading

import dldist
import pairs
import pytest
from dldist import _core
from dldist._backends.registry import Registry

NTHREADS = 8
is_free_threaded = bool(getattr(sys, "_is_gil_enabled", None)) and "free-threading" in sys.version


def together(call, count=NTHREADS):
    """Run call(index) on this many threads at a time. Return results, or raise the first error."""
    return pairs.together(*(functools.partial(call, index) for index in range(count)))


# -- importing ----------------------------------------------------------------------------------

SUBMODULES = """
    dldist dldist._core dldist.comm_hooks dldist.constants dldist.control dldist.device_mesh
    dldist.distributed_c10d dldist.flight_recorder dldist.functional dldist.jax dldist.nccl
    dldist.reducer dldist.rendezvous dldist.reshard dldist.run dldist.symmetric_memory dldist.testing dldist.trace dldist.types
""".split()


@pytest.mark.skipif(not is_free_threaded, reason="this Python has a GIL that cannot be turned off")
@pytest.mark.parametrize("module", SUBMODULES)
def test_importing_dldist_does_not_enable_the_gil(module):
    program = f"import sys, importlib; importlib.import_module({module!r}); print(sys._is_gil_enabled())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    ended = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", program], env=environment, capture_output=True, text=True)
    if "No module named" in ended.stderr:
        pytest.skip(ended.stderr.splitlines()[-1])
    assert (ended.stdout.strip(), ended.stderr) == ("False", "")


# -- stores --------------------------------------------------------------------------------------


def test_threads_that_initialise_one_store_object_open_it_once():
    for _ in range(10):
        store = dldist.HashStore.__new__(dldist.HashStore)

        def init(index, store=store):
            try:
                store.__init__(timeout=1.0 + index)
            except RuntimeError as error:
                assert "already called" in str(error)
                return False
            return True

        assert sum(together(init)) == 1
        store.set("key", "value")


def test_prefix_store_cannot_be_used_by_threads_before_it_is_initialised():
    for _ in range(10):
        below = dldist.HashStore()
        store = dldist.PrefixStore.__new__(dldist.PrefixStore)

        def use(index, store=store, below=below):
            if index == 0:
                store.__init__("prefix", below)
                return None
            while True:
                try:
                    assert store.underlying_store is below
                    assert "prefix" in repr(store)
                    return store.set(f"key{index}", "value")
                except RuntimeError as error:
                    assert "was not called" in str(error)

        together(use)
        assert below.num_keys() == NTHREADS - 1


def test_timeout_of_a_store_read_by_threads_is_always_one_that_was_set():
    class Own(dldist.Store):
        pass

    for store in (dldist.HashStore(), Own()):

        def change(index, store=store):
            for _ in range(200):
                store.set_timeout(1.0 if index % 2 else 1 << 20)
                assert store.timeout.total_seconds() in (1.0, 1 << 20, 300.0)

        together(change)


def test_python_store_may_be_called_by_many_threads():
    class Own(dldist.Store):
        def __init__(self):
            super().__init__()
            self.below = dldist.HashStore()

        def set(self, key, value):
            self.below.set(key, value)

        def get(self, key):
            return self.below.get(key)

        def wait(self, keys, timeout=None):
            self.below.wait(keys)

        def add(self, key, amount):
            return self.below.add(key, amount)

    store = dldist.PrefixStore("view", Own())

    def use(index):
        for number in range(100):
            store.set(f"{index}/{number}", str(number))
            assert store.get(f"{index}/{number}") == str(number).encode()
            store.add("count", 1)

    together(use)
    assert store.add("count", 0) == 100 * NTHREADS


def test_list_of_keys_may_change_while_a_store_reads_it():
    store = dldist.HashStore()
    keys = [f"key{number}" for number in range(50)]
    store.multi_set(keys, keys)

    def use(index):
        for number in range(200):
            if index == 0:
                keys.append(keys.pop(number % len(keys)))
            else:
                assert store.check(keys)

    together(use)


# -- tensors -------------------------------------------------------------------------------------


def test_many_tensor_classes_may_be_used_first_by_many_threads():
    """There are more classes than the table has entries, and some of the classes are freed."""

    class Base:
        def __init__(self):
            self.data = _Producer()

        def __dlpack__(self, **keywords):
            return self.data.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return (1, 0)

    group = dldist.World(dldist.HashStore(), 0, 1)

    class _Producer:
        def __dlpack__(self, **keywords):
            return group.empty(4).__dlpack__(**keywords)

    kept = [type(f"Kept{number}", (Base,), {}) for number in range(20)]

    def use(index):
        for number in range(60):
            cls = kept[(index + number) % len(kept)]
            if number % 3 == 0:
                cls = type(f"Lost{number}", (Base,), {})
            assert _core._describe_tensor(cls(), False)["shape"] == (4,)

    together(use)
    gc.collect()


def test_many_threads_may_use_numpy_arrays_for_the_first_time():
    pytest.importorskip("numpy")
    program = """
import threading, numpy, dldist
from dldist import _core
start = threading.Barrier(8)
def use():
    data = numpy.ones((2, 3), numpy.float32)
    start.wait()
    for _ in range(100):
        assert _core._describe_tensor(data, True)["shape"] == (2, 3)
threads = [threading.Thread(target=use) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout == "done\n", ended.stderr


def test_list_of_tensors_may_change_while_it_is_read():
    # a list of outputs per thread
    outputs = [[array.array("f", [0.0] * 4) for _ in range(20)] for _ in range(NTHREADS)]
    inputs = [array.array("f", [1.0] * 4) for _ in range(20)]

    def use(index):
        for _ in range(200):
            if index == 0:
                for each in outputs:
                    each.append(each.pop(0))
            else:
                try:
                    _core._copy_tensors(outputs[index], inputs)
                except ValueError:
                    pass  # one fewer for an instant

    together(use)
    assert all(each[3].tolist() == [1.0] * 4 for each in outputs[1:])


def test_many_threads_may_describe_the_same_array():
    data = memoryview(bytearray(64))
    view = _core._describe_tensor(data, True)
    assert together(lambda index: [_core._describe_tensor(data, True) for _ in range(100)][-1]) == [view] * NTHREADS


# -- recorder and monitor ------------------------------------------------------------------------


def run_worlds(nthreads, ncalls, make_call):
    store = dldist.HashStore()

    def work(index):
        world, rank = divmod(index, 2)
        with dldist.World(dldist.PrefixStore(str(world), store), rank, 2) as group:
            data = array.array("f", [1.0])
            call = make_call(index)
            for _ in range(ncalls):
                call(group, data)
            return data[0]

    return together(work, nthreads)


def all_reduce_from_new_code(index):
    """Return a new function, so that each thread adds code objects to the recorder's table."""
    scope = {}
    exec(f"def outer{index}(group, data):\n    inner(group, data)\ndef inner(group, data):\n    group.all_reduce(data)\n", scope)
    return scope[f"outer{index}"]


def test_flight_recorder_records_stacks_of_many_threads():
    assert run_worlds(NTHREADS, 20, all_reduce_from_new_code) == [2.0**20] * NTHREADS


def test_flight_recorder_may_be_read_while_it_records():
    done = threading.Event()

    def read():
        while not done.is_set():
            _core._dump_recorder(True, True, True, False)
            _core._monitor_report()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert run_worlds(4, 200, lambda index: lambda group, data: group.barrier()) == [1.0] * 4
    finally:
        done.set()
        reader.join()


def test_many_threads_may_record_calls_of_other_backends():
    group = _core._add_recorded_group("foreign", "of a test", 0, [0, 1])
    shapes = [("float32", (2, 3))] * 4

    def record(index):
        for number in range(200):
            if index == 0:
                shapes.append(shapes.pop())
            record = _core._begin_record(group, "all_reduce", False, -1, 10**9, shapes, shapes)
            _core._end_record(group, record, "failed" if number % 7 == 0 else None)

    together(record)


def test_values_kept_per_thread_are_separate():
    def swap(index):
        for number in range(100):
            assert _core._swap_stream(None if number == 0 else 1000 * index + number) in (None, 1000 * index + number - 1)
        return _core._swap_stream(None)

    assert together(swap) == [1000 * index + 99 for index in range(NTHREADS)]


# -- groups of c10d ------------------------------------------------------------------------------


def test_only_one_of_several_threads_can_register_a_group_name():
    for _ in range(50):
        registry = Registry()

        def enter(index, registry=registry):
            try:
                registry.name_group("name", object())
            except RuntimeError as error:
                assert "already registered" in str(error)
                return False
            return True

        assert sum(together(enter)) == 1


def test_groups_may_be_listed_while_threads_add_and_remove_them():
    registry = Registry()

    def use(index):
        for number in range(200):
            group = object()
            registry.add(group, name=f"{index}.{number}", backend="gloo", config="", store=None, ranks=[0], tag=None)
            registry.count_group()
            assert group in registry.newest_first()
            registry.remove(group)

    together(use)
    assert registry.newest_first() == registry.tags_to_pg[""] == []
    assert registry.group_count == NTHREADS * 200
