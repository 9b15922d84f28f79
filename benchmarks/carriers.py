#!/usr/bin/env python3
"""Compare all_reduces by a bare carrier library, by dldist with that carrier, and by dldist itself.

    python benchmarks/carriers.py --carrier mpi --mpirun mpirun.mpich -n 2
    python benchmarks/carriers.py --carrier mpi -n 4 \\
        --mpirun "mpirun.openmpi --allow-run-as-root --oversubscribe"
    python benchmarks/carriers.py --carrier ucc -n 2

DLDIST_MPI_LIBRARY and DLDIST_UCC_LIBRARY choose the library, as usual. The bare library is called
from C (carriers_bare.c, compiled at run time), dldist from Python. All variants run in the same
processes and alternate in blocks of calls in every round, so that disturbances affect all of them.
The time of a block is the slowest rank's.

The Markdown table has microseconds per call: the median and the 90th and 99th percentiles of the
blocks:

- bare: MPI_Allreduce, which waits in the library. UCC has no such call.
- start and test: MPI_Iallreduce, then MPI_Test until done; for UCC, init, post, then progress until
  done. dldist's carriers use these calls.
- call, plan: world.all_reduce(x) and plan() with the carrier.
- own call, own plan: the same without a carrier.
- call over bare, call over start and test, plan over start and test: medians of the differences
  within a round.

With more ranks than cores, ranks wait for each other's time slices: some libraries then take
milliseconds per call.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
UNITS = {"K": 1 << 10, "M": 1 << 20}
CODES = {"float32": "f", "float64": "d"}
WAYS = ("bare", "start and test", "call", "plan", "own call", "own plan")
LIMIT_S = 600

Way = Callable[[int], float]
"""Makes the given number of calls, and returns the seconds that they took."""


def bytes_of(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def words_of(nbytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size and nbytes % size == 0:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


# ---- the bare libraries


def build(folder: str) -> str:
    """Compile carriers_bare.c into a shared library; needs only a compiler and this repository's
    headers."""
    path = os.path.join(folder, "carriers_bare.so")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    options = ["-std=gnu11", "-O2", "-fPIC", "-shared", f"-I{HERE.parent / 'csrc'}", "-o", path]
    subprocess.run([*compiler, *options, str(HERE / "carriers_bare.c")], check=True)
    return path


def address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Mpi(ctypes.Structure):
    """bare_mpi in carriers_bare.c: handles are machine words, as in csrc/mpi/mpi_api.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("allreduce", "iallreduce", "test", "comm", "type", "op", "in_place", "status_ignore")
    ]  # fmt: skip


STANDARD = {"comm": 0x101, "float32": 0x210, "float64": 0x214, "op": 0x21, "in_place": 1, "status_ignore": 0}
MPICH = {"comm": 0x44000000, "float32": 0x4C00040A, "float64": 0x4C00080B, "op": 0x58000003, "in_place": 2**64 - 1, "status_ignore": 1}
OPEN_MPI = {"comm": "comm_world", "float32": "float", "float64": "double", "op": "op_sum"}
"""Suffixes of the names of variables; the variables' addresses are the handles."""


def bare_mpi(library: ctypes.CDLL, info: dict[str, str], dtype: str) -> Mpi:
    if info["version"].startswith("Open MPI"):
        found = {what: ctypes.addressof(ctypes.c_char.in_dll(library, f"ompi_mpi_{name}")) for what, name in OPEN_MPI.items()}
        constants = {**found, "in_place": 1, "status_ignore": 0}
    else:
        constants = STANDARD if os.path.basename(info["path"]).startswith("libmpi_abi.") else MPICH
    return Mpi(
        allreduce=address_of(library.MPI_Allreduce),
        iallreduce=address_of(library.MPI_Iallreduce),
        test=address_of(library.MPI_Test),
        type=constants[dtype],
        **{name: constants[name] for name in ("comm", "op", "in_place", "status_ignore")},
    )


def ways_of_mpi(bare: ctypes.CDLL, library: ctypes.CDLL, info: dict[str, str], dtype: str, tensor: array[float]) -> dict[str, Way]:
    mpi = bare_mpi(library, info, dtype)

    def way(loop: Any) -> Way:
        loop.restype = ctypes.c_double
        address, count = tensor.buffer_info()
        return lambda ncalls: loop(ctypes.byref(mpi), ctypes.c_void_p(address), count, ctypes.c_long(ncalls))

    return {"bare": way(bare.bare_mpi_blocking), "start and test": way(bare.bare_mpi_tested)}


