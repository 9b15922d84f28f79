"""Start many processes by dlrun: time of each step, and memory. Used by startup.py --ranks.

Each rank imports dldist, creates a world, reduces 4 bytes twice, and closes. Step times are of all
ranks: from the last rank's end of the previous step to the last rank's end of this one. The ranks
share the machine's cores, so CPU time is more informative. Memory is a process's private memory
after the collectives, beyond its memory after the import.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = ("started and imported", "world", "first all_reduce", "second", "close")
LIMIT_S = 600


def memory_kb():
    """Return this process's memory as {field: KB}."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    fields = [line.split() for line in lines]
    return {name.rstrip(":"): int(number) for name, number, *_ in fields}


def now():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "at": time.monotonic(),
        "cpu": usage.ru_utime + usage.ru_stime,
        "slept": usage.ru_nvcsw,
        "taken away": usage.ru_nivcsw,
    }


def rank_main(folder):
    from array import array

    import dldist

    before, marks = memory_kb(), [now()]
    world = dldist.World(timeout=LIMIT_S)
    marks.append(now())
    value = array("f", [1.0])
    for _ in range(2):
        world.all_reduce(value)
        marks.append(now())
    assert value[0] == world.size**2
    world.barrier()
    after = memory_kb()
    descriptors, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    world.barrier()
    began = now()
    rank = world.rank
    world.close()
    row = {
        "marks": marks,
        "close": [began, now()],
        "own_kb": after["Private_Dirty"] - before["Private_Dirty"],
        "pss_kb": after["Pss"] - before["Pss"],
        "descriptors": descriptors,
        "threads": threads,
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(row), encoding="ascii")


def start(nranks):
    """Return [measurements of each rank], and the time at which dlrun began."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dldist.run", "-n", str(nranks), __file__, folder]
        began = time.monotonic()
        done = subprocess.run(command, timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{nranks} ranks did not start:\n{done.stdout[-2000:]}")
        return [json.loads(path.read_text(encoding="ascii")) for path in Path(folder).iterdir()], began


def measure(nranks):
    """Return the measurements of one start: {"s": seconds of each step, ...}"""
    rows, began = start(nranks)
    ends = [began] + [max(row["marks"][i]["at"] for row in rows) for i in range(4)]
    seconds = [later - earlier for earlier, later in zip(ends[:-1], ends[1:], strict=True)]
    seconds.append(max(row["close"][1]["at"] for row in rows) - min(row["close"][0]["at"] for row in rows))

    def of_world(what):
        return statistics.mean(row["marks"][1][what] - row["marks"][0][what] for row in rows)

    return {
        "s": seconds,
        "cpu_ms": of_world("cpu") * 1e3,
        "slept": of_world("slept"),
        "own_kb": statistics.median(row["own_kb"] for row in rows),
        "own_kb_most": max(row["own_kb"] for row in rows),
        "pss_kb": statistics.median(row["pss_kb"] for row in rows),
        "descriptors": statistics.median(row["descriptors"] for row in rows),
        "descriptors_most": max(row["descriptors"] for row in rows),
        "threads": statistics.median(row["threads"] for row in rows),
    }


def report(counts, rounds):
    """Print a line per number of ranks, with the least of the rounds' times and counts."""
    titles = [f"{step}, s" for step in STEPS]
    titles += ["CPU of a rank's world, ms", "its sleeps", "own memory, MB", "of rank 0", "descriptors", "of rank 0", "threads"]
    print("| ranks | " + " | ".join(titles) + " |\n" + "| --- " * (len(titles) + 1) + "|", flush=True)
    results = {}
    for nranks in counts:
        every = [measure(nranks) for _ in range(rounds)]
        results[nranks] = every
        least = {key: min(one[key] for one in every) for key in every[0] if key != "s"}
        steps = [min(one["s"][i] for one in every) for i in range(len(STEPS))]
        cells = [f"{step:.2f}" for step in steps]
        cells += [f"{least['cpu_ms']:.1f}", f"{least['slept']:.0f}", f"{least['own_kb'] / 1e3:.2f}", f"{least['own_kb_most'] / 1e3:.2f}"]
        cells += [f"{least[key]:.0f}" for key in ("descriptors", "descriptors_most", "threads")]
        print(f"| {nranks} | " + " | ".join(cells) + " |", flush=True)
    return results


if __name__ == "__main__":
    rank_main(sys.argv[1])
