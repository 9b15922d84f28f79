"""Communication cost of a DistributedDataParallel step, with "dldist" and "gloo".

    python benchmarks/torch_ddp.py [--ranks 2,4] [--millions 1,25,100] [--rounds 15] [--private] \\
        [--json FILE]

The same processes train four copies of a multilayer perceptron: one with each backend; one with a
communication hook that does nothing ("none"), which is the step without communication; and one
whose hook reduces a single number per bucket ("meeting") by dldist, which is the cost of ranks that
wait for each other because their speeds differ. They alternate, a few steps per round, in rotating
order. A backend's communication is its step minus the step without. For comparison, an all_reduce
of the same buckets is timed, in the same memory, without overlap. Times are the slowest rank's;
printed are medians over the rounds, and gloo's ratio to dldist as the quotient of medians, with the
quartiles of the rounds' quotients. With dldist, the buckets are in shared memory, unless --private
is given.

If Gloo does not find an address: unshare -n sh -c 'ip link set lo up; python
benchmarks/torch_ddp.py'
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

BACKENDS = ("gloo", "dldist")
NONE = "none"
MEETING = "meeting"
BATCH = 16
LAYERS = {1: [512] * 5, 25: [2048] * 7, 100: [4096] * 7}  # widths, by millions of parameters
STEPS_A_ROUND = {1: 20, 25: 3, 100: 1}
WARM_UP_ROUNDS = 2
TIMEOUT = timedelta(minutes=5)


class Timer:
    """Times calls on all ranks; returns the slowest rank's time."""

    def __init__(self, torch, group):
        self.torch = torch
        self.group = group

    def __call__(self, function, count):
        self.group.barrier().wait()
        began = time.perf_counter()
        for _ in range(count):
            function()
        elapsed = self.torch.tensor([(time.perf_counter() - began) / count], dtype=self.torch.float64)
        self.group.allreduce([elapsed], self.torch.distributed.ReduceOp.MAX).wait()
        return elapsed.item()


def leave_as_it_is(torch, bucket_sizes):
    """Return a communication hook without communication, which appends bucket sizes to the list."""

    def hook(_state, bucket):
        bucket_sizes.append(bucket.buffer().numel())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    return hook


def reduce_a_number(torch, group):
    """Return a communication hook whose ranks only synchronise."""
    number = torch.zeros(1)

    def hook(_state, bucket):
        buffer = bucket.buffer()
        return group.allreduce([number]).get_future().then(lambda _done: buffer)

    return hook


def make_step(torch, millions, group, prepare):
    """Return a function that makes a training step. prepare(model) may register a communication
    hook."""
    torch.manual_seed(0)
    widths = LAYERS[millions]
    layers = [torch.nn.Linear(before, after, bias=False) for before, after in zip(widths, widths[1:], strict=False)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group, gradient_as_bucket_view=True
    )
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(BATCH, widths[0])

    def step():
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    for _ in range(2):  # buckets are final from the second backward pass
        step()
    return step


def make_all_reduce(buckets, group):
    def all_reduce():
        for work in [group.allreduce([bucket]) for bucket in buckets]:
            work.wait()

    return all_reduce


def make_all_reduces(torch, groups, bucket_sizes):
    """Return all_reduces of the same buckets in the same kind of memory: shared with dldist."""
    import dldist.torch

    private = [torch.zeros(size) for size in bucket_sizes]
    shared = [dldist.torch.empty(size, group=groups["dldist"]).zero_() for size in bucket_sizes]
    return {"gloo": make_all_reduce(private, groups["gloo"]), "dldist": make_all_reduce(shared, groups["dldist"])}


def hook_registrar(hook):
    return lambda model: model.register_comm_hook(None, hook)