GATHER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
CHECK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Oob(ctypes.Structure):
    """ucc_oob_coll: the all_gather that UCC uses for rendezvous."""

    _fields_ = [
        ("allgather", GATHER), ("req_test", CHECK), ("req_free", CHECK), ("info", ctypes.c_void_p), ("size", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
    ]  # fmt: skip


class Ucc:
    """A UCC team of all ranks, created through a dldist group. It is freed at exit."""

    NUMBERS = {"float32": 11, "float64": 12}

    def __init__(self, bare: ctypes.CDLL, library: ctypes.CDLL, group: Any) -> None:
        self.bare = bare
        self.group = group
        bare.bare_ucc_nbytes.restype = ctypes.c_size_t
        bare.bare_ucc_function.restype = ctypes.c_char_p
        self.memory = ctypes.create_string_buffer(bare.bare_ucc_nbytes())
        functions = ctypes.cast(self.memory, ctypes.POINTER(ctypes.c_void_p))
        index = 0
        while (name := bare.bare_ucc_function(ctypes.c_size_t(index))) is not None:
            functions[index] = address_of(getattr(library, name.decode()))
            index += 1
        self.oob = Oob(GATHER(self.gather), CHECK(lambda _: 0), CHECK(lambda _: 0), None, group.size, group.rank)
        status = bare.bare_ucc_open(self.memory, ctypes.byref(self.oob))
        if status != 0:
            raise RuntimeError(f"UCC team creation failed: status {status}")

    def gather(self, source: int, target: int, nbytes: int, _info: Any, request: Any) -> int:
        own = (ctypes.c_uint8 * nbytes).from_address(source)
        everyones = (ctypes.c_uint8 * (nbytes * self.group.size)).from_address(target)
        self.group.all_gather_single(everyones, own)
        request[0] = 1  # UCC treats NULL as a failure
        return 0

    def ways(self, dtype: str, tensor: array[float]) -> dict[str, Way]:
        loop = self.bare.bare_ucc_tested
        loop.restype = ctypes.c_double
        address, count = tensor.buffer_info()
        arguments = (self.memory, ctypes.c_void_p(address), ctypes.c_size_t(count), self.NUMBERS[dtype])
        return {"start and test": lambda ncalls: loop(*arguments, ctypes.c_long(ncalls))}


# ---- one rank


def repeated(call: Callable[[], Any]) -> Way:
    def way(ncalls: int) -> float:
        began = time.perf_counter()
        for _ in range(ncalls):
            call()
        return time.perf_counter() - began

    return way


def repeated_all_reduce(group: Any, tensor: array[float]) -> Way:
    def way(ncalls: int) -> float:
        call = group.all_reduce
        began = time.perf_counter()
        for _ in range(ncalls):
            call(tensor)
        return time.perf_counter() - began

    return way


def calibrate(group: Any, way: Way, block_ms: float) -> int:
    """Return the number of calls per block, the same on all ranks."""
    ncalls = 1
    while True:
        group.barrier()
        took = array("d", [min(way(ncalls) for _ in range(3))])  # the first calls allocate
        group.all_reduce(took, "max")
        if took[0] >= block_ms * 1e-3 / 4:
            return max(1, int(ncalls * block_ms * 1e-3 / took[0]))
        ncalls *= 4


def measure(group: Any, ways: dict[str, Way], rounds: int, block_ms: float) -> dict[str, list[float]]:
    """Return microseconds per call for each block, on the slowest rank."""
    counts = {name: calibrate(group, way, block_ms) for name, way in ways.items()}
    times = {name: array("d") for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            group.barrier()
            took = way(counts[name])
            if took < 0:
                raise RuntimeError(f"{name}: the library has failed")
            times[name].append(1e6 * took / counts[name])
    for row in times.values():
        group.all_reduce(row, "max")
    return {name: list(row) for name, row in times.items()}


def run_rank(options: argparse.Namespace) -> None:
    """Run one rank. Rank 0 writes the results as JSON, one line per size."""
    import dldist
    from dldist import carriers

    folder = options.folder
    if options.carrier == "mpi":
        world = dldist.World(carrier="mpi", timeout=LIMIT_S)
    else:
        world = dldist.World(dldist.FileStore(f"{folder}/world"), options.rank, options.processes, carrier=options.carrier, timeout=LIMIT_S)
    own = dldist.Group(dldist.FileStore(f"{folder}/own"), world.rank, world.size, timeout=LIMIT_S)
    info = carriers.info(options.carrier)
    bare = ctypes.CDLL(os.path.join(folder, "carriers_bare.so"))
    library = ctypes.CDLL(info["path"], mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    ucc = Ucc(bare, library, own) if options.carrier == "ucc" else None
    for nbytes in map(bytes_of, options.sizes.split(",")):
        code = CODES[options.dtype]
        tensor = array(code, [0]) * (nbytes // array(code).itemsize)  # sums of zeros stay zero
        ways = ucc.ways(options.dtype, tensor) if ucc else ways_of_mpi(bare, library, info, options.dtype, tensor)
        ways |= {
            "call": repeated_all_reduce(world, tensor), "plan": repeated(world.plan.all_reduce(tensor)),
            "own call": repeated_all_reduce(own, tensor), "own plan": repeated(own.plan.all_reduce(tensor)),
        }  # fmt: skip
        times = measure(own, ways, options.rounds, options.block_ms)
        if world.rank == 0:
            with open(f"{folder}/results", "a", encoding="utf-8") as file:
                file.write(json.dumps({"version": info["version"], "bytes": nbytes, "times": times}) + "\n")
    own.barrier()
    own.close()
    world.close()


# ---- driver


def percentile(times: list[float], percent: int) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def run_ranks(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        command = [
            sys.executable, __file__, "--folder", folder, "--carrier", options.carrier, "-n", str(options.processes),
            "--sizes", options.sizes, "--dtype", options.dtype, "--rounds", str(options.rounds), "--block-ms", str(options.block_ms),
        ]  # fmt: skip
        if options.carrier == "mpi":
            commands = [[*shlex.split(options.mpirun), "-n", str(options.processes), *command]]
        else:
            commands = [[*command, "--rank", str(rank)] for rank in range(options.processes)]
        started = [subprocess.Popen(each, stdin=subprocess.DEVNULL) for each in commands]
        try:
            if any([process.wait() != 0 for process in started]):
                raise SystemExit("a process has failed")
        finally:
            for process in started:
                process.terminate()  # the remaining ranks wait for the failed one
        return [json.loads(line) for line in Path(folder, "results").read_text(encoding="utf-8").splitlines()]


OVERHEADS = (("call", "bare"), ("call", "start and test"), ("plan", "start and test"))


def overhead_of(times: dict[str, list[float]], ours: str, theirs: str) -> str:
    if theirs not in times:
        return ""
    return f"{statistics.median(a - b for a, b in zip(times[ours], times[theirs], strict=True)):.3g}"


def cells_of(times: dict[str, list[float]]) -> list[str]:
    cells = [", ".join(f"{percentile(times[way], p):.4g}" for p in (50, 90, 99)) if way in times else "" for way in WAYS]
    return cells + [overhead_of(times, *pair) for pair in OVERHEADS]


def print_table(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    columns = ["library", "ranks", options.dtype, *WAYS, *(f"{ours} over {theirs}" for ours, theirs in OVERHEADS)]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for row in results:
        cells = [row["version"], str(options.processes), words_of(row["bytes"]), *cells_of(row["times"])]
        print(f"| {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--carrier", choices=("mpi", "ucc"), default="mpi")
    parser.add_argument("--mpirun", default="mpirun", help="the command with its options")
    parser.add_argument("-n", "--processes", type=int, default=2)
    parser.add_argument("--sizes", default="8,1K,64K,1M,16M")
    parser.add_argument("--dtype", choices=tuple(CODES), default="float64")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--block-ms", type=float, default=2.0)
    parser.add_argument("--quick", action="store_true", help="smoke test: a few short rounds of two sizes")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        run_rank(options)
        return 0
    if options.quick:
        options.sizes, options.rounds, options.block_ms = "8,64K", 3, 0.2
    if options.carrier == "mpi" and shutil.which(shlex.split(options.mpirun)[0]) is None:
        raise SystemExit(f"there is no {options.mpirun}")
    results = run_ranks(options)
    print_table(results, options)
    if options.json:
        Path(options.json).write_text(json.dumps({**vars(options), "results": results}, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
