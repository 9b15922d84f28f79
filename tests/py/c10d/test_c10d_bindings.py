"""Small functions of c10d's extension that libraries import: works by array, completion hooks,
names, device strings."""

import datetime
import io
import logging
import threading
import time

import dldist
import dldist.functional as F
import numpy as np
import pytest
from dldist import distributed_c10d as c10d
from dldist._backends import backend_base, registry
from dldist._backends.fake import FakeStore
from dldist._base import log
from thread_ranks import error_of, in_worlds, on_threads, total, vector


@pytest.fixture
def world():
    dldist.init_process_group()
    yield
    dldist.destroy_process_group()


# ---- works by array


def test_wait_tensor_finds_a_work_by_the_memory_of_its_array():
    def case(rank):
        x, other = np.full(4, rank + 1.0), np.zeros(2)
        work = dldist.all_reduce(x, async_op=True)
        c10d._register_work(x, work)
        c10d._register_work(x, dldist.broadcast(other, 0, async_op=True))
        view = np.frombuffer(memoryview(x))
        assert F.wait_tensor(other) is other, "of an array in which nothing is noted, nothing is waited for"
        assert F.wait_tensor(view) is view, "it is the memory that counts"
        return work.is_completed(), view.tolist()

    assert in_worlds(2, case) == [(True, [3.0] * 4)] * 2
    assert c10d._get_work_registry_size() == 0


def test_work_registry_counts_pending_works(world):
    x, y = vector(1), vector(2)
    for each in (x, x, y):
        c10d._register_work(each, dldist.all_reduce(each, async_op=True))
    assert c10d._get_work_registry_size() == 3
    F.wait_tensor(x)
    assert c10d._get_work_registry_size() == 1
    F.wait_tensor(y)
    assert c10d._get_work_registry_size() == 0


def test_wait_tensor_waits_for_the_pending_work_of_an_array(world):
    assert F.wait_tensor(F.all_reduce(vector(2), async_op=True)) == vector(2)


def test_work_registry_rejects_wrong_arguments(world):
    assert isinstance(error_of(c10d._register_work, vector(1), None), TypeError)
    assert isinstance(error_of(c10d._register_work, "x", dldist.all_reduce(vector(1), async_op=True)), TypeError)


def test_arrays_without_elements_do_not_share_a_registered_work(world):
    one, other = np.zeros(0), np.zeros((0, 3))
    c10d._register_work(one, dldist.all_reduce(one, async_op=True))
    F.wait_tensor(other)
    assert c10d._get_work_registry_size() == 1
    F.wait_tensor(one)
    assert c10d._get_work_registry_size() == 0


def test_wait_tensor_raises_the_error_of_the_work(world):
    x = vector(1)
    failed = dldist.Future()
    failed.set_exception(KeyError("gone"))
    c10d._register_work(x, dldist._create_work_from_future(failed))
    assert isinstance(error_of(F.wait_tensor, x), KeyError)
    assert c10d._get_work_registry_size() == 0


def test_setting_to_allow_pending_works_as_graph_inputs_can_be_changed():
    assert c10d._allow_inflight_collective_as_graph_input() is False
    c10d._set_allow_inflight_collective_as_graph_input(True)
    try:
        assert c10d._allow_inflight_collective_as_graph_input() is True
    finally:
        c10d._set_allow_inflight_collective_as_graph_input(False)


# ---- completion hooks


