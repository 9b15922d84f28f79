"""Workers of the ranks of test_hosts.py. See procs.py. One process is one rank.

Results are compared here. The parent receives descriptions of the errors and checks them.
"""

import array
import functools
import hashlib
import os
import random
import struct
import time

import dldist
import dlpack_producer
import oracle


def rank_main(channel, job, rank, size, address, job_args, options):
    """Run one rank. Rank 0 serves the store and sends its port to the parent, which forwards it."""
    if rank == 0:
        store = dldist.TCPStore(address, 0, is_master=True, timeout=30, wait_for_workers=False)
        channel.send(store.port)
        channel.recv()
    else:
        store = dldist.TCPStore(address, channel.recv(), timeout=30)
    group = dldist.Group(store, rank, size, **{"timeout": 20, "connect_timeout": 20, **options})
    result = job(channel, group, *job_args)
    group.close(timeout=5)
    return result


def start(channel, job, *args):
    return rank_main(channel, globals()[job], *args)


def describe(error):
    """Return an error as the parent receives it, with the time (by the machine-wide clock)."""
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "rank": getattr(error, "rank", None),
        "host": getattr(error, "host", None),
        "pid": getattr(error, "pid", None),
        "at": time.monotonic(),
    }


def attempt(function, *args, **options):
    """Return None on success, or a description of the error."""
    began = time.monotonic()
    try:
        function(*args, **options)
    except dldist.DistError as error:
        return {**describe(error), "took": time.monotonic() - began}
    return None


def members(group):
    """Return each member's host, pid and transport, before any member leaves."""
    found = [(member.host, member.pid, member.transport) for member in group.members]
    group.barrier()
    return found


def every_collective(_channel, group):
    cases = oracle.all_cases(group.size)
    for case in cases:
        oracle.run(group, case)
    for message in range(4):
        exchange_all(group, 1000 * message)
    group.monitored_barrier()
    shuffled = random.Random(5).sample(cases, 60)
    runs = [oracle.start(group, case, async_op=True) for case in shuffled]
    for run in runs:
        run.work.wait()
        run.check()
    return members(group)


def exchange_all(group, count):
    """Send a message from each rank to each rank, also itself; receive in the opposite order."""
    inputs = [array.array("i", [group.rank * 1000 + dst] * count) for dst in range(group.size)]
    outputs = [array.array("i", [0] * count) for _ in range(group.size)]
    works = [group.isend(inputs[dst], dst, tag=dst) for dst in range(group.size)]
    works += [group.irecv(outputs[src], src, tag=group.rank) for src in reversed(range(group.size))]
    for work in works:
        work.wait()
    for src, output in enumerate(outputs):
        assert output == array.array("i", [src * 1000 + group.rank] * count), f"message from {src}"


def large_blocks(_channel, group, counts):
    """Run collectives large enough for pieces, segments and several carriers."""
    for number, count in enumerate(counts):
        for op in oracle.COLLECTIVES:
            root = number % group.size
            oracle.run(group, oracle.Case(op, "f", count, root=root, seed=number))
            if op in oracle.UNEVEN:
                blocks = oracle.uneven(op, group.size)
                oracle.run(group, oracle.Case(op, "h", counts=blocks, root=root, seed=number))


def integer_results(_channel, group):
    """Return a hash of the results of integer reductions."""
    digest = hashlib.sha256()
    for case in oracle.all_cases(group.size):
        if case.code in "bhiqBHIQ":
            run = oracle.start(group, case)
            run.check()
            for memory in run.memories:
                digest.update(memory.data)
    return digest.hexdigest()


