"""Host cost of an all_reduce on NCCL: bare ncclAllReduce, dldist, and torch's NCCL group.

    python benchmarks/nccl.py [--sizes 4,4096,1048576] [--rounds 30] [--calls 200] [--ranks 1] \\
        [--ways method,async] [--json FILE]

Every variant runs briefly in every round, in turn, on the same communicator if possible: bare calls
are a loop in C on dldist's own communicator. `host` is the time until the last call has returned,
`all` until the device has finished; microseconds per call, medians over the rounds. `over bare` is
the overhead of dldist or torch on the host, as the median of the rounds' differences. With --ranks
2, both ranks share the first GPU (NCCL 2.30.3 or newer; NCCL_MULTI_RANK_GPU_ENABLE=1).

Without a GPU, it measures dldist's own part with stub libraries, if DLDIST_CUDA_LIBRARY and
DLDIST_NCCL_LIBRARY name them (`make stubs`), and with tensors of the tests' stub framework. A
single rank's device then takes no time, so the stubs' threads are not measured. The time of the
stub driver for the two events and two waits of a call counts as dldist's; --driver measures that
part by itself.
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

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "peers", "bare_nccl.c")
SUPPORT = os.path.join(os.path.dirname(HERE), "tests", "py", "support")
BARE = "ncclAllReduce"


class BareCall(ctypes.Structure):
    """bare_call in peers/bare_nccl.c."""

    _fields_ = [
        ("all_reduce", ctypes.c_void_p),
        ("synchronize", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("comm", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("record", ctypes.c_void_p),
        ("wait", ctypes.c_void_p),
        ("events", ctypes.c_void_p * 2),
        ("user_stream", ctypes.c_void_p),
    ]


class Device:
    """The driver of the first device, and the loaded NCCL. Its context is current, as with a
    framework."""

    def __init__(self):
        self.cuda = ctypes.CDLL(os.environ.get("DLDIST_CUDA_LIBRARY") or "libcuda.so.1")
        self.nccl = ctypes.CDLL(dldist.nccl.library_path())
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.stream = self.make_stream()
        self.events = [self.make_event() for _ in range(2)]

    def call(self, function, *args):
        result = getattr(self.cuda, function)(*args)
        if result != 0:
            raise SystemExit(f"{function} failed: CUDA result {result}")

    def make_stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        return stream

    def make_event(self):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 2)
        return event

    def synchronize(self):
        if hasattr(self.cuda, "cuCtxSynchronize"):
            self.call("cuCtxSynchronize")
        else:  # a stub's: only dldist's stream is busy
            dist.barrier()

    def address(self, function):
        return ctypes.cast(function, ctypes.c_void_p).value


def bare_way(device, folder, group, tensor, has_events=False):
    """Return ncclAllReduce in a C loop; optionally with the events and waits that order a caller's
    stream."""
    library = os.path.join(folder, "bare_nccl.so")
    if not os.path.exists(library):
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=60)
    run = ctypes.CDLL(library).bare_run
    call = BareCall(
        all_reduce=device.address(device.nccl.ncclAllReduce),
        synchronize=device.address(device.cuda.cuStreamSynchronize),
        data=tensor.ptr,
        count=tensor.nbytes // 4,
        comm=group.comm_pointer(),
        stream=device.stream,
        record=device.address(device.cuda.cuEventRecord) if has_events else None,
        wait=device.address(device.cuda.cuStreamWaitEvent),
        events=(ctypes.c_void_p * 2)(*(event.value for event in device.events)),
        user_stream=device.make_stream() if has_events else None,
    )

    def measure(calls):
        host, whole = ctypes.c_double(), ctypes.c_double()
        result = run(ctypes.byref(call), calls, ctypes.byref(host), ctypes.byref(whole))
        if result != 0:
            raise SystemExit(f"bare calls failed: {result}")
        return host.value / calls * 1e6, whole.value / calls * 1e6

    return measure


def python_way(device, call):
    def measure(calls):
        rest = range(calls)
        began = time.perf_counter()
        for _ in rest:
            call()
        host = time.perf_counter() - began
        device.synchronize()
        return host / calls * 1e6, (time.perf_counter() - began) / calls * 1e6

    return measure


def ways_of(device, group, kind, tensor):
    def is_async():
        group.all_reduce(tensor, async_op=True).wait()

    return {
        f"method, {kind}": python_way(device, lambda: group.all_reduce(tensor)),
        f"async, {kind}": python_way(device, is_async),
        f"module, {kind}": python_way(device, lambda: dist.all_reduce(tensor)),
    }


def fake_ways(device, group, own):
    """Return variants with stub tensors: DLPack's exchange API, or capsules only. On a non-default
    stream."""
    if "DLDIST_CUDA_LIBRARY" not in os.environ:
        return {}
    sys.path.insert(0, SUPPORT)
    import cuda_framework

    framework = cuda_framework.load()
    framework.install_modules()
    framework.core.set_stream(0, device.make_stream().value)
    arguments = own, own.ptr, own.shape, (1,), 0, 2, 32
    found = {}
    for kind, name in ((0, "exchange API"), (2, "like torch's"), (1, "capsule, like torch's")):
        tensor = framework.types[kind](*arguments)
        found.update(ways_of(device, group, name, tensor))
    return found


def torch_ways(device, group, nbytes):
    """Return variants with torch's tensors through dldist, and torch's own group; none without a
    GPU."""
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

    def is_async():
        theirs.all_reduce(tensor, async_op=True).wait()

    return {
        **ways_of(device, group, "torch's tensor", tensor),
        "torch.distributed": python_way(device, lambda: theirs.all_reduce(tensor)),
        "torch.distributed, async": python_way(device, is_async),
    }


def find_ways(device, folder, nbytes, options):
    """Return {name: function}; each takes a number of calls, and returns host and total
    microseconds."""
    group = dist.get_backend_impl().group
    tensor = group.empty((nbytes // 4,), "float32")
    dist.all_reduce(tensor)
    found = {BARE: bare_way(device, folder, group, tensor)}
    if options.driver:
        found["with events and waits"] = bare_way(device, folder, group, tensor, has_events=True)
    found.update(ways_of(device, group, "own array", tensor))
    found.update(torch_ways(device, group, nbytes))
    if not any("torch" in name for name in found):
        found.update(fake_ways(device, group, tensor))
    wanted = options.ways.split(",") if options.ways else [""]
    return {name: way for name, way in found.items() if name == BARE or any(part in name for part in wanted)}


def measure(found, rounds, calls):
    times = {name: [] for name in found}
    for _ in range(rounds):
        for name, way in found.items():
            dist.barrier()
            times[name].append(way(calls))
    return times


def report(nbytes, times, is_first):
    bare = [host for host, _ in times[BARE]]
    rows = {}
    if is_first:
        print(f"{nbytes} bytes", flush=True)
    for name, values in times.items():
        over = statistics.median(host - least for (host, _), least in zip(values, bare, strict=True))
        host, whole = (statistics.median(column) for column in zip(*values, strict=True))
        rows[name] = {"host_us": host, "all_us": whole, "over_bare_us": over}
        if is_first:
            print(f"  {name:32s} host {host:8.2f} us   all {whole:10.2f} us   over bare {over:+7.2f} us", flush=True)
    return rows


def run_rank(index, options):
    dist.init_process_group("nccl", rank=index, world_size=options.ranks, device_id="cuda:0")
    device = Device()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for nbytes in (int(size) for size in options.sizes.split(",")):
            times = measure(find_ways(device, folder, nbytes, options), options.rounds, options.calls)
            results[nbytes] = report(nbytes, times, dist.get_rank() == 0)
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
    parser.add_argument("--ways", help="only variants whose names contain one of these: method,torch")
    parser.add_argument("--driver", action="store_true", help="also bare calls with the driver's part of a call")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.ranks == 1:
        os.environ["DLDIST_STUB_INSTANT"] = "1"
    why = dldist.nccl.why_not_available()
    if why:
        sys.exit(why)
    print(f"NCCL {'.'.join(map(str, dldist.nccl.get_version()))}, {options.ranks} rank(s)")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DLDIST_BENCHMARK_FILE"] = os.path.join(folder, "store")
        if options.ranks == 1:
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", "0")
            run_rank(0, options)
        else:
            os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
            dist.spawn(run_rank, (options,), nprocs=options.ranks)


if __name__ == "__main__":
    main()