def test_on_completion_hook_is_called_for_completed_calls_in_order():
    """The hook must be called for calls of all kinds, in the order in which they end, and not for
    failed calls."""

    def case(rank):
        pg, infos = dldist.group.WORLD, []
        before = datetime.datetime.now()
        pg._register_on_completion_hook(infos.append)
        total()
        dldist.all_reduce(vector(1), async_op=True).wait()
        pg.broadcast(vector(1), root=0).wait()
        dldist.isend(vector(rank), 1 - rank)
        dldist.recv(vector(0), 1 - rank)
        dldist.barrier()
        dldist.monitored_barrier()  # returns no work
        with dldist.coalescing():
            for _ in range(2):
                dldist.all_reduce(vector(1))
        assert isinstance(error_of(dldist.all_reduce, vector(1), op="band"), Exception)
        pg._wait_for_pending_works()
        assert isinstance(error_of(pg._register_on_completion_hook, print), RuntimeError)
        kinds = sorted(info.op_type.name for info in infos)
        numbers = sorted(info.seq for info in infos if info.op_type.name == "ALLREDUCE")
        for info in infos:
            assert before <= info.time_started <= info.time_finished <= datetime.datetime.now()
            assert info.time_finished - info.time_started >= info.active_duration >= datetime.timedelta(0)
        return kinds, numbers

    names = sorted(["ALLREDUCE", "ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "SEND", "RECV", "BARRIER"])
    for kinds, numbers in in_worlds(2, case):
        assert kinds == names and numbers[0] < numbers[1]


def test_on_completion_hook_is_not_called_for_pending_works():
    both = threading.Barrier(2)

    def case(rank):
        pg, infos = dldist.group.WORLD, []
        pg._register_on_completion_hook(infos.append)
        work = dldist.irecv(vector(0), 1 - rank)
        pg.set_timeout(datetime.timedelta(seconds=0.2))
        error = error_of(pg._wait_for_pending_works)
        both.wait(20)
        pg.set_timeout(datetime.timedelta(seconds=20))
        dldist.isend(vector(1), 1 - rank).wait()
        work.wait()
        return isinstance(error, TimeoutError) and "1 operations are pending after " in str(error)

    assert in_worlds(2, case) == [True, True]


def test_on_completion_hook_must_be_callable(world):
    assert isinstance(error_of(dldist.group.WORLD._register_on_completion_hook, 3), TypeError)
    assert dldist.group.WORLD._has_hooks() is False


def test_backend_may_implement_on_completion_hooks_itself():
    given = []

    class Own(dldist._Backend):
        def getBackendName(self):
            return "own"

        def _register_on_completion_hook(self, hook):
            given.append(hook)

        def _wait_for_pending_works(self):
            given.append("waited")

    dldist.Backend.register_backend("own_hooks", lambda store, rank, size, timeout: Own(rank, size), devices="cpu")
    dldist.init_process_group("own_hooks", store=dldist.HashStore(), rank=0, world_size=1)
    try:
        dldist.group.WORLD._register_on_completion_hook(print)
        dldist.group.WORLD._wait_for_pending_works()
    finally:
        dldist.destroy_process_group()
    assert given == [print, "waited"]


# ---- estimates


def test_time_estimates_need_a_backend_that_supports_them(world):
    error = error_of(dldist._time_estimator)
    assert isinstance(error, NotImplementedError) and "backend gloo" in str(error)

    class Estimating(backend_base.Backend):
        supports_time_estimate = True
        is_estimating = False

        def _start_time_estimate(self):
            self.is_estimating = True

        def _end_time_estimate(self):
            self.is_estimating = False
            return 12.5

    backend = Estimating(0, 1)
    pg = dldist.ProcessGroup(0, 1)
    pg._register_backend("cpu", dldist.ProcessGroup.BackendType.CUSTOM, backend)
    with dldist._time_estimator(pg, "cpu") as estimator:
        assert backend.is_estimating and estimator.estimated_time is None
    assert estimator.estimated_time == 12.5 and not backend.is_estimating
    with pytest.raises(KeyError), dldist._time_estimator(pg) as estimator:
        raise KeyError
    assert estimator.estimated_time is None and not backend.is_estimating
    assert isinstance(estimator, c10d._TimeEstimator)


def test_backend_may_use_the_torch_2_15_name_of_estimates():
    class Estimating(backend_base.Backend):
        _supports_time_estimate = True

    class Former(backend_base.Backend):
        supports_time_estimate = True

    for kind, expected in ((Estimating, True), (Former, True), (backend_base.Backend, False)):
        pg = dldist.ProcessGroup(0, 1)
        pg._register_backend("cpu", dldist.ProcessGroup.BackendType.CUSTOM, kind(0, 1))
        assert pg._supports_time_estimate is expected
    for call in (kind(0, 1)._start_time_estimate, kind(0, 1)._end_time_estimate):
        assert isinstance(error_of(call), RuntimeError)


# ---- names


def test_profiling_names_of_record_comm_blocks_nest():
    name = c10d._get_comm_profiling_name
    assert name() == ""
    with dldist.record_comm("outer") as recorded:
        with dldist.record_comm("inner"):
            assert name() == "inner"
            assert on_threads(1, lambda rank: name()) == [""], "of each thread its own"
        assert name() == "outer"
        with recorded:
            assert name() == "outer"
    assert name() == ""
    c10d._set_comm_profiling_name("mine")
    assert name() == "mine"
    c10d._set_comm_profiling_name("")
    assert isinstance(error_of(c10d._set_comm_profiling_name, None), TypeError)


def test_threads_in_isolation_mode_find_their_own_groups_by_name():
    """Isolated threads must find their own groups by name, and another thread must be able
    to reuse the name."""
    known = registry.Registry()
    known.name_group("before", "all")
    c10d._set_thread_isolation_mode(True)
    try:

        def case(rank):
            known.name_group("one", rank)
            return known.resolve("one"), known.is_named("before")

        assert on_threads(3, case) == [(rank, False) for rank in range(3)]
        assert not known.is_named("one")
    finally:
        c10d._set_thread_isolation_mode(False)
    assert known.resolve("before") == "all" and not known.is_named("one")


def test_log_lines_begin_with_the_global_rank(monkeypatch):
    monkeypatch.setattr(log, "global_rank", None)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("dldist")
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.addHandler(handler)
    try:
        log._emit(("info", time.time(), 0, "first"))
        c10d._set_global_rank(3)
        log._emit(("info", time.time(), 2, "second"))
    finally:
        logger.removeHandler(handler)
    assert stream.getvalue() == "first\n[rank3]: [2 records lost] second\n"
    assert isinstance(error_of(c10d._set_global_rank, "3"), TypeError)


# ---- groups and futures


def test_registered_group_names_can_be_removed():
    assert c10d._is_process_group_registered("one") is False
    c10d._register_process_group("one", dldist.ProcessGroup(0, 1))
    assert c10d._is_process_group_registered("one") is True
    c10d._unregister_process_group("one")
    assert c10d._is_process_group_registered("one") is False


def test_unboxing_a_boxed_group_returns_the_same_group(world):
    pg = dldist.group.WORLD
    assert dldist.ProcessGroup.unbox(pg.boxed()) is pg
    assert isinstance(error_of(dldist.ProcessGroup.unbox, 3), RuntimeError)
    assert pg.use_pg_for_symm_mem_rendezvous is False
    backend = dldist.get_backend_impl()
    backend.setUsePgForSymmMemRendezvous(True)
    assert backend.use_pg_for_symm_mem_rendezvous is True


def test_value_of_a_future_is_passed_through_its_unwrap_function():
    """The function must be called at each access, and may raise; the value must not change."""
    future, seen = dldist.Future(), []
    future._set_unwrap_func(seen.append)
    future.set_result("value")
    assert future.wait() == future.value() == "value" and seen == ["value", "value"]

    def refuse(value):
        raise KeyError(value)

    future._set_unwrap_func(refuse)
    assert isinstance(error_of(future.wait), KeyError) and isinstance(error_of(future.value), KeyError)
    assert future.exception() is None
    assert isinstance(error_of(future._set_unwrap_func, 3), TypeError)


# ---- contents


def test_hashes_of_tensors_depend_on_their_contents_only():
    x = np.arange(12, dtype="f4").reshape(3, 4)
    same = [np.asfortranarray(x), memoryview(x), np.concatenate([x, x])[:3]]
    assert {c10d._hash_tensors([each]) for each in same} == {c10d._hash_tensors([x])} == {7334315243873263101}
    others = [[x.T.copy()], [x, x], [x[:2], x[2:]], [x[2:], x[:2]], [], [x.astype("f8")], [np.zeros(0)]]
    assert len({c10d._hash_tensors(each) for each in [*others, [x]]}) == len(others) + 1
    assert isinstance(error_of(c10d._hash_tensors, ["x"]), TypeError)


# ---- stores


class Stored(dldist.Store):
    def __init__(self):
        super().__init__()
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values[key]

    def add(self, key, amount):
        value = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(value).encode()
        return value


class Forgetful(Stored):
    def add(self, key, amount):
        return amount


def test_check_of_python_stores_detects_wrong_values():
    for store in (Stored(), dldist.HashStore()):
        assert c10d._test_python_store(store) is None
    for store, text in ((Forgetful(), ": got 3, expected 5"), (FakeStore(), ": got b'', expected b'1'")):
        error = error_of(dldist._test_python_store, store)
        assert isinstance(error, AssertionError) and text in str(error)


# ---- devices

DEVICES = ["cpu", "cuda:0", "w/cpu", "w/cuda:1", "rank:0/cpu", "rank:12/cuda:1", "unknown"]
NO_DEVICES = ["rank:x/cpu", "a/b/c", "/cpu", "w/", "", 3]


def test_remote_devices_are_parsed():
    parsed = [dldist._remote_device(text) for text in DEVICES]
    assert [each.worker_name() for each in parsed] == [None, None, "w", "w", None, None, "unknown"]
    assert [each.rank() for each in parsed] == [None, None, None, None, 0, 12, None]
    assert [each.device() for each in parsed] == ["cpu", "cuda:0", "cpu", "cuda:1", "cpu", "cuda:1", "cpu"]
    assert [repr(each) for each in parsed[:-1]] == DEVICES[:-1] and repr(parsed[-1]) == "unknown/cpu"
    assert len({dldist._remote_device(text) for text in [*DEVICES, *DEVICES]}) == len(DEVICES)


@pytest.mark.torch
def test_remote_devices_are_parsed_as_by_torch():
    import torch.distributed

    for text in DEVICES:
        dldist_result, torch_result = dldist._remote_device(text), torch.distributed._remote_device(text)
        for ask in ("worker_name", "rank", "device", "__repr__"):
            assert str(getattr(dldist_result, ask)()) == str(getattr(torch_result, ask)()), (text, ask)
    for text in NO_DEVICES:
        dldist_result, torch_result = error_of(dldist._remote_device, text), error_of(torch.distributed._remote_device, text)
        assert isinstance(dldist_result, type(torch_result)), text
    assert dldist._remote_device(torch.device("cuda:1")).device() == "cuda:1"


def test_detection_of_device_links_raises_an_error():
    error = error_of(c10d._detect_dma_connectivity, "cuda", "nvlink")
    assert isinstance(error, RuntimeError) and "for cuda over nvlink is not available" in str(error)
    assert isinstance(error_of(c10d._DMAConnectivity), TypeError)
    assert c10d._get_intra_node_comm_usage_counter() == 0
