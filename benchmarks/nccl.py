"""What an all_reduce on NCCL costs the host: bare ncclAllReduce, dldist, and torch's own NCCL group, in the same run.

    python benchmarks/nccl.py [--sizes 4,4096,1048576] [--rounds 30] [--calls 200] [--ranks 1] [--json FILE]

Every way runs for a moment in every round, in turn, on the same communicator where it can be: bare calls come from a loop in C on
dldist's own. `host` is the time until the last call has returned, `all` until the device is through with them; microseconds a call, the
median over the rounds. `over bare` is what dldist or torch adds on the host, as the median of the rounds' differences. With --ranks 2 both ranks share
the first GPU (NCCL 2.30.3 or newer; NCCL_MULTI_RANK_GPU_ENABLE=1).

Without a GPU it measures dldist's own part all the same, over doubles of the libraries (tests/stubs), if DLDIST_CUDA_LIBRARY and
DLDIST_NCCL_LIBRARY name them.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import dldist as dist
import dldist.nccl

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "bare_nccl.c")


class BareCall(ctypes.Structure):
    """bare_call of peers/bare_nccl.c."""

    _fields_ = [
        ("all_reduce", ctypes.c_void_p),
        ("synchronize", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("comm", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


class Device:
    """The driver, and NCCL as it is loaded already."""

    def __init__(self):
        self.cuda = ctypes.CDLL(os.environ.get("DLDIST_CUDA_LIBRARY") or "libcuda.so.1")
        self.nccl = ctypes.CDLL(dldist.nccl.library_path())
        self.stream = ctypes.c_void_p()
        self.check(self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1), "cuStreamCreate")

    def check(self, result, what):
        if result != 0:
            raise SystemExit(f"{what} failed: {result}")

    def synchronize(self):
        self.check(self.cuda.cuStreamSynchronize(None), "cuStreamSynchronize")

    def address(self, function):
        return ctypes.cast(function, ctypes.c_void_p).value


def bare_way(device, folder, group, tensor):
    """ncclAllReduce in a loop in C."""
    library = os.path.join(folder, "bare_nccl.so")
    if not os.path.exists(library):
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=60)
    run = ctypes.CDLL(library).bare_run
    call = BareCall(
        device.address(device.nccl.ncclAllReduce),
        device.address(device.cuda.cuStreamSynchronize),
        tensor.data_ptr,
        tensor.nbytes // 4,
        group.comm_ptr(),
        device.stream,
    )

    def measure(calls):
        host, whole = ctypes.c_double(), ctypes.c_double()
        device.check(run(ctypes.byref(call), calls, ctypes.byref(host), ctypes.byref(whole)), "ncclAllReduce")
        return host.value / calls * 1e6, whole.value / calls * 1e6

    return measure


def python_way(device, call):
    def measure(calls):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        host = time.perf_counter() - began
        device.synchronize()
        return host / calls * 1e6, (time.perf_counter() - began) / calls * 1e6

    return measure


def torch_ways(device, nbytes):
    """torch's tensors through dldist, and torch's own group; none where torch has no GPU."""
    try:
        import torch
        import torch.distributed as theirs
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    if not theirs.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        store = theirs.FileStore(os.environ["DLDIST_BENCHMARK_FILE"], size)
        theirs.init_process_group("nccl", store=store, rank=rank, world_size=size)
    tensor = torch.zeros(nbytes // 4, device="cuda")
    return {
        "dldist, torch's tensor": python_way(device, lambda: dist.all_reduce(tensor)),
        "torch.distributed": python_way(device, lambda: theirs.all_reduce(tensor)),
    }


def ways(device, folder, nbytes):
    """{name: a function of a number of calls that gives microseconds for the host and in all}"""
    group = dist.get_backend_impl().group
    tensor = group.empty((nbytes // 4,), "float32")
    dist.all_reduce(tensor)
    return {
        "ncclAllReduce": bare_way(device, folder, group, tensor),
        "dldist, a method": python_way(device, lambda: group.all_reduce(tensor)),
        "dldist.all_reduce": python_way(device, lambda: dist.all_reduce(tensor)),
        **torch_ways(device, nbytes),
    }


def measure(found, rounds, calls):
    times = {name: [] for name in found}
    for _ in range(rounds):
        for name, way in found.items():
            dist.barrier()
            times[name].append(way(calls))
    return times


def report(nbytes, times):
    print(f"{nbytes} bytes", flush=True)
    bare = [host for host, _ in times["ncclAllReduce"]]
    rows = {}
    for name, values in times.items():
        over = statistics.median(host - least for (host, _), least in zip(values, bare, strict=True))
        host, whole = (statistics.median(column) for column in zip(*values, strict=True))
        rows[name] = {"host_us": host, "all_us": whole, "over_bare_us": over}
        print(f"  {name:26s} host {host:8.2f} us   all {whole:10.2f} us   over bare {over:+7.2f} us", flush=True)
    return rows


def run_rank(index, options):
    dist.init_process_group("nccl")
    device = Device()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for nbytes in (int(size) for size in options.sizes.split(",")):
            times = measure(ways(device, folder, nbytes), options.rounds, options.calls)
            if dist.get_rank() == 0:
                results[nbytes] = report(nbytes, times)
    if options.json and dist.get_rank() == 0:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"nccl": dldist.nccl.get_version(), "sizes": results}, file, indent=2)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4,4096,1048576,67108864", help="bytes")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=200, help="a round and way")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    why = dldist.nccl.why_unavailable()
    if why:
        sys.exit(why)
    print(f"NCCL {'.'.join(map(str, dldist.nccl.get_version()))}, {options.ranks} rank(s)")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DLDIST_BENCHMARK_FILE"] = os.path.join(folder, "store")
        if options.ranks == 1:
            run_rank(0, options)
        else:
            os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
            dist.spawn(run_rank, options.ranks, (options,))


if __name__ == "__main__":
    main()
