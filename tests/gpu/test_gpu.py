"""Tests on a real GPU with PyTorch, CuPy and JAX: worlds of one rank, and of two on the same GPU."""

import os
import time
from datetime import timedelta

import dldist as dist
import numpy as np
import pytest
from dldist import nccl

TWO_RANKS_SINCE = (2, 30, 3)
DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "uint32", "uint64")

pytestmark = pytest.mark.deadline(120)  # importing a library and loading NCCL is slow


@pytest.fixture
def alone():
    """Create the default group: only this process, on the first GPU."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=0)
    yield dist.get_backend_impl()
    dist.destroy_process_group()


def library(name):
    """Return an array library that has a GPU, or skip the test with the reason."""
    module = pytest.importorskip(name)
    if name == "torch" and not module.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    if name == "jax" and module.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    return module


def test_expected_nccl_library_is_loaded():
    assert nccl.get_version() >= (2, 18)
    assert nccl.device_count() >= 1
    assert os.path.exists(nccl.library_path())
    wanted = os.environ.get("DLDIST_NCCL_LIBRARY")
    assert wanted is None or os.path.samefile(wanted, nccl.library_path())


class TestTorch:
    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = library("torch")

    @pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16", "bool", "complex64", "float8_e4m3fn"])
    def test_data_movement_on_a_gpu_is_correct_for_every_dtype(self, alone, dtype):
        if not hasattr(self.torch, dtype):
            pytest.skip(f"this PyTorch has no {dtype}")
        kind = getattr(self.torch, dtype)
        x = self.torch.arange(1, 9, device="cuda").to(self.torch.float32).to(kind)
        y = self.torch.zeros(8, device="cuda").to(kind)
        dist.broadcast(x, 0)
        dist.all_gather_single(y, x)
        assert self.torch.equal(x.to(self.torch.complex64), y.to(self.torch.complex64))

    def test_call_is_ordered_before_and_after_the_current_stream(self, alone):
        side = self.torch.cuda.Stream()
        x = self.torch.zeros(1 << 24, device="cuda")
        out = self.torch.empty_like(x)
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(side):
            self.torch.cuda._sleep(200_000_000)
            x.fill_(3)
            began = time.perf_counter()
            dist.all_gather_single(out, x)
            took = time.perf_counter() - began
            total = out.sum()
        assert took < 0.05, f"the host was blocked for {took:.3f} s"
        assert total.item() == 3 * (1 << 24)

    def test_collective_in_a_cuda_graph_is_correct(self, alone):
        x = self.torch.ones(1024, device="cuda")
        out = self.torch.zeros_like(x)
        dist.all_gather_single(out, x)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            x.add_(1)
            dist.all_gather_single(out, x)
        for expected in (2, 3, 4):
            graph.replay()
            self.torch.cuda.synchronize()
            assert out[0].item() == expected

    def test_noncontiguous_gpu_tensors_are_gathered_correctly(self, alone):
        x = self.torch.arange(12, dtype=self.torch.float32, device="cuda").reshape(3, 4)
        out = self.torch.zeros(4, 3, device="cuda")
        dist.all_gather_single(out, x.t())
        assert self.torch.equal(out, x.t())

    def test_work_of_a_gpu_call_completes_and_has_a_future(self, alone):
        x = self.torch.ones(1 << 20, device="cuda")
        out = self.torch.zeros_like(x)
        work = dist.all_gather_single(out, x, async_op=True)
        assert work.get_future().wait() is not None
        assert work.is_completed() and work.is_success()
        self.torch.cuda.current_stream().wait_stream(self.torch.cuda.current_stream())
        assert out.sum().item() == 1 << 20

    def test_objects_can_be_gathered_over_nccl(self, alone):
        got = [None]
        dist.all_gather_object(got, {"rank": 0})
        assert got == [{"rank": 0}]


def test_collectives_of_cupy_arrays_are_correct(alone):
    cupy = library("cupy")
    for dtype in DTYPES:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            x = cupy.arange(1, 9).astype(dtype)
            out = cupy.zeros(8, dtype)
            dist.all_gather_single(out, x)
            assert (out == x).all().item(), dtype


def test_collectives_of_jax_arrays_on_a_gpu_are_correct(alone):
    jax = library("jax")
    x = jax.numpy.arange(8, dtype="float32") * 2
    got = dist.functional.all_gather(x)
    assert np.array_equal(np.asarray(got), np.asarray(x))
    assert got.devices() == x.devices()


def test_array_in_nccl_memory_can_be_reduced(alone):
    x = alone.group.empty((4, 4), "float32")
    dist.all_reduce(x)
    assert x.device == 0 and x.nbytes == 64


def test_communicators_of_one_device_work_without_a_group():
    array = None
    with nccl.NcclComms([0]) as comms:
        group = nccl.NcclGroup(None, 0, 1, device=0)
        array = group.empty((16,), "float32")
        comms.all_reduce([array])
        (rank,) = comms.split()
        handle = rank.abort_handle()
        rank.all_reduce([array], "sum")
        rank.close()
        handle.abort()
        assert handle.is_aborted
        group.close(10)


def test_call_after_an_abort_on_a_gpu_raises(alone):
    x = alone.group.empty((16,), "float32")
    dist.all_reduce(x)
    alone.abort("the test wants it")
    with pytest.raises(dist.DistAbortedError, match="the test wants it"):
        dist.all_reduce(x)


def test_flight_recorder_records_calls_on_a_gpu(alone, tmp_path):
    from dldist import flight_recorder

    x = alone.group.empty((3, 5), "float32")
    dist.all_reduce(x)
    entry = flight_recorder.entries()[-1]
    assert entry["profiling_name"] == "nccl:all_reduce" and entry["input_sizes"] == [[3, 5]]
    assert entry["frames"][0]["filename"] == __file__


# ---- two ranks on one GPU, with arrays of the libraries; test_two_ranks.py has all tests that need
# none


def _open():
    dist.init_process_group("nccl", timeout=timedelta(seconds=60), device_id=0)
    return dist.get_rank()


def torch_collectives(index):
    torch = library("torch")
    rank = _open()
    x = torch.full((1 << 16,), float(rank + 1), device="cuda:0")
    dist.all_reduce(x)
    assert x[0].item() == 3
    out = [torch.zeros(rank_ + 1, device="cuda:0") for rank_ in range(2)]
    dist.all_gather(out, torch.full((rank + 1,), float(rank), device="cuda:0"))
    assert [part[0].item() for part in out] == [0, 1]
    y = torch.arange(4, dtype=torch.float32, device="cuda:0") + 10 * rank
    z = torch.empty_like(y)
    dist.all_to_all_single(z, y)
    assert z.tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13])
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(z.new_empty(1 << 16), 0)
    dist.barrier()
    dist.destroy_process_group()
    return "done"


def torch_graph(index):
    """Replay a graph, and delete it before its group."""
    torch = library("torch")
    rank = _open()
    x = torch.zeros(1024, device="cuda:0")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        x.add_(rank + 1)
        dist.all_reduce(x)
    for expected in (3, 9, 21):
        graph.replay()
        torch.cuda.synchronize()
        assert set(x.tolist()) == {expected}
    del graph
    dist.destroy_process_group()
    return "done"


def cupy_stream(index):
    cupy = library("cupy")
    rank = _open()
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True):
        x = cupy.full(1000, rank + 1, "float32")
        dist.all_reduce(x)
        y = x * 2
        assert set(cupy.asnumpy(y).tolist()) == {6}
    dist.destroy_process_group()
    return "done"


def jax_arrays(index):
    jax = library("jax")
    rank = _open()
    x = jax.numpy.full(1000, rank + 1, "float32")
    assert set(np.asarray(dist.functional.all_reduce(x)).tolist()) == {3}
    dist.destroy_process_group()
    return "done"


@pytest.mark.deadline(240)
@pytest.mark.skipif(
    nccl.is_available() and nccl.get_version() < TWO_RANKS_SINCE,
    reason="two ranks on one GPU need NCCL 2.30.3 or newer",
)
@pytest.mark.parametrize("program", [torch_collectives, torch_graph, cupy_stream, jax_arrays])
def test_programs_of_two_ranks_on_a_gpu_end_successfully(program):
    library(program.__name__.partition("_")[0])
    assert dist.spawn(program, nprocs=2, timeout=200) == ["done", "done"]
