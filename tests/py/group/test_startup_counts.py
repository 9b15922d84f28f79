"""Limits for starting a process with two ranks: round trips to the store, threads, sockets. Counts,
not times.

Lower a limit when a start gets cheaper; never raise one.
"""

import json
import socket
import subprocess
import sys
import threading
import time

import dldist
import leak_check
import pytest
from ports import reserve_port

pytestmark = [
    pytest.mark.deadline(120),
    pytest.mark.skipif(leak_check.is_possible(), reason="sanitizers have threads of their own"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc"),
]

# one or two to agree on the protocol; to begin, to meet, to report the meeting, to be monitored
ROUND_TRIPS = 10
THREADS = 4  # the program, dldist-engine, dd-listen, the monitor
# to the store, to the other rank, the Unix socket name for local ranks, the wakeup socket
SOCKETS = 4

RANK = """
import json, os, sys, time
import dldist
world = dldist.World(sys.argv[1], rank=int(sys.argv[2]), world_size=2, timeout=60)
world.barrier()
fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
tasks = len(os.listdir("/proc/self/task"))
sys.stdout.write(json.dumps({"sockets": sum(fd.startswith("socket:") for fd in fds), "threads": tasks}) + "\\n")
sys.stdout.flush()
sys.stdin.readline()
world.close()
"""


class Relay:
    """Forward between a client and the server at `port`; count client requests after responses."""

    def __init__(self, port):
        self.port_of_server = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.round_trips = self.connections = 0
        self.is_client_next = True
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port_of_server))
            self.connections += 1
            self.is_client_next = True
            for end, other, is_client in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass_on, args=(end, other, is_client), daemon=True).start()

    def _pass_on(self, end, other, is_client):
        try:
            while data := end.recv(1 << 16):
                with self.lock:
                    self.round_trips += is_client and self.is_client_next
                    self.is_client_next = not is_client
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def start_rank(port, rank):
    command = [sys.executable, "-c", RANK, f"tcp://127.0.0.1:{port}", str(rank)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def await_first(port):
    """Wait until rank 0 has joined the meeting, so that rank 1 is the last."""
    store = dldist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    end = time.monotonic() + 60
    while not any(key.endswith("/count") and "/dldist/" in key for key in store.list_keys()):
        assert time.monotonic() < end
        time.sleep(0.01)


def start_once():
    port = reserve_port()
    relay = Relay(port)
    ranks = [start_rank(port, 0)]
    await_first(port)
    ranks.append(start_rank(relay.port, 1))
    rows = [json.loads(rank.stdout.readline()) for rank in ranks]
    row = rows[1] | {"round trips": relay.round_trips, "connections": relay.connections}
    relay.listener.close()
    for rank in ranks:
        rank.communicate("\n", timeout=60)
        assert rank.returncode == 0
    return row


@pytest.fixture(scope="module")
def counts():
    """Return the smallest counts of three or more starts: a rank that is delayed for long also
    monitors the other rank."""
    least = start_once()
    for number in range(1, 12):
        if number >= 3 and least["round trips"] <= ROUND_TRIPS:
            break
        row = start_once()
        least = {label: min(row[label], least[label]) for label in row}
    return least


def test_opening_a_world_needs_few_round_trips_to_the_store(counts):
    assert counts["round trips"] <= ROUND_TRIPS
    assert counts["connections"] == 1


def test_opening_a_world_starts_few_threads(counts):
    assert counts["threads"] <= THREADS


def test_opening_a_world_opens_few_sockets(counts):
    assert counts["sockets"] <= SOCKETS
