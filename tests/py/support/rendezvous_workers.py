"""Workers of the rendezvous tests, and, as a program, a rank that a launcher starts:

    mpirun -n 2 python rendezvous_workers.py FOLDER

The program meets twice through the launcher's environment, and writes its results to FOLDER/<rank>.
"""

import array
import json
import os
import random
import sys
import time

import dldist
import procs
from dldist import rendezvous

TIMEOUT_S = 20.0


def sum_over(meeting):
    """Make a group of all ranks in the meeting's store; return the all_reduce of 1, 2, 4, ..."""
    with dldist.Group(meeting.store, meeting.rank, meeting.world_size, timeout=TIMEOUT_S) as group:
        meeting.mark_connected()
        tensor = array.array("d", [float(2**meeting.rank)])
        group.all_reduce(tensor)
        return tensor[0]


def meet_once(channel, init_method, rank, world_size):
    meeting = rendezvous.meet(init_method, rank, world_size, timeout=TIMEOUT_S)
    result = meeting.rank, meeting.world_size, sum_over(meeting)
    meeting.close()
    return result


def meet_by_environment(channel):
    """Meet twice with only the environment: the first meeting must not use up the address."""
    return [meet_once(channel, None, -1, -1) for _ in range(2)]


def meet_repeatedly(channel, init_method, rank, world_size, rounds, seed):
    """Meet in many rounds. Rank 0 makes a new server in each; others join before or after it."""
    delays = random.Random(seed)
    for number in range(rounds):
        meeting = rendezvous.meet(init_method, rank, world_size, timeout=TIMEOUT_S)
        assert meeting.store.add(f"round {number} only of this meeting", 1) <= world_size
        assert meeting.store.try_get("left by the round before") is None
        assert sum_over(meeting) == 2**world_size - 1
        if rank == 0:  # rank 0 has the server; the other ranks' store may close once they have met
            meeting.store.set("left by the round before", "x")
        time.sleep(delays.random() * 0.003)
        meeting.close()
    return procs.fd_count()


def time_out_without_peers(channel, init_method, rank, world_size, timeout):
    """Wait for the parent's message, and return the error of a rank whose peers never join."""
    channel.send("begin")
    channel.recv()
    began = time.monotonic()
    meeting = None
    try:
        meeting = rendezvous.meet(init_method, rank, world_size, timeout=timeout)
        dldist.Group(meeting.store, rank, world_size, timeout=timeout)
    except dldist.DistError as error:
        if meeting is not None:
            meeting.close()
        return type(error).__name__, str(error), time.monotonic() - began
    return None


def hold_group(channel, init_method, rank, world_size):
    """Create the group of all ranks, and keep it until the parent's message."""
    meeting = rendezvous.meet(init_method, rank, world_size, timeout=TIMEOUT_S)
    with meeting, dldist.Group(meeting.store, rank, world_size, timeout=TIMEOUT_S):
        meeting.mark_connected()
        channel.send(os.getpid())
        channel.recv()
    meeting.close()


def outlive_group(channel, init_method, rank, world_size):
    """Like hold_group, but run until a second message."""
    hold_group(channel, init_method, rank, world_size)
    channel.send("closed")
    channel.recv()


def store_by_url(channel, url):
    """Meet through c10d's rendezvous handlers."""
    store, rank, world_size = next(rendezvous.rendezvous(url, timeout=TIMEOUT_S))
    store.set(f"from {rank}", str(world_size))
    result = [store.get(f"from {other}") for other in range(world_size)]
    store.add("read", 1)
    while rank == 0 and store.add("read", 0) < world_size:  # this rank has the server
        time.sleep(0.001)
    return result


def main(folder):
    results = meet_by_environment(None)
    with open(os.path.join(folder, str(results[0][0])), "w", encoding="utf-8") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(sys.argv[1])
