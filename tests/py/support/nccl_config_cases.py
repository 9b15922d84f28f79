"""Configurations of single collectives over the stubs of tests/stubs, which record the last
configuration.

test_nccl_case_files.py runs this file with pytest, in a process that knows where the stubs are.
"""

import ctypes
import threading
import types

import dldist
import pytest
from dldist import _core, nccl
from nccl_group_cases import LIMIT_S, VERSION, array, on_ranks
from nccl_group_cases import no_faults as no_faults
from nccl_group_cases import stubs as stubs
from nccl_stream_cases import Graph, Side
from nccl_stream_cases import framework as framework

NCCL = tuple(map(int, VERSION.split(".")))
needs_configs = pytest.mark.skipif(NCCL < (2, 31, 2), reason="this NCCL has no configurations of collectives")
needs_events = pytest.mark.skipif(NCCL < (2, 32, 3), reason="this NCCL records no events when a collective begins")

COLLECTIVES = {
    "ncclAllReduce": lambda group, x, many: group.all_reduce(x),
    "ncclBroadcast": lambda group, x, many: group.broadcast(x, 0),
    "ncclReduce": lambda group, x, many: group.reduce(x, 0),
    "ncclAllGather": lambda group, x, many: group.all_gather_single(many, x),
    "ncclReduceScatter": lambda group, x, many: group.reduce_scatter_single(x, many),
    "ncclAlltoAll": lambda group, x, many: group.all_to_all_single(many, many),
    "ncclGather": lambda group, x, many: group.gather_single(x, many if group.rank == 0 else None, 0),
    "ncclScatter": lambda group, x, many: group.scatter_single(x, many if group.rank == 0 else None, 0),
}


class Calls:
    """Count calls of an NCCL function from here on, with and without a configuration."""

    def __init__(self, stubs, function):
        self._names = [f"{function}Config", function]
        self._calls = stubs.nccl.calls
        self._before = [self._calls(name) for name in self._names]

    def made(self):
        return [self._calls(name) - before for name, before in zip(self._names, self._before, strict=True)]


@needs_configs
@pytest.mark.parametrize("function", COLLECTIVES)
def test_nccl_configuration_applies_to_each_collective(stubs, function):
    configured = Calls(stubs, function)

    def run(group, rank):
        x, many = array(stubs, [1, 2], rank), array(stubs, [1, 2, 3, 4], rank)
        with nccl.coll_config(max_ctas=4, alg_selection="ring", user_profiler_tag=1 << 40):
            COLLECTIVES[function](group, x, many)
        configuration = stubs.nccl.coll_config()
        group.barrier()
        COLLECTIVES[function](group, x, many)
        return configuration

    wanted = "minCTAs=1 maxCTAs=4 algSelection=ring forceAlgSelection=1 userProfilerTag=0x10000000000"
    assert on_ranks(2, run) == [wanted] * 2
    plain = 2 + (2 if function == "ncclAllReduce" else 0)  # the barrier is also an all_reduce
    assert configured.made() == [2, plain]


@needs_configs
def test_nccl_configuration_applies_to_each_call_of_a_composed_collective(stubs):
    """Uneven blocks are made of broadcasts and reductions; each must get the configuration."""
    broadcasts, reductions = Calls(stubs, "ncclBroadcast"), Calls(stubs, "ncclReduce")

    def run(group, rank):
        blocks = [array(stubs, [0] * (1 + k), rank) for k in range(2)]
        own = array(stubs, [rank + 1] * (1 + rank), rank)
        with nccl.coll_config(cta_policy=1):
            group.all_gather(blocks, own)
            group.reduce_scatter(own, blocks)
        return [block.numpy().tolist() for block in blocks], own.numpy().tolist()

    assert on_ranks(2, run) == [([[1], [2, 2]], [2]), ([[1], [2, 2]], [4, 4])]
    assert broadcasts.made() == reductions.made() == [4, 0]


