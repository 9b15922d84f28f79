"""Threads of one process with a world each, with and without the GIL.

    PYTHONPATH=pkg python3.13t benchmarks/free_threading.py [--threads 8] [--rounds 20] \\
        [--calls 100] [--nbytes 4,1048576]

Needs a free-threaded build of Python, run with PYTHON_GIL=1 and PYTHON_GIL=0. There are two
layouts. In "two processes", world k consists of thread k of both processes. In "one process",
threads 2k and 2k + 1 form a world. In each round, each layout, size and GIL setting gets one block,
in alternating order: all threads start together, and each calls all_reduce (float32, sum) --calls
times. The processes live for the whole run, and wait between their blocks.

For each setting, the table has the median and the 99th percentile of all calls in microseconds, and
the median over the rounds of the calls per second of all threads. The last column is the median
ratio of calls per second without the GIL to with the GIL.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array

LAYOUTS = ("two processes", "one process")
GILS = ("1", "0")


def open_worlds(folder, layout, process, nthreads):
    """Return each thread's group. Threads that share a world must open it concurrently."""
    import dldist

    groups = [None] * nthreads

    def open_world(thread):
        world, rank = (thread, process) if layout == "two processes" else divmod(thread, 2)
        groups[thread] = dldist.World(dldist.FileStore(os.path.join(folder, str(world)), 2), rank, 2)

    run_threads(open_world, nthreads)
    return groups


def run_threads(function, nthreads):
    threads = [threading.Thread(target=function, args=(thread,)) for thread in range(nthreads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_block(groups, nbytes, ncalls):
    """Return the block's time in seconds, and each call's in microseconds."""
    start = threading.Barrier(len(groups))
    calls = [[] for _ in groups]
    begins, ends = [0] * len(groups), [0] * len(groups)

    def work(thread):
        group, times, now = groups[thread], calls[thread], time.perf_counter_ns
        data = array("f", bytes(nbytes))
        group.all_reduce(data)
        start.wait()
        before = begins[thread] = now()
        for _ in range(ncalls):
            group.all_reduce(data)
            after = now()
            times.append((after - before) / 1000)
            before = after
        ends[thread] = before

    run_threads(work, len(groups))
    return (max(ends) - min(begins)) / 1e9, [microseconds for times in calls for microseconds in times]


def serve(folder, layout, process, nthreads):
    """Run one block per line of standard input."""
    groups = open_worlds(folder, layout, int(process), int(nthreads))
    is_on = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(json.dumps(is_on), flush=True)
    for line in sys.stdin:
        print(json.dumps(run_block(groups, *json.loads(line))), flush=True)
    for group in groups:
        group.close()


class Team:
    """The processes of one layout and GIL setting."""

    def __init__(self, layout, gil, nthreads, folder):
        os.mkdir(folder)
        self.nthreads = nthreads
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--serve", folder, layout, str(process), str(nthreads)],
                env={**os.environ, "PYTHON_GIL": gil},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for process in range(2 if layout == "two processes" else 1)
        ]
        for is_on in self.read():
            if is_on != (gil == "1"):
                raise SystemExit(f"PYTHON_GIL={gil} has no effect: this Python is not free-threaded")

    def read(self):
        return [json.loads(process.stdout.readline()) for process in self.processes]

    def run(self, nbytes, ncalls):
        """Return the calls per second of all threads, and the microseconds of each call."""
        for process in self.processes:
            process.stdin.write(json.dumps([nbytes, ncalls]) + "\n")
            process.stdin.flush()
        blocks = self.read()
        rate = sum(self.nthreads * ncalls / seconds for seconds, _ in blocks)
        return rate, [microseconds for _, calls in blocks for microseconds in calls]

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


def percentile_99(numbers):
    return statistics.quantiles(numbers, n=100)[98]


def print_row(layout, nbytes, rates, calls):
    cells = [layout, str(nbytes)]
    for gil in GILS:
        cells += [
            f"{statistics.median(calls[gil]):.0f}",
            f"{percentile_99(calls[gil]):.0f}",
            f"{statistics.median(rates[gil]):.0f}",
        ]
    ratio = statistics.median(off / on for on, off in zip(rates["1"], rates["0"]))
    print("| " + " | ".join([*cells, f"{ratio:.2f}"]) + " |", flush=True)


def measure(arguments, folder):
    sizes = [int(nbytes) for nbytes in arguments.nbytes.split(",")]
    cases = [(layout, nbytes) for layout in LAYOUTS for nbytes in sizes]
    teams = {(layout, gil): Team(layout, gil, arguments.threads, os.path.join(folder, f"{layout[:3]}{gil}")) for layout in LAYOUTS for gil in GILS}
    rates = {case: {gil: [] for gil in GILS} for case in cases}
    calls = {case: {gil: [] for gil in GILS} for case in cases}
    for number in range(arguments.rounds + 1):  # the first is a warm-up
        for case in cases:
            for gil in GILS if number % 2 else reversed(GILS):
                rate, times = teams[case[0], gil].run(case[1], arguments.calls)
                if number:
                    rates[case][gil].append(rate)
                    calls[case][gil] += times
    for team in teams.values():
        team.close()
    print(f"{arguments.threads} threads, {arguments.rounds} rounds of {arguments.calls} calls, Python {sys.version.split()[0]}")
    print("| threads in | bytes | GIL: µs | p99 | calls/s | no GIL: µs | p99 | calls/s | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in cases:
        print_row(*case, rates[case], calls[case])


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--nbytes", default="4,1048576")
    with tempfile.TemporaryDirectory() as folder:
        measure(parser.parse_args(), folder)


if __name__ == "__main__":
    main()
