"""Compare startup times with torch's Gloo: init_process_group and new_group, in one run.

    python benchmarks/startup.py [--sizes 2 8 32] [--rounds 7] [--json FILE]
    python benchmarks/startup.py --ranks 128,256,512 [--rounds 3]

For every size, round and library, processes that have imported both libraries are forked. They
create a default world, then three groups of all ranks, and destroy everything. Times are from the
first rank's start to the last rank's end; the first group is not counted. Printed are medians in
milliseconds and the median of the rounds' ratios. There are two ways to begin: at tcp://127.0.0.1,
where rank 0 creates the store, and in a store to which all ranks are already connected, which
excludes the wait for the server.

With --ranks, dlrun starts this many processes, of dldist only, and reports the steps of their start
and their memory (startup_ranks.py).
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import time

import dldist
import startup_ranks
from import_time import seconds_of

GROUPS = 3
LIMIT_S = 120


def libraries():
    found = {"dldist": dldist}
    try:
        import torch.distributed
    except ImportError:
        return found
    found["torch"] = torch.distributed
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stamped(function, *args, **kwargs):
    began = time.monotonic()
    function(*args, **kwargs)
    return began, time.monotonic()


def connect(dist, port, rank):
    """Return a client of the store that rank 0 serves."""
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    return dist.PrefixStore("startup", store)


def rank_main(dist, place, rank, size, port, barrier, results):
    """Record when this rank began and finished to create the world and each group."""
    if place == "store":
        how = {"store": connect(dist, port, rank)}
    else:
        how = {"init_method": f"tcp://127.0.0.1:{port}"}
    barrier.wait(LIMIT_S)
    spans = [stamped(dist.init_process_group, "gloo", rank=rank, world_size=size, **how)]
    for _ in range(GROUPS):
        barrier.wait(LIMIT_S)
        spans.append(stamped(dist.new_group))
    barrier.wait(LIMIT_S)
    dist.destroy_process_group()
    results.put(spans)
    barrier.wait(LIMIT_S)


def start_once(dist, place, size):
    """Return the milliseconds to create the world and each group."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(size), context.Queue()
    port = free_port()
    ranks = [
        context.Process(target=rank_main, args=(dist, place, rank, size, port, barrier, results), daemon=True)
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    spans = [results.get(timeout=LIMIT_S) for _ in ranks]
    for process in ranks:
        process.join(LIMIT_S)
    return overall(spans)


def run(place, size, rounds):
    """Return [{library: [milliseconds to create the world, each group]}], one per round."""
    found = list(libraries().items())
    orders = [found if number % 2 == 0 else found[::-1] for number in range(rounds)]
    return [{name: start_once(dist, place, size) for name, dist in order} for order in orders]


def overall(ranks):
    steps = zip(*ranks, strict=True)
    return [(max(end for _, end in step) - min(began for began, _ in step)) * 1e3 for step in steps]


def report(place, size, rounds):
    row = {"place": place, "size": size}
    print(f"{size} processes, {'tcp://' if place == 'url' else 'store at hand'}")
    for title, pick in (("init_process_group", lambda times: times[0]), ("new_group", lambda times: statistics.median(times[2:]))):
        medians = {name: statistics.median(pick(one[name]) for one in rounds) for name in rounds[0]}
        text = "   ".join(f"{name} {value:9.2f} ms" for name, value in medians.items())
        row[title] = dict(medians)
        if "torch" in medians:
            row[title]["ratio"] = statistics.median(pick(one["torch"]) / pick(one["dldist"]) for one in rounds)
            text += f"   torch / dldist {row[title]['ratio']:7.1f}"
        print(f"  {title:20s} {text}", flush=True)
    return row


def imports(rounds):
    names = {"dldist": "import dldist", "torch": "import torch.distributed"}
    rows = {}
    for name in libraries():
        pairs = [seconds_of(names[name]) - seconds_of("pass") for _ in range(rounds)]
        rows[name] = statistics.median(pairs) * 1e3
        print(f"  import {name:13s} {rows[name]:9.2f} ms beyond bare Python", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--ranks", metavar="N,N,...", help="numbers of processes started by dlrun, dldist only")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.ranks:
        results = {"ranks": startup_ranks.report([int(count) for count in options.ranks.split(",")], options.rounds)}
    else:
        results = {"imports_ms": imports(options.rounds), "sizes": []}
        for place in ("url", "store"):
            for size in options.sizes:
                results["sizes"].append(report(place, size, run(place, size, options.rounds)))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