@needs_configs
def test_blocks_with_an_nccl_configuration_nest_and_are_per_thread(stubs):
    def configuration(group, x, **fields):
        stubs.nccl.reset()
        group.all_reduce(x)
        return stubs.nccl.coll_config()

    group = _core.NcclGroup(None, 0, 1, device=0)
    x = array(stubs, [1, 2])
    outer = nccl.coll_config(nvls_ctas=2)
    with outer:
        assert configuration(group, x) == "nvlsCTAs=2 forceAlgSelection=1"
        with nccl.coll_config(cga_cluster_size=3), outer:
            assert configuration(group, x) == "nvlsCTAs=2 forceAlgSelection=1"
        with nccl.coll_config(cga_cluster_size=3):
            assert configuration(group, x) == "cgaClusterSize=3 forceAlgSelection=1"
            others = []
            thread = threading.Thread(target=lambda: others.append(configuration(group, x)))
            thread.start()
            thread.join(LIMIT_S)
            assert others == [""]
        with pytest.raises(ZeroDivisionError), nccl.coll_config():
            assert configuration(group, x) == "forceAlgSelection=1"
            raise ZeroDivisionError
        assert configuration(group, x) == "nvlsCTAs=2 forceAlgSelection=1"
    assert configuration(group, x) == ""
    group.close(1)


@needs_configs
def test_values_of_a_configuration_that_are_not_defaults_reach_nccl(stubs):
    group = _core.NcclGroup(None, 0, 1, device=0)
    with nccl.coll_config(force_alg_selection=0, cta_policy=2):
        group.all_reduce(array(stubs, [1, 2]))
    assert sorted(stubs.nccl.coll_config().split()) == ["CTAPolicy=2", "forceAlgSelection=0"]
    group.close(1)


@needs_configs
def test_coalesced_calls_keep_their_nccl_configuration(stubs):
    """Coalesced calls must keep their own configuration, even if the block and the object end
    before NCCL is called."""
    calls = Calls(stubs, "ncclAllReduce")
    group = _core.NcclGroup(None, 0, 1, device=0)
    first, second = array(stubs, [1, 2]), array(stubs, [1, 2])
    group.start_coalescing()
    group.all_reduce(first)
    with nccl.coll_config(alg_selection="tree"):
        group.all_reduce(second)
    group.end_coalescing().wait(LIMIT_S)
    assert calls.made() == [1, 1]
    assert stubs.nccl.coll_config() == "algSelection=tree forceAlgSelection=1"
    group.start_coalescing()
    with nccl.coll_config(alg_selection="pat"):
        group.all_reduce(second)
    group.drop_coalesced()
    assert calls.made() == [1, 1]
    group.close(1)


@needs_configs
def test_estimates_are_of_the_configured_call(stubs):
    calls = Calls(stubs, "ncclAllReduce")

    def run(group, rank):
        x = array(stubs, [1, 2], rank)
        group._start_time_estimate()
        with nccl.coll_config(alg_selection="nvls"):
            group.all_reduce(x)
        estimate = group._end_time_estimate()
        return estimate, x.numpy().tolist()

    assert on_ranks(2, run) == [(1, [1, 2])] * 2
    assert calls.made() == [2, 0]
    assert stubs.nccl.coll_config() == "algSelection=nvls forceAlgSelection=1"


@needs_configs
def test_nccl_configuration_does_not_apply_to_messages(stubs):
    def run(group, rank):
        x, blocks = array(stubs, [1, 2], rank), [array(stubs, [1, 2], rank) for _ in range(2)]
        texts = []
        with nccl.coll_config(max_ctas=4):
            for call in (
                lambda: group.send(x, 1 - rank),
                lambda: group.recv(x, 1 - rank),
                lambda: group.all_to_all(blocks, blocks),
                lambda: group.gather(x, blocks if rank == 0 else None, 0),
                lambda: group.scatter(x, blocks if rank == 0 else None, 0),
            ):
                with pytest.raises(NotImplementedError) as raised:
                    call()
                texts.append(str(raised.value))
        group.all_reduce(x)  # nothing was sent, and the group stays usable
        return texts

    for texts in on_ranks(2, run):
        assert all("NCCL has no configuration" in text for text in texts)
        assert [text.partition("(")[0].partition(":")[0] for text in texts] == ["send", "recv", "all_to_all", "gather", "scatter"]


