"""Compare ping-pongs by send and recv, and by isend, irecv and wait, for several builds.

    python benchmarks/messages.py FOLDER ... [--nbytes 8,1024,65536] [--rounds 200] [--calls 300] \\
        [--busy 0]

A FOLDER is put on PYTHONPATH: the folder `pkg` of a checkout in which `make ext` has run. Each has
two processes, which live for the whole run and do a block of ping-pongs in every round, in
alternating order, so that noise affects all. Printed are the median time of a message in
microseconds, the best block's, which approximates a quiet machine, and the median ratio to the
first folder over the rounds. --busy runs endless loops in the background.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time


def ping_pong(group, data, count):
    other = 1 - group.rank
    if group.rank == 0:
        for _ in range(count):
            group.send(data, other)
            group.recv(data, other)
    else:
        for _ in range(count):
            group.recv(data, other)
            group.send(data, other)


def ping_pong_async(group, data, count):
    other = 1 - group.rank
    if group.rank == 0:
        for _ in range(count):
            group.isend(data, other).wait()
            group.irecv(data, other).wait()
    else:
        for _ in range(count):
            group.irecv(data, other).wait()
            group.isend(data, other).wait()


WAYS = {"send/recv": ping_pong, "isend/irecv": ping_pong_async}


def serve(rank, path):
    """Run a block per line of input."""
    import dldist

    group = dldist.World(dldist.FileStore(path, 2), rank, 2)
    for line in sys.stdin:
        way, nbytes, count = line.split()
        data = bytearray(int(nbytes))
        WAYS[way](group, data, 20)
        start = time.perf_counter_ns()
        WAYS[way](group, data, int(count))
        print((time.perf_counter_ns() - start) / int(count) / 2000, flush=True)
    group.close()


class Pair:
    def __init__(self, folder):
        self.scratch = tempfile.TemporaryDirectory()
        command = [sys.executable, os.path.abspath(__file__), "--serve"]
        path = os.path.join(self.scratch.name, "store")
        self.ranks = [
            subprocess.Popen(
                [*command, str(rank), path],
                env=os.environ | {"PYTHONPATH": folder},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]

    def measure(self, way, nbytes, count):
        for rank in self.ranks:
            rank.stdin.write(f"{way} {nbytes} {count}\n")
            rank.stdin.flush()
        return [float(rank.stdout.readline()) for rank in self.ranks][0]

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait()
        self.scratch.cleanup()


def report(options, pairs, way, nbytes):
    rounds = []
    for number in range(options.rounds):
        order = range(len(pairs)) if number % 2 == 0 else range(len(pairs) - 1, -1, -1)
        times = {index: pairs[index].measure(way, nbytes, options.calls) for index in order}
        rounds.append([times[index] for index in range(len(pairs))])
    for index, folder in enumerate(options.folders):
        median = statistics.median(one[index] for one in rounds)
        ratio = statistics.median(one[index] / one[0] for one in rounds)
        best = min(one[index] for one in rounds)
        print(f"{way:12} {nbytes:8} {median:9.2f} us, best {best:7.2f} us {ratio:6.2f}  {folder}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--nbytes", default="8,1024,65536")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--serve", nargs=2, metavar=("RANK", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(int(options.serve[0]), options.serve[1])
        return
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    pairs = [Pair(folder) for folder in options.folders]
    try:
        for way in options.ways.split(","):
            for nbytes in options.nbytes.split(","):
                report(options, pairs, way, int(nbytes))
    finally:
        for pair in pairs:
            pair.close()
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
