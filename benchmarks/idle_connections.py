"""Cost of 10,000 idle connections, and of 10,000 waiters on one key, for a store's server.

    python benchmarks/idle_connections.py
    python benchmarks/idle_connections.py --connections 2000 --json out.json

The connections are plain sockets that perform the protocol's handshake, all held by this process;
each server runs in its own process. Measured are the time to connect all, the growth of the
server's resident memory, the time of an `add` with all connected, and, with every connection
waiting on one key, the time from `set` until the last is answered. dldist's and PyTorch's (libuv)
servers run in the same session; without PyTorch, only dldist's.

PyTorch's server looks up the name of every peer in the DNS and blocks until the answer. To exclude
the DNS from the measurement, everything runs in a network namespace in which the lookup fails
immediately. If the system does not allow namespaces (they need root, or user namespaces), or with
--host-network, the machine's network is used.
"""

import argparse
import ctypes
import fcntl
import json
import os
import resource
import select
import socket
import statistics
import struct
import subprocess
import sys
import time

from store import HOST, LIBRARIES, available

VALIDATE, SET, ADD, WAIT, PING = 0, 1, 4, 6, 13
HANDSHAKE = struct.pack("<BI", VALIDATE, 0x3C85F7CE) + struct.pack("<BI", PING, 1)
SPARE_DESCRIPTORS = 200


def raise_descriptor_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def enter_own_network():
    """Enter a network namespace; return the reason if that fails, else None."""
    libc = ctypes.CDLL(None, use_errno=True)
    newnet, newuser = 0x40000000, 0x10000000
    if libc.unshare(newnet) != 0 and libc.unshare(newuser | newnet) != 0:
        return os.strerror(ctypes.get_errno())
    set_flags, is_up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, set_flags, struct.pack("16sH14x", b"lo", is_up_and_running))
    return None


def serve(library):
    raise_descriptor_limit()
    store = LIBRARIES[library](0, is_master=True)
    print(store.port, flush=True)
    sys.stdin.read()


def string(value):
    return struct.pack("<Q", len(value)) + value


def connect(port):
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(HANDSHAKE)
    if connection.recv(4) != struct.pack("<I", 1):
        raise RuntimeError("the server does not answer the handshake")
    return connection


def add_latency_us(connection):
    """Return the median time of one request and its answer."""
    request = bytes([ADD]) + string(b"/n") + struct.pack("<q", 1)
    times = []
    for _ in range(300):
        start = time.perf_counter_ns()
        connection.sendall(request)
        connection.recv(8)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def wait_idle(pid, quiet_s=0.3, timeout_s=60):
    """Wait until the server has used no CPU time for `quiet_s`."""
    deadline = time.monotonic() + timeout_s
    last, since = cpu_ticks(pid), time.monotonic()
    while time.monotonic() - since < quiet_s:
        if time.monotonic() > deadline:
            raise RuntimeError("the server does not become idle")
        time.sleep(0.02)
        now = cpu_ticks(pid)
        if now != last:
            last, since = now, time.monotonic()


def release_all(connections, setter, round_number):
    """Yield the seconds from the set until every connection has an answer to read. Edge-triggered,
    so answers need not be read meanwhile."""
    key = f"/key{round_number}".encode()
    request = bytes([WAIT]) + struct.pack("<Q", 1) + string(key)
    poller = select.epoll()
    for connection in connections:
        poller.register(connection.fileno(), select.EPOLLIN | select.EPOLLET)
    for connection in connections:
        connection.sendall(request)
    yield  # resumed when all connections wait
    told = 0
    start = time.perf_counter()
    setter.sendall(bytes([SET]) + string(key) + string(b"1"))
    while told < len(connections):
        events = poller.poll(30, len(connections))
        if not events:
            raise RuntimeError(f"only {told} of {len(connections)} waiters were answered within 30 s")
        told += len(events)
    seconds = time.perf_counter() - start
    poller.close()
    for connection in connections:
        if connection.recv(64) != b"\0":
            raise RuntimeError("a waiter received an unexpected answer")
    yield seconds


def measure(library, nconnections, rounds):
    command = [sys.executable, os.path.abspath(__file__), "--serve", library]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    connections = []
    try:
        port = int(server.stdout.readline())
        setter = connect(port)
        alone_us = add_latency_us(setter)
        wait_idle(server.pid)
        rss = rss_bytes(server.pid)
        start = time.perf_counter()
        for _ in range(nconnections):
            connections.append(connect(port))
        connect_s = time.perf_counter() - start
        wait_idle(server.pid)
        idle_bytes = rss_bytes(server.pid) - rss
        beside_us = add_latency_us(setter)
        seconds, parked_bytes = [], 0
        for number in range(rounds):
            release = release_all(connections, setter, number)
            next(release)
            wait_idle(server.pid)
            parked_bytes = max(parked_bytes, rss_bytes(server.pid) - rss)
            seconds.append(next(release))
        start = time.perf_counter()
        for connection in connections:
            connection.close()
        connections.clear()
        wait_idle(server.pid)
        return {
            "connections": nconnections,
            "connect_s": connect_s,
            "server_bytes_idle": idle_bytes,
            "server_bytes_parked": parked_bytes,
            "server_bytes_after": rss_bytes(server.pid) - rss,
            "add_us_alone": alone_us,
            "add_us_beside": beside_us,
            "release_s": statistics.median(seconds),
            "release_s_rounds": seconds,
        }
    finally:
        for connection in connections:
            connection.close()
        server.kill()
        server.wait()


def print_result(library, result):
    count = result["connections"]
    print(f"{library}:")
    print(f"  connect all          {result['connect_s']:8.2f} s")
    for name, label in (("idle", "idle"), ("parked", "waiting"), ("after", "closed again")):
        nbytes = result[f"server_bytes_{name}"]
        print(f"  memory, {label:<12} {nbytes / 2**20:8.1f} MiB   ({nbytes / count:,.0f} bytes a connection)")
    print(f"  add with them        {result['add_us_beside']:8.1f} us   ({result['add_us_alone']:.1f} us without)")
    print(f"  last waiter done     {result['release_s'] * 1e3:8.1f} ms   after the set", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--connections", type=int, default=10000, help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of waiting and release (default %(default)s)")
    parser.add_argument("--libraries", default="ours,torch", help="default %(default)s")
    parser.add_argument("--host-network", action="store_true", help="use the machine's network")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("--serve", choices=LIBRARIES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    refusal = "asked for" if args.host_network else enter_own_network()
    if refusal:
        print(f"in the machine's network ({refusal}): PyTorch's times include the DNS")
    limit = raise_descriptor_limit()
    count = min(args.connections, limit - SPARE_DESCRIPTORS)
    if count < args.connections:
        print(f"{count} connections only: the limit of descriptors is {limit}")
    results = {}
    print(f"{count} connections, median of {args.rounds} releases", flush=True)
    for library in available(args.libraries):
        results[library] = measure(library, count, args.rounds)
        print_result(library, results[library])
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "idle_connections", "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