@needs_configs
def test_nccl_configuration_is_rejected_for_one_sided_calls(stubs):
    def run(group, rank):
        x = group.empty(4, "int32")
        window = group.new_window(x)
        texts = []
        with nccl.coll_config(max_ctas=4):
            for call in (lambda: window.put(x, 1 - rank), lambda: window.signal(1 - rank), lambda: window.wait_signal(1 - rank)):
                with pytest.raises(NotImplementedError) as raised:
                    call()
                texts.append(str(raised.value))
        # Nothing was sent: there must be exactly one signal to receive.
        window.signal(1 - rank)
        assert window.wait_signal(1 - rank, async_op=True).wait(LIMIT_S)
        window.close()
        return texts

    signals, waits = stubs.nccl.calls("ncclSignal"), stubs.nccl.calls("ncclWaitSignal")
    for texts in on_ranks(2, run):
        assert all("NCCL has no configuration" in text for text in texts), texts
        assert [text.partition("(")[0].partition(":")[0] for text in texts] == ["put", "signal", "wait_signal"]
    assert stubs.nccl.calls("ncclSignal") - signals == stubs.nccl.calls("ncclWaitSignal") - waits == 2


@needs_configs
def test_nccl_configuration_does_not_apply_to_barriers(stubs):
    calls = Calls(stubs, "ncclAllReduce")

    def run(group, rank):
        with nccl.coll_config(max_ctas=4):
            group.barrier()
        return stubs.nccl.coll_config()

    assert on_ranks(2, run) == [""] * 2
    assert calls.made() == [0, 2]


@needs_configs
def test_nccl_configuration_applies_to_communicators_without_a_group(stubs):
    calls = Calls(stubs, "ncclAllReduce")
    with nccl.NcclComms([0, 1]) as comms:
        tensors = [array(stubs, [1, 2], rank) for rank in range(2)]
        with nccl.coll_config(min_ctas=2):
            comms.all_reduce(tensors)
        assert stubs.nccl.coll_config() == "minCTAs=2 maxCTAs=64 forceAlgSelection=1"
        comms.all_reduce(tensors)
        for rank in range(2):
            tensors[rank].synchronize()
        assert tensors[0].numpy().tolist() == [4, 8]
    assert calls.made() == [2, 2]


