"""Background load for benchmarks/collectives.py: peers/noise.c, which lists the kinds."""

import contextlib
import os
import select
import subprocess

from collectives_mpi import Unavailable

QUIET = "none"
KINDS = (QUIET, "1of10", "4of20", "short-lived", "busy1", "busy2", "busy4")


@contextlib.contextmanager
def noise(place, kind):
    """Run the load during the block. Its programs also exit if this process ends, as their pipe
    closes."""
    if kind == QUIET:
        yield
        return
    program = place.compile("noise", ["noise.c"])
    command = [program, kind, *map(str, sorted(os.sched_getaffinity(0)))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if not select.select([process.stdout], [], [], 10)[0] or process.stdout.readline() != b"ready\n":
            raise Unavailable(f"the load programs {kind} did not start")
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
