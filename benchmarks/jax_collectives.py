#!/usr/bin/env python3
"""Compare JAX's collectives between CPU processes by Gloo and by dldist (dldist.jax), alternating.

    python benchmarks/jax_collectives.py [--processes 2] [--sizes 1K,1M,64M] [--rounds 3]

A call of a compiled function is timed from Python until its result is available. Rows have the
median and the 90th and 99th percentiles of all rounds, in microseconds, and the ratio of Gloo's
median to dldist's.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time

UNITS = {"K": 1 << 10, "M": 1 << 20}


def bytes_of(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def member(address: str, rank: int, size: int, sizes: list[int]) -> None:
    import jax
    import numpy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.distributed.initialize(address, size, rank)
    mesh = Mesh(numpy.array(jax.devices()), ("x",))
    calls = {
        "psum": (lambda x: jax.lax.psum(x, "x"), PartitionSpec()),
        "all_gather": (lambda x: jax.lax.all_gather(x, "x", tiled=True), PartitionSpec("x")),
        "psum_scatter": (lambda x: jax.lax.psum_scatter(x, "x", tiled=True), PartitionSpec("x")),
    }
    for nbytes in sizes:
        local = numpy.full(nbytes // 4, rank + 1.0, "float32")
        x = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("x")), local)
        for name, (call, spec) in calls.items():
            run = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=spec))
            run(x).block_until_ready()
            times = []
            for _ in range(max(10, min(500, (256 << 20) // nbytes))):
                began = time.perf_counter()
                run(x).block_until_ready()
                times.append(time.perf_counter() - began)
            if rank == 0:
                print("times", name, nbytes, *(f"{1e6 * t:.1f}" for t in times), flush=True)
    jax.distributed.shutdown()


def run(backend: str, size: int, sizes: list[int]) -> dict[tuple[str, int], list[float]]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if backend == "dldist":
        import dldist.jax

        environment |= dldist.jax.environment()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [sys.executable, __file__, "--member", address, "--processes", str(size), "--sizes", ",".join(map(str, sizes))]
    ranks = [
        subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for rank in range(size)
    ]
    text = [rank.communicate(timeout=300)[0] for rank in ranks][0]
    if any(rank.returncode != 0 for rank in ranks):
        raise SystemExit(f"{backend}: a process has failed")
    rows = [line.split() for line in text.splitlines() if line.startswith("times ")]
    return {(name, int(nbytes)): [float(t) for t in times] for _, name, nbytes, *times in rows}


def percentile(times: list[float], percent: int) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sizes", default="1K,1M,64M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--member", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = [bytes_of(text) for text in options.sizes.split(",")]
    if options.member:
        member(options.member, options.rank, options.processes, sizes)
        return 0
    found: dict[str, dict[tuple[str, int], list[float]]] = {"gloo": {}, "dldist": {}}
    for _ in range(options.rounds):
        for backend, all_times in found.items():
            for key, times in run(backend, options.processes, sizes).items():
                all_times.setdefault(key, []).extend(times)
    print("| call | bytes a process | Gloo p50, p90, p99 | dldist p50, p90, p99 | Gloo by dldist |\n| --- | --- | --- | --- | --- |")
    for key in found["dldist"]:
        cells = [", ".join(f"{percentile(times[key], p):,.0f}" for p in (50, 90, 99)) for times in found.values()]
        ratio = percentile(found["gloo"][key], 50) / percentile(found["dldist"][key], 50)
        print(f"| {key[0]} | {key[1]:,} | {cells[0]} | {cells[1]} | {ratio:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
