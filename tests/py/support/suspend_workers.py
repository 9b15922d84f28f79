"""Workers of the ranks of test_revoke_suspend.py. No pytest here."""

import re

import dldist
import numpy
from thread_ranks import error_of


def resident_of_arenas():
    """Return the bytes of arena shared memory that this process touched and that are resident."""
    total, is_arena = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as maps:
        for line in maps:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                is_arena = "dldist-arena" in line
            elif is_arena and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


def suspend_and_measure(channel, rank, store_file):
    with dldist.Group(dldist.FileStore(store_file, 2), rank, 2, timeout=20) as group:
        x = numpy.ones(1 << 19, "float32")
        group.all_reduce(x)
        group.all_gather([numpy.zeros(1 << 17), numpy.zeros(1 << 17)], numpy.zeros(1 << 17))
        kept = group.empty(1 << 18, "float32")
        numpy.asarray(kept)[...] = 1
        del kept
        before, stats = resident_of_arenas(), group.memory_stats()
        group.suspend()
        while_suspended, suspended = resident_of_arenas(), group.memory_stats()
        texts = [str(error_of(call)) for call in (group.barrier, lambda: group.send(x, 1 - rank), lambda: group.empty(3))]
        group.suspend()
        group.resume()
        group.resume()
        x[...] = rank + 1
        group.all_reduce(x)
        channel.send((before, while_suspended, resident_of_arenas(), stats, suspended, texts, float(x.min()), float(x.max())))
