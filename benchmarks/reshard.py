#!/usr/bin/env python3
"""Compare resharding between processes of this host with a memcpy of the same bytes in one process.

Three sources push rows to two destinations. A round is one push of the whole array and one memcpy
by rank 0. Rank 0 times the push from a barrier before to a barrier after, so it ends when the last
destination has the version. The ratio compares rates (memcpy's time / push's time): its median over
the rounds, and p90, which nine of ten rounds reach. All memory has been written to before.

    PYTHONPATH=pkg python benchmarks/reshard.py [--mib 1024] [--rounds 11] [--columns] [--delta] \\
        [--json out.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SOURCES, DESTINATIONS = 3, 2
COLUMNS = 4096


def run_rank(rank: int, port: int, arguments: argparse.Namespace) -> None:
    import dldist
    import numpy as np
    from dldist.reshard import Layout, Link, Shard

    world = dldist.World(dldist.TCPStore("127.0.0.1", port), rank, SOURCES + DESTINATIONS, timeout=300)
    shape = (arguments.mib << 20) // 4 // COLUMNS, COLUMNS
    side = {"source": rank < SOURCES, "destination": rank >= SOURCES}
    mesh = {"source": SOURCES, "destination": DESTINATIONS}
    dims = {"source": 0, "destination": int(arguments.columns)}
    layouts = {name: Layout({"w": (shape, "float32", [Shard(dims[name])])}, mesh[name]) for name, is_on in side.items() if is_on}
    link = Link(world, **layouts, in_place=True, delta=arguments.delta)
    mine = np.full(layouts["source"].local_shapes(rank)["w"], rank, "float32") if rank < SOURCES else None
    if rank == 0:
        blocks = np.ones((2, *shape), "float32")
    rounds = []
    for _ in range(arguments.rounds + 2):  # the first two fault the memory in
        world.barrier()
        begin = time.perf_counter()
        if mine is not None:
            link.push({"w": mine})
        else:
            link.receive()
        world.barrier()
        push_s = time.perf_counter() - begin
        if rank == 0:
            begin = time.perf_counter()
            np.copyto(blocks[0], blocks[1])
            rounds.append({"push_s": push_s, "memcpy_s": time.perf_counter() - begin})
        world.barrier()
    if rank == 0:
        print(json.dumps(rounds[2:]))
    link.close()
    world.close()


def summary(rounds: list[dict[str, float]], mib: int) -> dict[str, float]:
    ratios = sorted(one["memcpy_s"] / one["push_s"] for one in rounds)
    return {
        "rounds": len(rounds),
        "push_gib_s": mib / 1024 / statistics.median(one["push_s"] for one in rounds),
        "memcpy_gib_s": mib / 1024 / statistics.median(one["memcpy_s"] for one in rounds),
        "ratio_median": statistics.median(ratios),
        "ratio_p90": ratios[len(ratios) // 10],
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--columns", action="store_true", help="destinations have columns, so rows are cut")
    parser.add_argument("--delta", action="store_true", help="delta pushes without changes: digests only")
    parser.add_argument("--json")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.rank, arguments.port, arguments)
        return
    import dldist

    store = dldist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, __file__, *sys.argv[1:], "--port", str(store.port), "--rank"]
    children = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(SOURCES + DESTINATIONS)]
    try:
        outputs = [child.communicate(timeout=900)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    if any(child.returncode for child in children):
        sys.exit("a rank has failed")
    report = summary(json.loads(outputs[0]), arguments.mib)
    print(" ".join(f"{name}={value:.2f}" for name, value in report.items()))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
