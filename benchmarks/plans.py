#!/usr/bin/env python3
"""Compare all_reduces of two processes by plain calls, by start() and wait(), and by plan().

    PYTHONPATH=pkg python benchmarks/plans.py [--rounds 200] [--block-ms 2] [--json FILE]

All variants alternate in blocks of calls in every round, so that disturbances affect all of them.
The time of a block is the slower rank's. Printed are medians over the rounds in microseconds per
call, the best block, which approximates a quiet machine, and the median ratio of the plain call's
time in the same round. The last rows start 16 all_reduces at a time and wait for all: plain
asynchronous calls, single plans, and plans started together.

For other libraries, run benchmarks/collectives.py --quick --ops all_reduce --sizes 8.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from array import array

SIZES = (8, 64, 512, 4096, 16384, 65536)
NSEVERAL = 16


def ways_of(group, nbytes):
    """Return {name: function of a number of calls}; the first is the plain call."""
    tensor = array("d", [0.0]) * (nbytes // 8)
    plan = group.plan.all_reduce(tensor)

    def plain(ncalls):
        call = group.all_reduce
        for _ in range(ncalls):
            call(tensor)

    def start_and_wait(ncalls):
        start, wait = plan.start, plan.wait
        for _ in range(ncalls):
            start()
            wait()

    def call(ncalls):
        for _ in range(ncalls):
            plan()

    return {"all_reduce(x)": plain, "plan.start(); plan.wait()": start_and_wait, "plan()": call}


def ways_of_several(group):
    import dldist

    tensors = [array("d", [0.0]) for _ in range(NSEVERAL)]
    plans = [group.plan.all_reduce(tensor) for tensor in tensors]

    def plain(ncalls):
        for _ in range(ncalls):
            works = [group.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()

    def one_by_one(ncalls):
        for _ in range(ncalls):
            for plan in plans:
                plan.start()
            for plan in plans:
                plan.wait()

    def in_one_go(ncalls):
        start_all, wait_all = dldist.start_all, dldist.wait_all
        for _ in range(ncalls):
            start_all(plans)
            wait_all(plans)

    return {"async_op=True, wait()": plain, "start(), wait()": one_by_one, "start_all(), wait_all()": in_one_go}


def calibrate(group, ways, block_ms):
    """Return the calls per block of each variant, the same on all ranks."""
    counts = array("q", [0] * len(ways))
    for index, way in enumerate(ways.values()):
        group.barrier()
        way(20)
        best_s = min(time_of(way, 20) for _ in range(5)) / 20
        counts[index] = max(int(block_ms * 1e-3 / best_s), 1)
    group.all_reduce(counts, "min")
    return dict(zip(ways, counts, strict=True))


def time_of(way, ncalls):
    began = time.perf_counter()
    way(ncalls)
    return time.perf_counter() - began


def measure(group, ways, options):
    """Return {name: [microseconds per call in each round]}, of the slower rank."""
    counts = calibrate(group, ways, options.block_ms)
    rounds = {name: array("d") for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            group.barrier()
            rounds[name].append(time_of(way, counts[name]) / counts[name] * 1e6)
    for times in rounds.values():
        group.all_reduce(times, "max")
    return {name: list(times) for name, times in rounds.items()}


def summary_of(rounds):
    plain = next(iter(rounds.values()))
    return {
        name: {
            "median_us": statistics.median(times),
            "best_us": min(times),
            "plain_by_this": statistics.median(p / t for p, t in zip(plain, times, strict=True)),
        }
        for name, times in rounds.items()
    }


def run_rank(rank, path, options):
    """Run a rank; rank 0 prints the results as JSON."""
    import dldist

    with dldist.Group(dldist.FileStore(path), rank, 2) as group:
        results = {f"{nbytes} B": summary_of(measure(group, ways_of(group, nbytes), options)) for nbytes in SIZES}
        results[f"{NSEVERAL} of 8 B"] = summary_of(measure(group, ways_of_several(group), options))
    if rank == 0:
        print(json.dumps(results))


def run_pair(options):
    """Run both ranks, as processes of this script."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rounds", str(options.rounds), "--block-ms", str(options.block_ms),
                   "--store", os.path.join(folder, "store"), "--rank"]
        ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode != 0 for rank in ranks):
            sys.exit("a rank has failed")
    return json.loads(outputs[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--block-ms", type=float, default=2.0)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        run_rank(options.rank, options.store, options)
        return
    results = run_pair(options)
    for what, ways in results.items():
        print(what)
        for name, row in ways.items():
            print(f"  {name:26s} {row['median_us']:9.3f} us   best {row['best_us']:9.3f}   plain takes x {row['plain_by_this']:.2f}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"python": sys.version.split()[0], "rounds": options.rounds, "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
