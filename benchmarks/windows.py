#!/usr/bin/env python3
"""Compare windows with messages: round trips of put-and-signal, and gets, between two processes.

A round trip is rank 0's put with a signal, rank 1's wait, rank 1's put and signal back, and rank
0's wait: two calls on either side. With messages it is a send and a receive on either side; a get
is compared with half a round trip. The variants alternate round by round. The median is of the
rounds' medians; percentiles are of all trips.

    PYTHONPATH=pkg python benchmarks/windows.py [--rounds 11] [--trips 2000] [--json FILE] [--check]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from array import array

SIZES = [8, 64, 1024, 8192, 65536, 1 << 20]
WAYS = ["put and signal", "messages", "get"]
LIMIT_NS, LIMIT_SIZE = 2000, 1024
PERCENTILES = [50, 90, 99]


class Peer:
    """One of the two ranks."""

    def __init__(self, rank: int, port: int) -> None:
        import dldist

        store = dldist.TCPStore("127.0.0.1", port)
        self.rank = rank
        self.other = 1 - rank
        self.world = dldist.World(store, rank, 2, timeout=60.0)
        self.memory = self.world.rendezvous(self.world.empty(SIZES[-1], "uint8"))

    def turns(self, way: str, size: int):
        """Return this rank's part of a trip, or None if it has none."""
        source, target = bytearray(size), bytearray(size)
        put, wait_signal, other = self.memory.put, self.memory.wait_signal, self.other
        send, recv = self.world.send, self.world.recv
        if way == "get":
            return (lambda: self.memory.get(target, 1)) if self.rank == 0 else None
        if way == "messages":
            first, second = (lambda: send(source, other)), (lambda: recv(target, other))
        else:
            first, second = (lambda: put(source, other, 0, 0)), (lambda: wait_signal(other))
        steps = (first, second) if self.rank == 0 else (second, first)

        def trip() -> None:
            steps[0]()
            steps[1]()

        return trip

    def run(self, way: str, size: int, ntrips: int) -> array:
        """Return the nanoseconds of each trip."""
        times = array("q", bytes(8 * ntrips))
        trip = self.turns(way, size)
        clock = time.perf_counter_ns
        self.world.barrier()
        for at in range(ntrips if trip is not None else 0):
            started = clock()
            trip()
            times[at] = clock() - started
        self.world.barrier()
        return times


def serve(rank: int, port: int) -> None:
    """Run the commands in the lines of input; rank 0 prints times as JSON."""
    peer = Peer(rank, port)
    print("ready", flush=True)
    for line in sys.stdin:
        way, size, ntrips = json.loads(line)
        print(json.dumps(peer.run(way, size, ntrips).tolist()), flush=True)
    peer.world.close()


class Pair:
    """Both processes, and the store of their world."""

    def __init__(self) -> None:
        import dldist

        self.store = dldist.TCPStore("127.0.0.1", 0, is_master=True)
        command = [sys.executable, __file__, "--serve"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.processes = [subprocess.Popen([*command, str(rank), str(self.store.port)], **pipes) for rank in range(2)]
        for process in self.processes:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process did not start")

    def run(self, *what: object) -> list[int]:
        for process in self.processes:
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self.processes][0]

    def close(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=30)


def measure(rounds: int, ntrips: int) -> list[dict[str, object]]:
    pair = Pair()
    trips: dict[tuple[str, int], list[list[int]]] = {}
    try:
        for turn in range(rounds + 1):
            for size in SIZES:
                for way in WAYS:
                    times = pair.run(way, size, max(ntrips // (1 + size // 16384), 20))
                    if turn > 0:  # the first is a warm-up
                        trips.setdefault((way, size), []).append(times)
    finally:
        pair.close()
    return [summary(way, size, of_rounds) for (way, size), of_rounds in sorted(trips.items())]


def summary(way: str, size: int, of_rounds: list[list[int]]) -> dict[str, object]:
    every = sorted(time for times in of_rounds for time in times)
    percentiles = {f"p{percent}_ns": every[min(len(every) * percent // 100, len(every) - 1)] for percent in PERCENTILES}
    medians = [statistics.median(times) for times in of_rounds]
    return {"way": way, "nbytes": size, "median_ns": statistics.median(medians), "best_round_ns": min(medians), **percentiles}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--trips", type=int, default=2000)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help=f"fail above {LIMIT_NS} ns for {LIMIT_SIZE} bytes per round trip")
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return 0
    machine = {"cores": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version()}
    print(f"{machine['cores']} cores, load {machine['load'][0]:.2f}, Python {machine['python']}")
    figures = measure(options.rounds, options.trips)
    print(f"{'':<16}{'bytes':>9}{'median':>12}{'best round':>12}{'p90':>12}{'p99':>12}   (microseconds)")
    for row in figures:
        cells = (row[key] / 1e3 for key in ("median_ns", "best_round_ns", "p90_ns", "p99_ns"))
        print(f"{row['way']:<16}{row['nbytes']:>9}" + "".join(f"{cell:>12.2f}" for cell in cells))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": machine, "figures": figures}, file, indent=1)
    goal = next(row for row in figures if (row["way"], row["nbytes"]) == ("put and signal", LIMIT_SIZE))
    return 1 if options.check and goal["median_ns"] > LIMIT_NS else 0


if __name__ == "__main__":
    sys.exit(main())