def leave_after_the_last_call(_channel, group, times):
    """A rank that has done its part of a rooted operation may leave; the other ranks must still
    receive its data."""
    for number in range(times):
        child = group.split(list(range(group.size)))
        op = ("reduce", "gather", "scatter", "broadcast")[number % 4]
        count = (10, 3000, 200_000)[number % 3]
        oracle.run(child, oracle.Case(op, "i", count, root=number // 4 % group.size, seed=number))
        child.close(timeout=10)


@functools.cache
def noise(rank, count, code):
    """Return floats whose sum depends on the order. The parent computes the same values."""
    dice = random.Random(f"{rank} {count}")
    values = [dice.uniform(-1, 1) * 2.0 ** dice.randrange(-12, 12) for _ in range(count)]
    if code == "bf16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"={count}{code}", *values)


def tensor_of(memory, code):
    if code == "bf16":
        return dlpack_producer.Producer(memory, [len(memory) // 2], dtype=(dlpack_producer.BFLOAT, 16))
    return memoryview(memory).cast(code)


def float_bits(_channel, group, counts, codes):
    """Return {(code, count): bytes} of float sums, also computed by reduce to every root and by
    reduce_scatter."""
    results = {}
    for count in counts:
        for code in codes:
            memory = bytearray(noise(group.rank, count, code))
            group.all_reduce(tensor_of(memory, code))
            results[code, count] = bytes(memory)
            for root in range(group.size):
                reduced = bytearray(noise(group.rank, count, code))
                group.reduce(tensor_of(reduced, code), root=root)
                if root == group.rank:
                    assert reduced == memory, f"reduce to {root} of {count} {code} is not all_reduce"
    return results


def float_bits_of_all_reduce(_channel, group, counts, codes):
    results = {}
    for count in counts:
        for code in codes:
            memory = bytearray(noise(group.rank, count, code))
            group.all_reduce(tensor_of(memory, code))
            results[code, count] = bytes(memory)
    return results


def all_reduce_nbytes(channel, group, count, times):
    """Between two messages of the parent, run exactly `times` all_reduces of `count` floats."""
    tensor = array.array("f", [1.0]) * count
    group.all_reduce(tensor)
    channel.send("ready")
    channel.recv()
    for _ in range(times):
        group.all_reduce(tensor)
    channel.send("done")
    channel.recv()


def all_reduce_until_error(channel, group, timeout, count=100_000):
    """Run all_reduces until one fails, alternating between the group and another of the same
    members; then once more on both.

    If a cut interrupts an all_reduce, it may be complete on some ranks only. These ranks are one
    call ahead, so the next call of the other ranks must be the loop's next call.
    """
    other = group.split(list(range(group.size)))
    channel.send({"pid": os.getpid()})
    groups = [group, other]
    deadline = time.monotonic() + 30
    calls = 0
    while time.monotonic() < deadline:
        failed = groups[calls % 2]
        calls += 1
        error = attempt(failed.all_reduce, array.array("i", [1]) * count, timeout=timeout)
        if error is not None:
            break
        if calls == 2:
            channel.send("in the middle")
    second = attempt(groups[calls % 2].all_reduce, array.array("i", [1]) * count, timeout=timeout)
    third = attempt(failed.barrier, timeout=timeout)
    return {"calls": calls, "first": error, "other": second, "again": third}


def idle_then_barrier(channel, group, timeout):
    """Run one operation, stay idle until the parent's message, and then call a barrier."""
    oracle.run(group, oracle.Case("all_reduce", "i", 1000))
    channel.send({"pid": os.getpid()})
    channel.recv()
    return attempt(group.barrier, timeout=timeout)


def message_to_the_last(channel, group, timeout):
    """Do nothing until the parent's message; then send the first message to the last rank."""
    channel.send({"pid": os.getpid()})
    channel.recv()
    return attempt(group.send, bytearray(100), group.size - 1, timeout=timeout)


def run_sample_of_cases(_channel, group):
    for case in oracle.all_cases(group.size)[::20]:
        oracle.run(group, case)
    exchange_all(group, 1000)
    return os.getpid(), members(group)


def large_message(channel, group, nbytes, timeout):
    """Send a large message from rank 0 to rank 1, after a small all_reduce."""
    oracle.run(group, oracle.Case("all_reduce", "i", 1))
    if group.rank == 0:
        return attempt(group.send, bytearray(nbytes), 1, timeout=timeout)
    return attempt(group.recv, bytearray(nbytes), 0, timeout=timeout + 2)


def call_during_cut(channel, group, timeout):
    """Start an operation while the link is cut."""
    oracle.run(group, oracle.Case("all_reduce", "i", 1000))
    channel.send("ready")
    channel.recv()
    began = time.monotonic()
    channel.send("under way")
    error = attempt(oracle.run, group, oracle.Case("all_reduce", "d", 50_000, seed=3), timeout=timeout)
    return error, time.monotonic() - began


def monitored_barrier_error(channel, group, timeout):
    oracle.run(group, oracle.Case("all_reduce", "i", 1000))
    channel.send("ready")
    channel.recv()
    return attempt(group.monitored_barrier, timeout=timeout, wait_all_ranks=True)


def listening(_channel, group):
    """Return the (address, port) pairs on which this process listens, as the kernel writes them."""
    oracle.run(group, oracle.Case("all_to_all", "i", 1000))
    sockets = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            sockets.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    address, port = fields[1].rsplit(":", 1)
                    found.append((address, int(port, 16)))
    return found, members(group)


# ---- one-sided access


def _refusal(call, *args):
    try:
        call(*args)
    except Exception as error:
        return error
    raise AssertionError("it was not refused")


def one_sided(channel, group):
    """Puts, gets and signals must reach ranks of all hosts; views must reach ranks of the same
    host. Return these ranks."""
    from dldist import symmetric_memory

    size, own = group.size, group.rank
    slot = 1 << 20
    x = group.empty(size * slot, "uint8")
    memory = symmetric_memory.rendezvous(x, group)
    other, before = (own + 1) % size, (own - 1) % size
    for rank in range(size):
        memory.put(bytes([own + 1]) * slot, rank, own * slot, 1)
    for rank in range(size):
        memory.wait_signal(rank, 1)
    assert bytes(x) == b"".join(bytes([rank + 1]) * slot for rank in range(size))
    memory.barrier(3)  # the other ranks have also received the puts
    targets = [bytearray(100) for _ in range(size)]
    works = [memory.get(target, rank, 3 * slot // 2, async_op=True) for rank, target in enumerate(targets)]
    for work in works:
        work.wait()
    assert targets == [bytes([2]) * 100] * size
    memory.barrier(3)
    for turn in range(100):  # many small puts, in order
        memory.put(bytes([turn]), other, turn)
    memory.signal(other, 2)
    memory.wait_signal(before, 2)
    assert bytes(x)[:100] == bytes(range(100))
    memory.put_signal(other, 4)
    error = _refusal(memory.put_signal, other, 4, 300)
    assert isinstance(error, dldist.DistTimeoutError) and error.rank == other, error
    memory.flush()  # it has also been restored there
    group.barrier()
    memory.wait_signal(before, 4)
    assert not memory.take_signal(before, 4)
    hosts = [member.host for member in group.members]
    for rank in range(size):
        if hosts[rank] != hosts[own]:
            error = _refusal(memory.get_buffer, rank, [1], "uint8")
            assert f"the memory of rank {rank} is on another host ({hosts[rank]}): use put() and get()" in str(error)
            assert memory.buffer_ptrs[rank] == memory.signal_pad_ptrs[rank] == 0
        else:
            assert bytes(memory.get_buffer(rank, [1], "uint8", slot)) == b"\x02"
    memory.flush()
    memory.barrier()
    return [rank for rank in range(size) if memory.buffer_ptrs[rank] != 0]


def one_sided_windows(channel, group):
    """c10d's windows must report how each rank is reached."""
    size, own = group.size, group.rank
    x = array.array("i", [0] * (8 + own))  # no shared memory: messages are used everywhere
    window = dldist.Window(group, x)
    kinds = [int(window.get_attr(rank).access_type) for rank in range(size)]
    other = (own + 1) % size
    window.put(array.array("i", [own] * 4), other, 4 + other, async_op=True).wait()
    window.signal(other)
    window.wait_signal((own - 1) % size)
    assert list(x) == [0] * (4 + own) + [(own - 1) % size] * 4
    window.tensor_deregister()
    return kinds


def wait_for_the_dead(channel, group):
    """Rank 1 is killed while rank 0 waits for its signal and for its memory."""
    from dldist import symmetric_memory

    memory = symmetric_memory.rendezvous(group.empty(8), group)
    memory.barrier()
    channel.send("ready")
    if group.rank == 1:
        time.sleep(60)
    failure = attempt(memory.wait_signal, 1)
    channel.send(failure)
    later = attempt(memory.put, bytes(4), 1)
    assert later is not None and later["rank"] == 1
    os._exit(0)
