"""One rank of dldist, torch's Gloo or mpi4py, controlled by benchmarks/collectives.py.

    rank.py LIBRARY SOCKET RANK SIZE STORE_FILE

For mpi4py, RANK and SIZE are ignored, and STORE_FILE is the name that its MPI must report.

The rank connects to the driver's Unix socket and sends `hello RANK PID VERSION`. Between commands
it blocks in a read. Commands and replies are lines (`error REASON` is a reply to any):

    prepare SLOT OP DTYPE NBYTES   allocates buffers, runs OP once, checks the result: `ok`,
                                   `wrong WHERE`, or `no REASON` if the library lacks the operation
    run SLOT NBATCHES BATCH        an untimed call, a barrier, then NBATCHES x BATCH calls:
                                   `times NS NS ...`, one number per batch
    steps SLOT NSTEPS WORK_NS      an untimed call, a barrier, then NSTEPS times WORK_NS of work and
                                   a call: `steps CPU BEGIN END BEGIN END ...`, in ns: CPU time of
                                   all calls, and times of the host's monotonic clock
    finish SLOT                    frees the buffers: `ok`

A slot holds one prepared operation; its name selects the memory of the buffers: `private` (as the
array library allocates) or `arena` (dldist's shared memory). In `plan`, private buffers belong to a
plan, which is called. rank.c implements the same protocol in C.
"""

import os
import socket
import sys
import time

import numpy

MIB = 1 << 20
IN_PLACE = ("all_reduce", "broadcast", "barrier", "scan", "exscan")
PAIR = ("sendrecv", "stream", "probe", "wait_any")

# Compiled per operation with the call in the source, as in timeit, so that the loop has nothing
# else.
BLOCK = """
def block(nbatches, batch):
    marks = [clock()]
    for _ in repeat(None, nbatches):
        for _ in repeat(None, batch):
            {call}
        marks.append(clock())
    return marks

def steps(nsteps, work_ns):
    marks, cpu_ns = [], 0
    end = clock()
    for _ in repeat(None, nsteps):
        until = end + work_ns
        while clock() < until:
            pass
        before = cpu_clock()
        begin = clock()
        {call}
        end = clock()
        cpu_ns += cpu_clock() - before
        marks += begin, end
    return [cpu_ns, *marks]
"""


class NotOffered(Exception):
    """The library does not support the operation, or not for this dtype."""


# -- data ------------------------------------------------------------------------------------------


def pattern(rank, index):
    """Return small integers, exact in every dtype and every sum."""
    return rank + 1 + index % 7


