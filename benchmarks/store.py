"""Compare TCPStore's speed for dldist and PyTorch (libuv), in one run of paired rounds.

    python benchmarks/store.py            # all operations, 1, 2, 8 and 64 client processes
    python benchmarks/store.py --threads  # client threads of one process, each with its client
    python benchmarks/store.py --quick --json out.json

Each server runs in its own process. The clients live for the whole run; in every round they use one
store and then the other (A B A B ...), so that disturbances affect both. The ratio is the median
over the paired rounds. A round lasts a fixed time and ends, for each client, with one `add` on its
connection, so that buffered sets are completed before the clock stops. Without PyTorch, only dldist
is measured.
"""

import argparse
import array
import importlib.util
import json
import os
import platform
import statistics
import sys
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Pipe
from multiprocessing.connection import wait as wait_for_connections

HOST = "127.0.0.1"
OPERATIONS = ("set", "get", "add", "wait", "multi_get")
TIMEOUT = timedelta(seconds=60)
START_DELAY_S = 0.03


# -- the two libraries -----------------------------------------------------------------------------


def open_ours(port, is_master=False):
    import dldist

    return dldist.TCPStore(HOST, port, is_master=is_master, timeout=TIMEOUT)


def open_torch(port, is_master=False):
    from torch.distributed import TCPStore

    return TCPStore(HOST, port, is_master=is_master, timeout=TIMEOUT, wait_for_workers=False, use_libuv=True)


LIBRARIES = {"ours": open_ours, "torch": open_torch}


def load(library):
    """Import the library once, before the processes are forked."""
    if library == "torch":
        import torch.distributed  # noqa: F401
    else:
        import dldist  # noqa: F401


def version(library):
    module = sys.modules["torch" if library == "torch" else "dldist"]
    return getattr(module, "__version__", "?")


# -- processes -------------------------------------------------------------------------------------


class Process:
    """A forked process that runs serve(connection) and ends with its parent."""

    def __init__(self, serve):
        self.connection, theirs = Pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.connection.close()
                serve(theirs)
                status = 0
            except (EOFError, KeyboardInterrupt):
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()

    def ask(self, message):
        self.connection.send(message)
        return self.connection.recv()

    def close(self):
        self.connection.close()
        os.waitpid(self.pid, 0)


def serve_store(library):
    def serve(connection):
        store = LIBRARIES[library](0, is_master=True)
        connection.send(store.port)
        connection.recv()

    return serve


def measure(store, operation, name, value, begin, duration):
    """Run one client's round: begin and end in monotonic time, the number of operations, latencies
    in ns."""
    key = f"{name}/{operation}"
    common = f"common/{operation}"
    calls = {
        "set": (store.set, (key, value)),
        "get": (store.get, (common,)),
        "add": (store.add, (key, 1)),
        "wait": (store.wait, ([common],)),
        "multi_get": (store.multi_get, (["common/get", "common/add", "common/wait", common],)),
    }
    call, arguments = calls[operation]
    latencies = array.array("q")
    append, clock = latencies.append, time.monotonic_ns
    while clock() < begin:
        time.sleep(max(0.0, (begin - clock()) / 2e9))
    deadline = begin + int(duration * 1e9)
    before = clock()
    while before < deadline:
        call(*arguments)
        after = clock()
        append(after - before)
        before = after
    if operation == "set":
        store.add(f"{name}/done", 1)
    return clock(), latencies.tobytes()


def client_of(index, nthreads, ports):
    """Return a function that serves rounds, with one client per thread and library."""

    def serve(connection):
        stores = {
            library: [LIBRARIES[library](port) for _ in range(nthreads)] for library, port in ports.items()
        }
        connection.send("ready")
        while True:
            library, operation, nactive, value, begin, duration = connection.recv()
            results = []
            threads = [
                threading.Thread(
                    target=lambda t: results.append(
                        measure(stores[library][t], operation, f"{index}.{t}", value, begin, duration)
                    ),
                    args=(thread,),
                )
                for thread in range(1, nactive)
            ]
            for thread in threads:
                thread.start()
            results.append(measure(stores[library][0], operation, f"{index}.0", value, begin, duration))
            for thread in threads:
                thread.join()
            connection.send(results)

    return serve


# -- rounds ----------------------------------------------------------------------------------------


def run_round(clients, nthreads, library, operation, value, duration):
    """Return the operations per second of all clients, and their latencies."""
    begin = time.monotonic_ns() + int(START_DELAY_S * 1e9)
    for client in clients:
        client.connection.send((library, operation, nthreads, value, begin, duration))
    results = []
    waiting = {client.connection for client in clients}
    while waiting:
        for connection in wait_for_connections(waiting):
            results.extend(connection.recv())
            waiting.discard(connection)
    latencies = array.array("q")
    for _, part in results:
        latencies.frombytes(part)
    seconds = (max(end for end, _ in results) - begin) / 1e9
    return len(latencies) / seconds, latencies


def percentile(ordered, fraction):
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] / 1e3 if ordered else float("nan")