def measure(torch, timer, groups, millions, options):
    """Return {what: {backend: [seconds per round]}}, with `what` "step" or "all_reduce"."""
    import dldist.torch

    bucket_sizes = []
    preparations = {
        "gloo": lambda model: None,
        "dldist": (lambda model: None) if options.private else dldist.torch.share_buckets,
        MEETING: hook_registrar(reduce_a_number(torch, groups["dldist"])),
        NONE: hook_registrar(leave_as_it_is(torch, bucket_sizes)),
    }
    steps = {
        name: make_step(torch, millions, groups.get(name, groups["dldist"]), prepare) for name, prepare in preparations.items()
    }
    bucket_sizes.clear()
    steps[NONE]()
    nbuckets = len(bucket_sizes)
    all_reduces = make_all_reduces(torch, groups, bucket_sizes)
    ways = [("step", name, function) for name, function in steps.items()]
    ways += [("all_reduce", name, function) for name, function in all_reduces.items()]
    times = {"step": {name: [] for name in steps}, "all_reduce": {name: [] for name in all_reduces}}
    for round_number in range(-WARM_UP_ROUNDS, options.rounds):
        shift = round_number % len(ways)
        for what, name, function in ways[shift:] + ways[:shift]:
            elapsed = timer(function, STEPS_A_ROUND[millions])
            if round_number >= 0:
                times[what][name].append(elapsed)
    return {"buckets": nbuckets, "times": times}


def worker(options):
    import dldist.torch  # noqa: F401  registers the backend, like an installed entry point
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(len(os.sched_getaffinity(0)) // options.world, 1))
    store = dist.FileStore(options.store, options.world)
    dist.init_process_group("gloo", store=store, rank=options.rank, world_size=options.world, timeout=TIMEOUT)
    groups = {backend: dist.new_group(backend=backend, timeout=TIMEOUT) for backend in BACKENDS}
    timer = Timer(torch, dist.new_group(backend="gloo"))
    results = {millions: measure(torch, timer, groups, millions, options) for millions in options.millions}
    if options.rank == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


def run_ranks(ranks, options):
    """Return rank 0's results from a run with this number of processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", f"--world={ranks}", f"--store={folder}/store"]
        command += [f"--rounds={options.rounds}", "--millions=" + ",".join(map(str, options.millions))]
        command += ["--private"] * options.private
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=interface)
        processes = [
            subprocess.Popen([*command, f"--rank={rank}"], env=environment, stdout=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]
        try:
            outputs = [process.communicate()[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(process.returncode for process in processes):
        sys.exit(f"ranks ended with {[process.returncode for process in processes]}")
    return json.loads(outputs[0].splitlines()[-1])


def summary(times):
    """Return medians in milliseconds, and quotients."""
    without = times["step"][NONE]
    communication = {
        backend: [step - bare for step, bare in zip(times["step"][backend], without, strict=True)] for backend in (*BACKENDS, MEETING)
    }
    return {
        "step_ms": {name: 1e3 * statistics.median(values) for name, values in times["step"].items()},
        "communication": quotient(communication),
        "all_reduce": quotient(times["all_reduce"]),
    }


def quotient(by_backend):
    medians = {backend: statistics.median(values) for backend, values in by_backend.items()}
    of_rounds = [
        theirs / ours for theirs, ours in zip(by_backend["gloo"], by_backend["dldist"], strict=True) if ours > 0
    ]
    low, _, high = statistics.quantiles(of_rounds, n=4) if len(of_rounds) > 1 else (float("nan"),) * 3
    return {
        "ms": {backend: 1e3 * median for backend, median in medians.items()},
        "gloo_over_dldist": medians["gloo"] / medians["dldist"],
        "quartiles": [low, high],
    }


def report(ranks, millions, buckets, row):
    steps = ", ".join(f"{name} {value:.1f}" for name, value in row["step_ms"].items())
    print(f"{ranks} ranks, {millions} million parameters, {buckets} buckets: steps of {steps} ms")
    for what in ("communication", "all_reduce"):
        part = row[what]
        low, high = part["quartiles"]
        print(
            f"  {what:14s} gloo {part['ms']['gloo']:9.2f} ms   dldist {part['ms']['dldist']:9.2f} ms"
            f"   {part['gloo_over_dldist']:6.2f} x ({low:.2f} to {high:.2f})",
        )
    print(f"  that ranks meet {row['communication']['ms'][MEETING]:26.2f} ms", flush=True)


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--millions", type=numbers, default=list(LAYERS), help=f"of parameters: some of {list(LAYERS)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--private", action="store_true", help="dldist's buckets stay in private memory")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    rows = []
    for ranks in options.ranks:
        for millions, result in run_ranks(ranks, options).items():
            row = summary(result["times"])
            report(ranks, millions, result["buckets"], row)
            rows.append({"ranks": ranks, "millions": int(millions), **result, **row})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