@needs_configs
def test_nccl_configuration_applies_to_communicators_of_single_ranks(stubs):
    calls = Calls(stubs, "ncclAllReduce")
    comms = nccl.NcclComms([0, 1]).split()
    sums, configuration = [None] * 2, [None] * 2

    def run(comm):
        x = array(stubs, [1, 2], comm.rank)
        with nccl.coll_config(max_ctas=3):
            comm.all_reduce([x])
        x.synchronize()
        comm.all_reduce([x])
        sums[comm.rank] = x.numpy().tolist()
        configuration[comm.rank] = stubs.nccl.coll_config()

    threads = [threading.Thread(target=run, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sums == [[4, 8]] * 2
    assert configuration == ["minCTAs=1 maxCTAs=3 forceAlgSelection=1"] * 2
    assert calls.made() == [2, 2]
    for comm in comms:
        comm.close()


@needs_configs
def test_wrong_values_of_an_nccl_configuration_are_rejected(stubs):
    fields = "min_ctas, max_ctas, .*launch_completion_event"
    with pytest.raises(dldist.DistArgumentError, match=f"unknown field 'colour' of NCCL's configuration: expected one of {fields}"):
        nccl.coll_config(colour=1)
    with pytest.raises(dldist.DistArgumentError, match="max_ctas: got text, expected a number"):
        nccl.coll_config(max_ctas="four")
    with pytest.raises(TypeError, match="max_ctas"):
        nccl.coll_config(max_ctas=1.5)
    with pytest.raises(TypeError, match="an event of torch or CuPy, not 'now'"):
        nccl.coll_config(launch_completion_event="now")
    with pytest.raises(ValueError, match="got an event never recorded"):
        nccl.coll_config(launch_completion_event=types.SimpleNamespace(cuda_event=0))
    with pytest.raises(TypeError, match=r"_swap_coll_config\(\): argument 'config' must be what _nccl_coll_config\(\) returns, or None, not int"):
        _core._swap_coll_config(3)
    group = _core.NcclGroup(None, 0, 1, device=0)
    with nccl.coll_config(min_ctas=5, max_ctas=4), pytest.raises(dldist.DistBackendError, match="min/max channels"):
        group.all_reduce(array(stubs, [1]))
    group.abort()


@needs_configs
@pytest.mark.skipif(NCCL >= (2, 32, 3), reason="this NCCL has all fields")
def test_configuration_field_of_a_newer_nccl_is_an_error(stubs):
    with pytest.raises(NotImplementedError, match=r"launch_completion_event needs NCCL 2\.32\.3"):
        nccl.coll_config(launch_completion_event=0x1000)


@pytest.mark.skipif(NCCL >= (2, 31, 2), reason="this NCCL has configurations of collectives")
def test_configuring_collectives_with_an_older_nccl_is_an_error(stubs):
    with pytest.raises(NotImplementedError, match=r"2\.31\.2"):
        nccl.coll_config(max_ctas=4)


@needs_events
@pytest.mark.parametrize("kind", ["address", "torch", "cupy"])
def test_configured_event_is_recorded_when_the_kernel_starts(stubs, framework, kind):
    """The event must be recorded after earlier work and before the kernel."""
    group = _core.NcclGroup(None, 0, 1, device=0)
    side = Side(stubs, framework, 0)
    event = ctypes.c_void_p()
    with stubs.cuda.on_device(0):
        stubs.cuda.call("cuEventCreate", ctypes.byref(event), 2)
    given = {"address": event.value, "torch": types.SimpleNamespace(cuda_event=event.value), "cupy": types.SimpleNamespace(ptr=event.value)}
    x = side.array([1, 2])
    assert group.all_reduce(side.tensor("torch", x), async_op=True).wait(LIMIT_S)
    gate = side.gate()
    stubs.nccl.hang_kernel(0)
    with side.current("torch"), nccl.coll_config(launch_completion_event=given[kind]):
        work = group.all_reduce(side.tensor("torch", x), async_op=True)
    query = stubs.cuda.library.cuEventQuery
    assert query(event) == 600  # CUDA_ERROR_NOT_READY
    stubs.cuda.open_gate(gate)
    stubs.cuda.call("cuEventSynchronize", event)
    assert not work.is_completed()
    group.abort()
    stubs.cuda.call("cuEventDestroy_v2", event)


@needs_configs
def test_nccl_configuration_is_part_of_a_captured_graph(stubs, framework):
    group = _core.NcclGroup(None, 0, 1, device=0)
    side = Side(stubs, framework, 0)
    x = side.array([1, 2])
    group.all_reduce(side.tensor("torch", x))
    calls = Calls(stubs, "ncclAllReduce")
    with stubs.cuda.on_device(0), side.current("torch"):
        with Graph(stubs.cuda, side.handle) as graph, nccl.coll_config(max_ctas=2):
            group.all_reduce(side.tensor("torch", x))
        graph.launch()
        graph.destroy()
    assert calls.made() == [1, 0]
    group.close(5)
