"""Workers of test_group_edges.py and test_group_past_4_gib.py. Without pytest, to start faster."""

import mmap
import os
import threading
import time

import dldist

PAST_4_GIB = (4 << 30) + 3


def places_of(count):
    """Return the indexes to check: both ends, and both sides of 2 GiB and of 4 GiB."""
    return [0, 1, (2 << 30) - 1, 2 << 30, (4 << 30) - 1, 4 << 30, count - 2, count - 1]


def past_4_gib(channel, port, rank, limit_s):
    """Run one rank of two: a reduction and a message of more bytes than fit into 32 bits."""
    store = dldist.TCPStore("127.0.0.1", port, timeout=limit_s)
    # Private and in huge pages, because the first touch takes most of the time.
    memory = mmap.mmap(-1, PAST_4_GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    tensor = memoryview(memory).cast("b")
    places = places_of(PAST_4_GIB)
    with dldist.Group(store, rank, 2, timeout=limit_s) as group:
        for index, place in enumerate(places):
            tensor[place] = (rank + 1) * (index + 1)
        group.all_reduce(tensor)
        reduced = [tensor[place] for place in places]
        if rank == 0:
            for index, place in enumerate(places):
                tensor[place] = -index - 1
            group.send(tensor, 1)
        else:
            group.recv(tensor, 0)
        received = [tensor[place] for place in places]
        elsewhere = [tensor[place + 5] for place in places[:4]]
    return reduced, received, elsewhere


def watch_in_child(channel):
    """A pending work belongs to the parent; the child has no thread for callbacks."""
    group = dldist.Group(None, 0, 1)
    work = group.irecv(bytearray(1), 0)
    work._watch(lambda: None)  # starts the parent's thread
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work._watch(lambda: None)
            text = "nothing was raised"
        except dldist.DistBackendError as error:
            text = f"{error.code}: {error}"
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(pid, 0)
    group.send(b"x", 0)
    work.wait(5)
    return text


def watchers_from_many_threads(channel, nthreads):
    """The completion thread must be started once, whichever thread is first."""
    group = dldist.Group(None, 0, 1)
    work = group.irecv(bytearray(1), 0)
    seen = []
    threads = [threading.Thread(target=work._watch, args=(lambda: seen.append(1),)) for _ in range(nthreads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    started = sum(thread.name == "dldist-completion" for thread in threading.enumerate())
    group.send(b"x", 0)
    group.close()
    del work
    return started


def call_after_rests(channel, port, rank, size):
    """Run one of several ranks on one core that rest until the engines' threads monitor the links.

    Return the CPU time of the calls in this thread and in all other threads.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    caller = others = 0.0
    with dldist.Group(dldist.TCPStore("127.0.0.1", port), rank, size, timeout=20) as group:
        for _ in range(5):
            time.sleep(0.1)
            group.barrier()
            own, whole = time.thread_time(), time.process_time()
            for _ in range(200):
                group.barrier()
            own, whole = time.thread_time() - own, time.process_time() - whole
            caller, others = caller + own, others + whole - own
    return caller, others