def summarise(rates, latencies):
    ordered = sorted(latencies)
    return {
        "ops_per_s": statistics.median(rates),
        "ops_per_s_rounds": rates,
        "p50_us": percentile(ordered, 0.50),
        "p90_us": percentile(ordered, 0.90),
        "p99_us": percentile(ordered, 0.99),
    }


def run_pair(clients, nthreads, libraries, operation, args):
    """Run all rounds of one operation; return {library: summary} and the pairs' ratios."""
    rates = {library: [] for library in libraries}
    latencies = {library: array.array("q") for library in libraries}
    value = b"x" * args.size
    for number in range(-1, args.rounds):  # the first is a warm-up
        for library in libraries:
            rate, part = run_round(clients, nthreads, library, operation, value, args.duration)
            if number >= 0:
                rates[library].append(rate)
                latencies[library].extend(part)
    summaries = {library: summarise(rates[library], latencies[library]) for library in libraries}
    ratios = [ours / theirs for ours, theirs in zip(rates.get("ours", []), rates.get("torch", []))]
    return summaries, ratios


def print_line(operation, nclients, summaries, ratios):
    line = f"{operation:>5} {nclients:>8}"
    for summary in summaries.values():
        line += "  {ops_per_s:>10,.0f} {p50_us:>8.1f} {p90_us:>8.1f} {p99_us:>8.1f}".format(**summary)
    if ratios:
        line += f"  {statistics.median(ratios):>6.2f}  ({min(ratios):.2f} .. {max(ratios):.2f})"
    print(line, flush=True)


def print_head(libraries):
    line = f"{'':>5} {'':>8}"
    for library in libraries:
        line += f"  {library + ': ops/s':>10} {'p50 us':>8} {'p90 us':>8} {'p99 us':>8}"
    if len(libraries) == 2:
        line += f"  {'ratio':>6}  (of paired rounds: least .. most)"
    print(line)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", default="1,2,8,64", help="numbers of clients (default %(default)s)")
    parser.add_argument("--operations", default=",".join(OPERATIONS), help="default %(default)s")
    parser.add_argument("--libraries", default="ours,torch", help="default %(default)s")
    parser.add_argument("--threads", action="store_true", help="clients are threads of one process")
    parser.add_argument("--size", type=int, default=8, help="bytes of a value (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="paired rounds (default %(default)s)")
    parser.add_argument("--duration", type=float, default=0.3, help="seconds a round (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="3 short rounds, at most 8 clients")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    args = parser.parse_args()
    args.clients = [int(number) for number in args.clients.split(",")]
    args.operations = args.operations.split(",")
    if not set(args.operations) <= set(OPERATIONS):
        parser.error(f"operations are {', '.join(OPERATIONS)}")
    if args.quick:
        args.rounds, args.duration = min(args.rounds, 3), min(args.duration, 0.15)
        args.clients = [number for number in args.clients if number <= 8]
    return args


def available(libraries):
    names = [name for name in libraries.split(",") if name in LIBRARIES]
    if "torch" in names and importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: only dldist is measured")
        names.remove("torch")
    return names


def main():
    args = parse_arguments()
    libraries = available(args.libraries)
    for library in libraries:
        load(library)
    servers = {library: Process(serve_store(library)) for library in libraries}
    processes = list(servers.values())
    try:
        ports = {library: server.connection.recv() for library, server in servers.items()}
        most = max(args.clients)
        nprocesses, nthreads = (1, most) if args.threads else (most, 1)
        clients = [Process(client_of(index, nthreads, ports)) for index in range(nprocesses)]
        processes += clients
        for client in clients:
            client.connection.recv()
        for library, port in ports.items():
            store = LIBRARIES[library](port)
            for operation in OPERATIONS:
                store.set(f"common/{operation}", b"x" * args.size)
            store.get("common/wait")
        report = run_all(clients, libraries, args)
    finally:
        # A process holds the pipes of earlier processes, so end the last one first.
        for process in reversed(processes):
            process.close()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


def run_all(clients, libraries, args):
    kind = "threads" if args.threads else "processes"
    versions = {library: version(library) for library in libraries}
    print(f"{args.rounds} paired rounds of {args.duration} s, {args.size} byte values, clients are {kind}, "
          f"{os.cpu_count()} CPUs, {', '.join(f'{k} {v}' for k, v in versions.items())}")
    print_head(libraries)
    results = []
    for nclients in args.clients:
        for operation in args.operations:
            active, nthreads = (clients, nclients) if args.threads else (clients[:nclients], 1)
            summaries, ratios = run_pair(active, nthreads, libraries, operation, args)
            print_line(operation, nclients, summaries, ratios)
            results.append(
                {
                    "operation": operation,
                    "clients": nclients,
                    "libraries": summaries,
                    "ratios": ratios,
                    "median_ratio": statistics.median(ratios) if ratios else None,
                }
            )
    return {
        "benchmark": "store",
        "clients_are": kind,
        "value_bytes": args.size,
        "rounds": args.rounds,
        "duration_s": args.duration,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
        "results": results,
    }


if __name__ == "__main__":
    main()
