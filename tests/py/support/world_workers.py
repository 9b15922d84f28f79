"""Workers of the processes of test_world.py and test_c10d_groups.py. No pytest here."""

import array
import gc
import os
import random
import subprocess
import sys
import time

import dldist
import procs
from ports import reserve_port


def usage():
    gc.collect()
    return {"descriptors": procs.fd_count(), "threads": procs.thread_count(), "bytes": procs.rss_bytes()}


def settled_usage(before):
    """Return the usage, once the ends of connections closed by other processes were processed."""
    deadline = time.monotonic() + 5
    while (now := usage()) and any(now[resource] > before[resource] for resource in ("descriptors", "threads")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def many_default_worlds(count):
    """Initialise and destroy worlds at one address, each rank at its own speed."""
    chance = random.Random(int(os.environ["RANK"]))
    url = f"tcp://{os.environ['MASTER_ADDR']}:{common_port()}"
    rank = int(os.environ["RANK"])
    before = None
    for cycle in range(count):
        if cycle == 50:
            before = usage()
        time.sleep(chance.choice([0, 0, 0.001, 0.003]))
        dldist.init_process_group(init_method=url, rank=rank, world_size=2, timeout=20)
        x = array.array("d", [cycle])
        dldist.all_reduce(x)
        assert x[0] == 2 * cycle
        time.sleep(chance.choice([0, 0, 0.002]))
        dldist.destroy_process_group()
    return before, settled_usage(before)


def common_port():
    """Return the same port on all ranks: rank 0 reserves it and shares it in the tests' store."""
    store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)
    if os.environ["RANK"] == "0":
        store.set("port", str(reserve_port(os.environ["MASTER_ADDR"])))
    return int(store.get("port"))


PROGRAMS_WITHOUT_DESTROY = {
    "default world": "import dldist; dldist.init_process_group(); dldist.new_group([0])",
    "worlds": "import dldist; w = dldist.World(); v = w.new_group([0])",
    "two ranks": """
import dldist, threading, array
store = dldist.HashStore()
worlds = []
def rank(number):
    world = dldist.World(store, number, 2, timeout=10)
    world.all_reduce(array.array("d", [1]))
    worlds.append(world)
threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""",
    "server": "import dldist; dldist.init_process_group(init_method='tcp://127.0.0.1:0', rank=0, world_size=1)",
}


def run_programs_without_destroy():
    """Return each program's exit code, output, error output and seconds."""
    results = []
    for program in PROGRAMS_WITHOUT_DESTROY.values():
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"],
            capture_output=True,
            text=True,
            timeout=15,
            check=False,
        )
        results.append((done.returncode, done.stdout, done.stderr, time.monotonic() - began))
    return results


def destroy_at_different_times(early):
    """Destroy the world of one rank while the other is still working."""
    rank = dldist.get_rank()
    store = dldist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=20)
    group = dldist.new_group([0, 1])
    dldist.barrier(group=group)
    if rank == early:
        dldist.destroy_process_group()
        store.set("left", "")
    else:
        store.wait(["left"])
        try:
            dldist.barrier()
        except dldist.DistPeerLostError as error:
            assert f"rank {early}" in str(error)
        else:
            raise AssertionError("a barrier without the other rank")
        dldist.destroy_process_group()
    return "left"


WAITING = """
import dldist, sys, time
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dldist.TCPStore("127.0.0.1", port, timeout=20)
began = time.monotonic()
try:
    dldist.init_process_group(store=store, rank=rank, world_size=3, timeout=4)
except Exception as error:
    assert not dldist.is_initialized()
    kinds = "|".join(kind.__name__ for kind in type(error).__mro__)
    print(kinds, str(error).replace("\\n", " "), time.monotonic() - began, sep="\\t")
"""


def die_in_init():
    """Return the errors of two of three ranks that wait for the third, which is killed while it
    waits for them."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)

    def start(rank):
        code = f"import sys; sys.path[:] = {sys.path!r}\n{WAITING}"
        return subprocess.Popen([sys.executable, "-c", code, str(rank), str(store.port)], stdout=subprocess.PIPE, text=True)

    victim = start(2)
    procs.poll_until(lambda: store.num_keys() > 0, description="the first rank")
    victim.kill()
    victim.communicate()
    others = [start(0), start(1)]
    texts = []
    for other in others:
        kind, text, seconds = other.communicate(timeout=20)[0].split("\t")
        texts.append((kind, text, float(seconds)))
    return texts


def rank_size_and_parent():
    return dldist.get_rank(), dldist.get_world_size(), os.getppid()


SURVIVOR = """
import array, dldist, sys
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dldist.TCPStore("127.0.0.1", port, timeout=20)
dldist.init_process_group(store=store, rank=rank, world_size=3, timeout=20)
store.set(f"rank {rank} is here", "")
try:
    dldist.barrier()
    sys.exit("a barrier without rank 1")
except dldist.DistPeerLostError as error:
    assert error.rank == 1 or "rank 1" in str(error), error
dldist.shrink_group([1], shrink_flags=dldist.SHRINK_ABORT)
sums = []
for group in (None, dldist.new_group([0, 1])):
    x = array.array("d", [1])
    dldist.all_reduce(x, group=group)
    sums.append(x[0])
print(dldist.get_rank(), dldist.get_world_size(), *sums)
"""

KILLED_PROGRAM = """
import dldist, sys, time
store = dldist.TCPStore("127.0.0.1", int(sys.argv[2]), timeout=20)
dldist.init_process_group(store=store, rank=1, world_size=3, timeout=20)
store.set("rank 1 is here", "")
time.sleep(30)
"""


def continue_without_rank_1():
    """Return the output of two of three ranks after one was killed and they have continued."""
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True)

    def start(rank, program):
        code = f"import sys; sys.path[:] = {sys.path!r}\n{program}"
        return subprocess.Popen([sys.executable, "-c", code, str(rank), str(store.port)], stdout=subprocess.PIPE, text=True)

    ranks = [start(rank, KILLED_PROGRAM if rank == 1 else SURVIVOR) for rank in range(3)]
    try:
        store.wait([f"rank {rank} is here" for rank in range(3)], 15)
        ranks[1].kill()
        return [ranks[rank].communicate(timeout=20)[0].splitlines() for rank in (0, 2)]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
