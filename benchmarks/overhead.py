"""Cost of a call without work: an all_reduce of one float32 in a world of one.

    python benchmarks/overhead.py [--rounds 40] [--calls 20000] [--json FILE]

Every kind of call runs briefly in every round, in turn, including torch's Gloo if torch is
installed. Printed are the median over the rounds in microseconds per call, and the median ratio to
the first kind. Below, a call is broken down: each line does a little more than the previous one.
With NCCL or its stub (DLDIST_CUDA_LIBRARY=build/fast/stubs/libcuda.so.1
DLDIST_NCCL_LIBRARY=build/fast/stubs/nccl-2.32.3/libnccl.so.2, after `make stubs`), CPU arrays are
compared on a group that also serves devices and on one that does not.
"""

import argparse
import json
import statistics
import sys
import time
from array import array

import dldist as dist


def module_call(tensor):
    call = dist.all_reduce
    return lambda: call(tensor)


def method_call(tensor):
    call = dist.default_world().all_reduce
    return lambda: call(tensor)


def ways():
    """Return {name: function without arguments} of the available kinds."""
    found = {}
    try:
        import numpy
    except ImportError:
        numpy = None
    if numpy is not None:
        found["all_reduce(numpy)"] = module_call(numpy.ones(1, numpy.float32))
        found["World.all_reduce(numpy)"] = method_call(numpy.ones(1, numpy.float32))
    found["all_reduce(array.array)"] = module_call(array("f", [1.0]))
    found["World.all_reduce(array.array)"] = method_call(array("f", [1.0]))
    try:
        import torch
        import torch.distributed as torch_dist
    except ImportError:
        return found
    found["all_reduce(torch)"] = module_call(torch.ones(1))
    torch_dist.init_process_group("gloo", store=torch_dist.HashStore(), rank=0, world_size=1)
    theirs = torch.ones(1)
    found["torch.distributed.all_reduce"] = lambda: torch_dist.all_reduce(theirs)
    return found


def group_call(tensor, group):
    call = dist.all_reduce
    return lambda: call(tensor, group=group)


def beside_nccl():
    """Return calls on a CPU group and on one with NCCL for devices; none without NCCL or its
    stub."""
    if not dist.is_nccl_available():
        return {}
    tensor = array("f", [1.0])
    return {
        f"all_reduce(array, group={backend})": group_call(tensor, dist.new_group([0], backend=backend))
        for backend in ("cpu:gloo", "cpu:gloo,cuda:nccl")
    }


def parts():
    """Return the parts of a call, from the bottom up."""
    world = dist.default_world()
    tensor = array("f", [1.0])

    def python_function(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False, *, timeout=None):
        return None

    return {
        "a Python function of the same arguments": lambda: python_function(tensor),
        "a method of the extension (Group.rank)": lambda: world.rank,
        "access to the tensor (memoryview)": lambda: memoryview(tensor),
        "Group.barrier()": world.barrier,
        "Group.all_reduce(array)": method_call(tensor),
        "dldist.all_reduce(array)": module_call(tensor),
    }


def time_of(function, calls):
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - began) / calls * 1e6


def measure(functions, rounds, calls):
    """Return {name: [microseconds per call in each round]}; slow functions are called less
    often."""
    counts = {name: max(min(calls, int(20000 / max(time_of(function, 20), 0.1))), 20) for name, function in functions.items()}
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(time_of(function, counts[name]))
    return times


def report(times):
    first = next(iter(times.values()))
    rows = {}
    for name, values in times.items():
        ratio = statistics.median(value / base for value, base in zip(values, first, strict=True))
        rows[name] = {"median_us": statistics.median(values), "best_us": min(values), "ratio": ratio}
        print(f"  {name:42s} {rows[name]['median_us']:9.3f} us   best {rows[name]['best_us']:9.3f}   x {ratio:8.2f}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=20000, help="maximum calls per round and variant")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    dist.init_process_group()
    print(f"Python {sys.version.split()[0]}, one float32, a world of one")
    results = {"calls": report(measure(ways(), options.rounds, options.calls))}
    if groups := beside_nccl():
        print("on a group that also serves devices")
        results["groups"] = report(measure(groups, options.rounds, options.calls))
    print("parts of a call")
    results["parts"] = report(measure(parts(), options.rounds, options.calls))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
