#!/usr/bin/env python3
"""Cost of the flight recorder: small all_reduces with the recorder on, on without stacks, and off.

Each configuration has its own processes, which alternate, so that disturbances affect all of them.
The cost is the median of the rounds' differences; beside it is the difference of the least times,
which is least disturbed. Calls are made in a loop, from a function entered for each call, and
through the functions of a module; in worlds of one rank and of two.

    PYTHONPATH=pkg python benchmarks/recorder.py [--rounds 30] [--calls 20000] [--check]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

CONFIGURATIONS = {
    "off": {"DLDIST_FR_BUFFER_SIZE": "0"},
    "on, no stacks": {"DLDIST_FR_STACK_DEPTH": "0"},
    "on, 1 frame": {"DLDIST_FR_STACK_DEPTH": "1"},
    "on": {},
}
WAYS = {"loop": "in a loop", "function": "in a function", "module": "of the module"}
LIMIT_NS = 250


def serve(rank: int, size: int, port: int) -> None:
    """Read a kind of call and a count per line; answer with nanoseconds per call. Runs in its own
    process."""
    import array

    import dldist

    store = dldist.TCPStore("127.0.0.1", port, is_master=rank == 0) if size > 1 else dldist.HashStore()
    dldist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    group = dldist.Group(store, rank, size)
    tensor = array.array("f", [1.0])
    print("ready", flush=True)

    def step() -> None:
        group.all_reduce(tensor)

    def loop(ncalls: int) -> None:
        for _ in range(ncalls):
            group.all_reduce(tensor)

    def function(ncalls: int) -> None:
        for _ in range(ncalls):
            step()

    def module(ncalls: int) -> None:
        for _ in range(ncalls):
            dldist.all_reduce(tensor)

    ways = {"loop": loop, "function": function, "module": module}
    for line in sys.stdin:
        way, ncalls = line.split()
        started = time.perf_counter_ns()
        ways[way](int(ncalls))
        print((time.perf_counter_ns() - started) / int(ncalls), flush=True)
    group.close()
    dldist.destroy_process_group()


class Team:
    """The processes of a configuration."""

    def __init__(self, size: int, environment: dict[str, str], port: int) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--serve", str(rank), str(size), str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
            for rank in range(size)
        ]
        for process in self.processes:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process did not start")

    def run(self, way: str, ncalls: int) -> float:
        for process in self.processes:
            process.stdin.write(f"{way} {ncalls}\n")
            process.stdin.flush()
        return max([float(process.stdout.readline()) for process in self.processes])

    def close(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=30)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


Times = dict[tuple[str, str], list[float]]


def measure(size: int, rounds: int, ncalls: int) -> Times:
    teams = {name: Team(size, environment, free_port()) for name, environment in CONFIGURATIONS.items()}
    times: Times = {(way, name): [] for way in WAYS for name in teams}
    try:
        for turn in range(rounds + 1):
            for way in WAYS:
                for name, team in teams.items():
                    took = team.run(way, ncalls)
                    if turn > 0:  # the first is a warm-up
                        times[way, name].append(took)
    finally:
        for team in teams.values():
            team.close()
    return times


def report(size: int, times: Times) -> float:
    """Print the table; return the recorder's highest cost."""
    print(f"\n{size} rank{'s' if size > 1 else ''}                                ns a call   more than off   least more")
    most = 0.0
    for way, title in WAYS.items():
        for name in CONFIGURATIONS:
            values, off = times[way, name], times[way, "off"]
            cost = statistics.median([value - base for value, base in zip(values, off, strict=True)])
            least = min(values) - min(off)
            print(f"{title:<24} {name:<14} {statistics.median(values):10.0f} {cost:15.0f} {least:12.0f}")
        most = max(most, cost)
    return most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--check", action="store_true", help=f"fail above {LIMIT_NS} ns for one rank")
    parser.add_argument("--serve", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return 0
    print("load of the machine:", *os.getloadavg())
    cost = report(1, measure(1, options.rounds, options.calls))
    report(2, measure(2, max(options.rounds // 2, 1), max(options.calls // 4, 1)))
    return 1 if options.check and cost > LIMIT_NS else 0


if __name__ == "__main__":
    sys.exit(main())
