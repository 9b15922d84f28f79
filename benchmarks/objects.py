"""Compare the memory and time of object calls by dldist and PyTorch (Gloo), in paired rounds.

    python benchmarks/objects.py                   # an array of 256 MB, and small objects
    python benchmarks/objects.py --megabytes 64 --rounds 3 --json out.json

Memory is a call's maximum beyond the memory before it, on the sending and the receiving rank
(including the new array): "traced" by Python's tracemalloc, which does not see torch's own
allocations, and "resident", the kernel's peak. Times are medians on the receiver; ratios are
medians of paired rounds. Without PyTorch, only dldist is measured.
"""

import argparse
import ctypes
import gc
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import time
import tracemalloc

HOST = "127.0.0.1"
CALLS = ("broadcast", "send", "all_gather")
SMALL_CALLS = 200


# -- the two libraries: calls that return the object -----------------------------------------------


class Ours:
    def __init__(self, port, rank, serializer):
        import dldist

        self.group = dldist.Group(dldist.TCPStore(HOST, port), rank, 2, name=serializer)
        self.serializer = serializer

    def call(self, name, obj):
        from dldist import World

        rank, how = self.group.rank, {"serializer": self.serializer}
        if name == "broadcast":
            return World.broadcast_object(self.group, obj, **how)
        if name == "all_gather":
            return World.all_gather_object(self.group, obj, **how)[0]
        return World.send_object(self.group, obj, 1, **how) if rank == 0 else World.recv_object(self.group, 0, **how)

    def barrier(self):
        self.group.barrier()

    def close(self):
        self.group.close()


class Torch:
    def __init__(self, port, rank, _serializer):
        import torch.distributed as dist

        self.dist = dist
        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://{HOST}:{port}", rank=rank, world_size=2)

    def call(self, name, obj):
        objects = [obj]
        if name == "broadcast":
            self.dist.broadcast_object_list(objects, src=0)
        elif name == "all_gather":
            objects = [None, None]
            self.dist.all_gather_object(objects, obj)
        elif self.rank == 0:
            self.dist.send_object_list(objects, dst=1)
        else:
            self.dist.recv_object_list(objects, src=0)
        return objects[0]

    def barrier(self):
        self.dist.barrier()

    def close(self):
        self.dist.destroy_process_group()


LIBRARIES = {"pickle": Ours, "safe": Ours, "torch": Torch}


# -- one rank --------------------------------------------------------------------------------------


def status_bytes(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field + ":")) * 1024


def measure_memory(library, name, obj):
    """Return the bytes traced by Python, and resident."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    library.barrier()
    tracemalloc.start()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # reset the peak
    before = status_bytes("VmRSS")
    result = library.call(name, obj)
    resident = status_bytes("VmHWM") - before
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    return traced, resident


def measure_time(library, name, obj, count):
    library.barrier()
    start = time.perf_counter()
    for _ in range(count):
        library.call(name, obj)
    return (time.perf_counter() - start) / count


def run_rank(rank, ports, args, results):
    import numpy

    libraries = {name: LIBRARIES[name](port, rank, name) for name, port in ports.items()}
    large = numpy.arange(args.megabytes * 1_000_000 // 8) if rank == 0 else None
    small = {"step": 1, "loss": 0.5, "name": "run-1", "values": [1, 2, 3]}
    measured = []
    for call in CALLS:
        for name, library in libraries.items():
            measured.append(("memory", call, name, measure_memory(library, call, large)))
        for size, obj, count in (("large", large, 1), ("small", small, SMALL_CALLS)):
            times = {name: [] for name in libraries}
            for _ in range(args.rounds):
                for name, library in libraries.items():
                    times[name].append(measure_time(library, call, obj, count))
            measured += [(size, call, name, values) for name, values in times.items()]
    for library in libraries.values():
        library.close()
    results.put((rank, measured))


# -- the parent ------------------------------------------------------------------------------------


def open_ports(names):
    """Return a port for each library, and the objects that must be kept alive."""
    import socket

    import dldist

    store = dldist.TCPStore(HOST, 0, is_master=True)
    ports = dict.fromkeys(names, store.port)
    if "torch" in ports:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            ports["torch"] = probe.getsockname()[1]
    return ports, store


def run_ranks(args):
    names = [name for name in LIBRARIES if name != "torch" or importlib.util.find_spec("torch")]
    ports, store = open_ports(names)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=run_rank, args=(rank, ports, args, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        measured = dict(results.get(timeout=600) for _ in ranks)
    finally:
        for process in ranks:
            process.join(10)
            if process.is_alive():
                process.kill()
    del store
    return measured


def report(measured, args):
    rows = []
    sent, received = measured[0], measured[1]
    print(f"{args.megabytes} MB array of NumPy, two processes of one host; memory in MB\n")
    print("| call | library | sender traced | resident | receiver traced | resident |\n| --- | --- | --- | --- | --- | --- |")
    for (kind, call, name, mine), (_, _, _, theirs) in zip(sent, received, strict=True):
        if kind == "memory":
            print(f"| {call} | {name} | " + " | ".join(f"{value / 1e6:.0f}" for value in (*mine, *theirs)) + " |")
            rows.append({"kind": kind, "call": call, "library": name, "sender": mine, "receiver": theirs})
    print("\n| call | object | library | time | torch / ours |\n| --- | --- | --- | --- | --- |")
    torch_times = {(kind, call): times for kind, call, name, times in received if name == "torch"}
    for kind, call, name, times in received:
        if kind != "memory":
            peers = torch_times.get((kind, call), [])
            ratio = statistics.median(a / b for a, b in zip(peers, times, strict=True)) if peers else float("nan")
            median = statistics.median(times)
            text = f"{median * 1e3:.0f} ms" if kind == "large" else f"{median * 1e6:.0f} us"
            print(f"| {call} | {kind} | {name} | {text} | {ratio:.1f} |")
            rows.append({"kind": kind, "call": call, "library": name, "times": times, "ratio": ratio})
    return {"benchmark": "objects", "megabytes": args.megabytes, "rounds": args.rounds, "rows": rows,
            "cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    figures = report(run_ranks(args), args)
    if args.json:
        with open(args.json, "w", encoding="ascii") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
