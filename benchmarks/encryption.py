"""Cost of encryption between two hosts, for an all_reduce and for the creation of a world.

    python benchmarks/encryption.py [--mib 16] [--rounds 30] [--worlds 20] [--json FILE]

The hosts are two network namespaces on this machine (root only). Each variant has a pair of ranks,
pinned to one core each, which live as long as the script; one pair works while the other sleeps.
The result compares the consecutive medians of a round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import collectives_hosts

PLACES = (("encrypted", "on"), ("plain", "off"))


def rank_main(rank, address, nbytes):
    """Run a rank: read the commands `run N`, `worlds N` and `end`, and answer with a line of
    JSON."""
    import array

    import dldist

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if rank == 0:
        store = dldist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=60)
        print(store.port, flush=True)
    else:
        store = dldist.TCPStore(address, int(sys.stdin.readline()), timeout=60)
    group = dldist.Group(store, rank, 2, timeout=60, name="all")
    x = array.array("f", bytes(nbytes))
    made = 0
    for line in sys.stdin:
        word, _, count = line.partition(" ")
        took = []
        if word == "end\n":
            break
        for _ in range(int(count)):
            group.barrier()
            began = time.perf_counter()
            if word == "run":
                group.all_reduce(x)
                took.append(time.perf_counter() - began)
            else:
                took.append(make_world(address, store.port, rank, made))
                made += 1
        print(json.dumps(took), flush=True)
    group.close(timeout=5)


def make_world(address, port, rank, number):
    """Create a world in a forked child without connections: connect, rendezvous, send a message."""
    import dldist

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        began = time.perf_counter()
        store = dldist.TCPStore(address, port, timeout=60)
        group = dldist.Group(store, rank, 2, timeout=60, name=f"world {number}")
        group.barrier()
        os.write(writing, repr(time.perf_counter() - began).encode())
        group.close(timeout=5)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        took = float(file.read())
    os.waitpid(child, 0)
    return took


class Pair:
    """Two ranks, one per host."""

    def __init__(self, hosts, encryption, nbytes):
        env = {**os.environ, "DLDIST_SECRET": "a secret of the benchmark", "DLDIST_ENCRYPTION": encryption}
        self.ranks = []
        for rank in range(2):
            command = [*hosts.prefix(rank), sys.executable, __file__, "--rank", str(rank), "--address", hosts.address(0), "--bytes", str(nbytes)]
            self.ranks.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        self.tell(1, self.ranks[0].stdout.readline())

    def tell(self, rank, line):
        self.ranks[rank].stdin.write(line)
        self.ranks[rank].stdin.flush()

    def ask(self, line):
        """Send a command to both ranks; return the longer time of each measurement."""
        for rank in range(2):
            self.tell(rank, line)
        return [max(both) for both in zip(*(json.loads(one.stdout.readline()) for one in self.ranks), strict=True)]

    def close(self):
        for rank in range(2):
            self.tell(rank, "end\n")
        for one in self.ranks:
            one.wait(20)


def compare(pairs, rounds, request):
    """Return the median of each round by name, without the first round."""
    medians = {name: [] for name, _ in PLACES}
    for number in range(rounds + 1):
        for name in medians if number % 2 else reversed(medians):
            median = statistics.median(pairs[name].ask(request))
            if number > 0:
                medians[name].append(median)
    return medians


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return rank_main(options.rank, options.address, options.bytes)
    nbytes = options.mib << 20
    hosts = collectives_hosts.Hosts(2, os.environ.get("TMPDIR", "/tmp"))
    pairs = {}
    try:
        pairs = {name: Pair(hosts, encryption, nbytes) for name, encryption in PLACES}
        runs = compare(pairs, options.rounds, "run 5\n")
        worlds = compare(pairs, options.worlds, "worlds 1\n")
        for pair in pairs.values():
            pair.close()
    finally:
        for pair in pairs.values():
            for one in pair.ranks:
                one.kill()
        hosts.close()
    speeds = [plain / encrypted for plain, encrypted in zip(runs["plain"], runs["encrypted"], strict=True)]
    more = [1e3 * (encrypted - plain) for plain, encrypted in zip(worlds["plain"], worlds["encrypted"], strict=True)]
    result = {
        "all_reduce_mib": options.mib,
        "plain_ms": 1e3 * statistics.median(runs["plain"]),
        "encrypted_ms": 1e3 * statistics.median(runs["encrypted"]),
        "speed_of_encrypted": statistics.median(speeds),
        "world_plain_ms": 1e3 * statistics.median(worlds["plain"]),
        "world_encrypted_ms": 1e3 * statistics.median(worlds["encrypted"]),
        "world_more_ms": statistics.median(more),
    }
    print(f"all_reduce of {options.mib} MiB: plain {result['plain_ms']:.2f} ms, encrypted {result['encrypted_ms']:.2f} ms: "
          f"{result['speed_of_encrypted']:.2f} of the speed (median of {options.rounds} rounds)")
    print(f"a world of two: plain {result['world_plain_ms']:.2f} ms, encrypted {result['world_encrypted_ms']:.2f} ms: "
          f"{result['world_more_ms']:.2f} ms more, for two connections (store and link)")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