def expected(op, rank, size, index, count):
    """Return the expected elements at `index` of a result of `count` elements; None if the rank has
    no result."""
    total = size * (size + 1) // 2
    if op == "all_reduce":
        return total + size * (index % 7)
    if op == "broadcast":
        return pattern(0, index)
    if op == "all_gather":
        part = count // size
        return pattern(index // part, index % part)
    if op == "reduce_scatter":
        return total + size * ((rank * count + index) % 7)
    if op == "all_to_all":
        part = count // size
        return pattern(index // part, rank * part + index % part)
    if op in ("scan", "exscan"):
        nranks = rank + (op == "scan")
        return None if nranks == 0 else nranks * (nranks + 1) // 2 + nranks * (index % 7)
    if op in ("sendrecv", "probe", "wait_any") and rank < 2:
        return pattern(1 - rank, index)
    if op == "stream" and rank == 1:
        return pattern(0, index)
    return None


class Array:
    """A buffer as an object that the library accepts and as a NumPy array (bfloat16 as words)."""

    def __init__(self, native, words, dtype):
        self.native, self.words, self.dtype = native, words, dtype

    def write(self, begin, values):
        if self.dtype == "bfloat16":
            values = (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)
        self.words[begin : begin + len(values)] = values

    def read(self, begin, end):
        values = self.words[begin:end]
        if self.dtype == "bfloat16":
            values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
        return values.astype(numpy.int64)


def ranges(count):
    for begin in range(0, count, MIB):
        yield begin, min(begin + MIB, count)


def fill(array, rank):
    for begin, end in ranges(len(array.words)):
        array.write(begin, pattern(rank, numpy.arange(begin, end)))


def find_wrong(array, op, rank, size):
    """Return None if the result is right, else the position of an error."""
    count = len(array.words)
    for begin, end in ranges(count):
        want = expected(op, rank, size, numpy.arange(begin, end), count)
        if want is None:
            return None
        wrong = numpy.flatnonzero(array.read(begin, end) != want)
        if len(wrong):
            place = int(wrong[0])
            got = array.read(begin + place, begin + place + 1)[0]
            return f"element {begin + place} of {count} is {got}, not {want[place]}"
    return None


def words_type(dtype):
    return numpy.dtype(numpy.uint16 if dtype == "bfloat16" else dtype)


# -- libraries: the text of each call, and how they make arrays ------------------------------------


class Library:
    """`calls` has the source of each operation; x is the input or the in-place array, y the output,
    z a second output for wait_any. `names` are other names in these sources."""

    calls = {}
    pair_calls = {}
    names = {}
    slots = ("private",)

    def call(self, op, slot):
        offered = self.plans if slot == "plan" else self.pair_calls if op in PAIR else self.calls
        if op not in offered:
            raise NotOffered(f"unsupported: {op} as a plan" if slot == "plan" else f"unsupported: {op}")
        if op not in PAIR:
            return offered[op]
        return offered[op][self.rank] if self.rank < 2 else "pass"


TAKE_TWO = "works = [group.irecv(y, 1 - rank), group.irecv(z, 1 - rank, 1)]; works[wait_any(works)] = None; wait_any(works)"
MPI_TAKE_TWO = "works = [group.Irecv(y, 1 - rank), group.Irecv(z, 1 - rank, 1)]; wait_any(works); wait_any(works)"


class Dldist(Library):
    calls = {
        "all_reduce": "group.all_reduce(x)",
        "broadcast": "group.broadcast(x, 0)",
        "all_gather": "group.all_gather_single(y, x)",
        "reduce_scatter": "group.reduce_scatter_single(y, x)",
        "all_to_all": "group.all_to_all_single(y, x)",
        "barrier": "group.barrier()",
        "scan": "group.scan(x)",
        "exscan": "group.exscan(x)",
    }
    pair_calls = {
        "sendrecv": ("group.send(x, 1); group.recv(y, 1)", "group.recv(y, 0); group.send(x, 0)"),
        "stream": ("group.send(x, 1)", "group.recv(y, 0)"),
        "probe": ("group.send(x, 1); group.probe(1); group.recv(y, 1)", "group.probe(0); group.recv(y, 0); group.send(x, 0)"),
        "wait_any": (f"group.send(x, 1); group.send(x, 1, 1); {TAKE_TWO}", f"{TAKE_TWO}; group.send(x, 0); group.send(x, 0, 1)"),
    }
    slots = ("private", "arena", "plan")
    # The expression is evaluated once; the loop calls its value.
    plans = {
        "all_reduce": "group.plan.all_reduce(x)",
        "broadcast": "group.plan.broadcast(x, 0)",
        "all_gather": "group.plan.all_gather_single(y, x)",
        "reduce_scatter": "group.plan.reduce_scatter_single(y, x)",
        "all_to_all": "group.plan.all_to_all_single(y, x)",
        "barrier": "group.plan.barrier()",
    }

    def __init__(self, rank, size, path):
        import dldist

        self.rank, self.size = rank, size
        self.version = dldist.__version__
        self.group = dldist.World(dldist.FileStore(path, size), rank, size, timeout=60)
        self.barrier = self.group.barrier
        self.names = {"wait_any": getattr(dldist, "wait_any", None)}

    def array(self, dtype, count, slot):
        if slot == "arena":
            words = numpy.frombuffer(self.group.empty((count,), dtype=words_type(dtype).name), words_type(dtype))
        else:
            words = numpy.empty(count, words_type(dtype))
        if dtype != "bfloat16":
            return Array(words, words, dtype)
        import torch

        return Array(torch.from_numpy(words.view(numpy.int16)).view(torch.bfloat16), words, dtype)

    def close(self):
        self.group.close()


class Gloo(Library):
    calls = {
        "all_reduce": "group.all_reduce(x)",
        "broadcast": "group.broadcast(x, 0)",
        "all_gather": "group.all_gather_into_tensor(y, x)",
        "reduce_scatter": "group.reduce_scatter_tensor(y, x)",
        "all_to_all": "group.all_to_all_single(y, x)",
        "barrier": "group.barrier()",
    }
    pair_calls = {op: Dldist.pair_calls[op] for op in ("sendrecv", "stream")}

    def __init__(self, rank, size, path):
        from datetime import timedelta

        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self.rank, self.size, self.torch = rank, size, torch
        self.version = f"torch {torch.__version__}"
        self.group = torch.distributed
        self.group.init_process_group(
            "gloo", init_method=f"file://{path}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
        )
        self.barrier = self.group.barrier

    def array(self, dtype, count, slot):
        tensor = self.torch.empty(count, dtype=getattr(self.torch, dtype))
        words = tensor.view(self.torch.uint16) if dtype == "bfloat16" else tensor
        return Array(tensor, words.numpy(), dtype)

    def close(self):
        self.group.destroy_process_group()


class Mpi4py(Library):
    calls = {
        "all_reduce": "group.Allreduce(IN_PLACE, x)",
        "broadcast": "group.Bcast(x, 0)",
        "all_gather": "group.Allgather(x, y)",
        "reduce_scatter": "group.Reduce_scatter_block(x, y)",
        "all_to_all": "group.Alltoall(x, y)",
        "barrier": "group.Barrier()",
        "scan": "group.Scan(IN_PLACE, x)",
        "exscan": "group.Exscan(IN_PLACE, x)",
    }
    pair_calls = {
        "sendrecv": ("group.Send(x, 1); group.Recv(y, 1)", "group.Recv(y, 0); group.Send(x, 0)"),
        "stream": ("group.Send(x, 1)", "group.Recv(y, 0)"),
        "probe": ("group.Send(x, 1); group.Probe(1); group.Recv(y, 1)", "group.Probe(0); group.Recv(y, 0); group.Send(x, 0)"),
        "wait_any": (f"group.Send(x, 1); group.Send(x, 1, 1); {MPI_TAKE_TWO}", f"{MPI_TAKE_TWO}; group.Send(x, 0); group.Send(x, 0, 1)"),
    }

    def __init__(self, rank, size, path):
        import mpi4py
        from mpi4py import MPI

        self.group = MPI.COMM_WORLD
        self.rank, self.size = self.group.Get_rank(), self.group.Get_size()
        library = MPI.Get_library_version().split(",")[0].split("\n")[0]
        if not library.startswith(path):
            sys.exit(f"the library is not {path} but {library}")
        self.version = f"{mpi4py.__version__} on {library}"
        self.barrier = self.group.Barrier
        self.names = {"IN_PLACE": MPI.IN_PLACE, "wait_any": MPI.Request.Waitany}

    def array(self, dtype, count, slot):
        if dtype in ("float16", "bfloat16"):
            raise NotOffered(f"mpi4py has no {dtype}")
        words = numpy.empty(count, words_type(dtype))
        return Array(words, words, dtype)

    def close(self):
        pass


LIBRARIES = {"dldist": Dldist, "gloo": Gloo, "mpi4py": Mpi4py}


# -- commands --------------------------------------------------------------------------------------


class Task:
    """A prepared operation with its buffers."""

    def __init__(self, library, slot, op, dtype, nbytes):
        if slot not in library.slots:
            raise NotOffered(f"no {slot} memory")
        count = nbytes // words_type(dtype).itemsize
        part = count // library.size
        self.library, self.op = library, op
        self.x = self.y = self.z = None
        if op != "barrier":
            self.x = library.array(dtype, part if op == "all_gather" else count, slot)
            fill(self.x, library.rank)
        if op not in IN_PLACE:
            self.y = library.array(dtype, part if op == "reduce_scatter" else count, slot)
            self.y.write(0, numpy.full(len(self.y.words), 99))
        if op == "wait_any":
            self.z = library.array(dtype, count, slot)
        self.block, self.steps = self.compile(slot)

    def compile(self, slot):
        from itertools import repeat

        names = {"group": self.library.group, "rank": self.library.rank, "repeat": repeat, **self.library.names}
        names |= {"clock": time.perf_counter_ns, "cpu_clock": time.process_time_ns}
        names |= {name: array and array.native for name, array in zip("xyz", (self.x, self.y, self.z))}
        call = self.library.call(self.op, slot)
        if slot == "plan":
            names["plan"], call = eval(call, names), "plan()"
        exec(BLOCK.format(call=call), names)
        return names["block"], names["steps"]

    def check(self):
        """Run once and check; leave zeros, whose sums stay zeros."""
        try:
            self.block(1, 1)
        except (AttributeError, NotImplementedError) as error:
            raise NotOffered(str(error)) from error
        result = self.y or self.x
        wrong = result and find_wrong(result, self.op, self.library.rank, self.library.size)
        if self.x:
            self.x.words[:] = 0
        return f"wrong {wrong}" if wrong else "ok"

    def run(self, nbatches, batch):
        self.block(1, 1)
        self.library.barrier()
        marks = self.block(nbatches, batch)
        return "times " + " ".join(str(after - before) for before, after in zip(marks, marks[1:]))

    def run_steps(self, nsteps, work_ns):
        self.block(1, 1)
        self.library.barrier()
        return "steps " + " ".join(map(str, self.steps(nsteps, work_ns)))


def obey(words, library, tasks):
    match words:
        case ["prepare", slot, op, dtype, nbytes]:
            tasks.pop(slot, None)
            tasks[slot] = Task(library, slot, op, dtype, int(nbytes))
            return tasks[slot].check()
        case ["run", slot, nbatches, batch]:
            return tasks[slot].run(int(nbatches), int(batch))
        case ["steps", slot, nsteps, work_ns]:
            return tasks[slot].run_steps(int(nsteps), int(work_ns))
        case ["finish", slot]:
            tasks.pop(slot, None)
            return "ok"
    return "error unknown command"


def answer(line, library, tasks):
    try:
        return obey(line.split(), library, tasks)
    except NotOffered as reason:
        return f"no {' '.join(str(reason).split())}"
    except Exception as error:
        return f"error {type(error).__name__}: {' '.join(str(error).split())}"


def main():
    name, address, rank, size, path = sys.argv[1:6]
    library = LIBRARIES[name](int(rank), int(size), path)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw") as file:
            print("hello", library.rank, os.getpid(), library.version, file=file, flush=True)
            tasks = {}
            for line in file:
                print(answer(line, library, tasks), file=file, flush=True)
            tasks.clear()
    library.close()


if __name__ == "__main__":
    main()
