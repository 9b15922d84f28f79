"""Unauthenticated connections, even many, silent or from other users, must do no harm."""

import os
import socket
import time
from datetime import timedelta

import dldist
import netns
import pytest
import unauthenticated_peers_workers
import workers
from dldist._launch import rank_environment
from procs import under_load

LOOPBACK = "127.0.0.1"
MAGIC = b"\0\xce\xf7\x85\x3c"  # VALIDATE


@pytest.mark.deadline(90)
@pytest.mark.parametrize("words", [b"", MAGIC + b"\x0d"], ids=["silent", "half a handshake"])
def test_store_serves_its_clients_during_a_flood_of_silent_connections(procs, words):
    server = procs.start(unauthenticated_peers_workers.crowded_server, 1024, "a secret")
    port = server.recv()
    flooder = procs.start(unauthenticated_peers_workers.flood, [port], 1300, words)
    flooder.recv()
    for i in range(5):
        server.send(200)
        assert server.recv() <= 1024
        start = time.monotonic()
        client = dldist.TCPStore(LOOPBACK, port, secret="a secret", timeout=timedelta(seconds=20))
        client.set(f"key {i}", b"value")
        assert client.get(f"key {i}") == b"value"
        assert time.monotonic() - start < under_load(3), "a second, with room for a machine that is busy"
    server.send(None)
    server.result()
    flooder.send("stop")
    assert flooder.result() >= 1300


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_store_refuses_connections_of_other_users_to_its_unix_socket(procs):
    store = dldist.TCPStore(LOOPBACK, 0, is_master=True, timeout=timedelta(seconds=20))
    name = f"dldist-store-{LOOPBACK}:{store.port}"
    store.set("key", b"value")
    ask = MAGIC + b"\x11"  # LIST_KEYS
    assert b"/key" in procs.start(unauthenticated_peers_workers.connect_as, 0, name, ask).result()
    assert procs.start(unauthenticated_peers_workers.connect_as, 65534, name, ask).result() == b""
    assert procs.start(unauthenticated_peers_workers.use_store_as, 65534, store.port).result() == b"value", "TCP is for all without a secret"


TORCH_HELLO = MAGIC + b"\x0d" + b"ping"  # PING, which PyTorch's clients send next


def launcher_store(host=LOOPBACK):
    """Serve the store of a launcher, which accepts PyTorch's clients of its user on its host."""
    return rank_environment.serve(host, 0, "a secret")


@pytest.mark.parametrize(("host", "dialled"), [(LOOPBACK, LOOPBACK), ("::", LOOPBACK), ("localhost", "localhost")])
def test_launcher_store_accepts_torch_clients_of_its_user(procs, host, dialled):
    store = launcher_store(host)
    assert procs.start(unauthenticated_peers_workers.ask_as, os.geteuid(), dialled, store.port, TORCH_HELLO).result() == b"ping"
    with pytest.raises(dldist.DistAuthError, match="the store needs a secret and the client has none"):
        dldist.TCPStore(dialled, store.port, secret="", timeout=timedelta(seconds=20))


def test_other_stores_accept_no_torch_client_without_the_secret(procs):
    store = dldist.TCPStore(LOOPBACK, 0, is_master=True, secret="a secret")
    assert procs.start(unauthenticated_peers_workers.ask_as, os.geteuid(), LOOPBACK, store.port, TORCH_HELLO).result() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("host", [LOOPBACK, "::"])
def test_launcher_store_refuses_torch_clients_of_other_users(procs, host):
    store = launcher_store(host)
    assert procs.start(unauthenticated_peers_workers.ask_as, 65534, LOOPBACK, store.port, TORCH_HELLO).result() == b""


@pytest.mark.skipif(netns.why_unavailable() is not None, reason=f"no hosts: {netns.why_unavailable()}")
def test_launcher_store_refuses_torch_clients_of_other_hosts(procs):
    with netns.Hosts(2) as hosts:
        server = hosts.start(procs, 0, unauthenticated_peers_workers.serve_launcher_store)
        ask = (unauthenticated_peers_workers.ask_as, os.geteuid(), hosts.address(0), server.recv(), TORCH_HELLO)
        assert hosts.start(procs, 0, *ask).result() == b"ping"
        assert hosts.start(procs, 1, *ask).result() == b""
        server.send("stop")
        server.result()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_client_sends_nothing_to_a_unix_socket_of_another_user(procs):
    with socket.create_server((LOOPBACK, 0)) as listening:
        port = listening.getsockname()[1]
        peer = procs.start(unauthenticated_peers_workers.listen_as, 65534, f"dldist-store-{LOOPBACK}:{port}")
        peer.recv()
        timeout = timedelta(seconds=20)
        store = dldist.TCPStore(LOOPBACK, port, is_master=True, timeout=timeout, master_listen_fd=listening.detach())
    store.set("key", b"value")
    assert dldist.TCPStore(LOOPBACK, port, timeout=timeout).get("key") == b"value"
    peer.send("stop")
    assert peer.result() == b""


@pytest.mark.deadline(120)
def test_ranks_connect_during_a_flood_of_connections_to_their_ports(procs):
    server = procs.start(unauthenticated_peers_workers.crowded_server, 1024, "a secret")
    port = server.recv()
    settings = {"DLDIST_SECRET": "a secret", "DLDIST_SHM": "0"}
    ranks = [procs.start(unauthenticated_peers_workers.meet, port, env=settings) for _ in range(3)]
    for rank in (0, 1):
        ranks[rank].send(("first", rank, 2, True))
    ports = [number for rank in (0, 1) for _, number in ranks[rank].recv()[1]]
    assert len(ports) >= 2
    flooder = procs.start(unauthenticated_peers_workers.flood, ports, 500, b"DDlh")
    flooder.recv()
    for rank in range(3):
        ranks[rank].send(("second", rank, 3, True))
    for rank in range(3):
        assert ranks[rank].recv()[0] < under_load(4), "two seconds, with room for a machine that is busy"
    finish(ranks)


def finish(ranks):
    for rank in ranks:
        rank.send(None)
    for rank in ranks:
        rank.result()


def make_world(ranks, name, is_listening, *host):
    """Make a world; return the addresses that each rank listens on afterwards."""
    for rank, child in enumerate(ranks):
        child.send((name, rank, len(ranks), is_listening, *host))
    return [{address for address, _ in child.recv()[1]} for child in ranks]


def test_ranks_of_one_host_that_share_memory_open_no_ports(procs):
    server = procs.start(workers.tcp_server)
    port = server.recv()
    ranks = [procs.start(unauthenticated_peers_workers.meet, port) for _ in range(3)]
    assert make_world(ranks[:2], "first", False) == [set(), set()]
    assert make_world(ranks, "second", False) == [set(), set(), set()]
    assert make_world(ranks[1:], "third", False) == [set(), set()]
    finish(ranks)


def test_ranks_with_a_store_at_a_loopback_address_listen_only_on_loopback(procs):
    port = procs.start(workers.tcp_server).recv()
    ranks = [procs.start(unauthenticated_peers_workers.meet, port, env={"DLDIST_SHM": "0"}) for _ in range(2)]
    assert make_world(ranks, "one", True) == [{LOOPBACK}, {LOOPBACK}]
    finish(ranks)


def test_ranks_listen_again_when_a_rank_of_another_host_joins(procs):
    if (reason := netns.why_unavailable()) is not None:
        pytest.skip(reason)
    with netns.Hosts(2) as hosts:
        port = hosts.start(procs, 0, workers.tcp_server, "0.0.0.0").recv()
        here = [hosts.start(procs, 0, unauthenticated_peers_workers.meet, port) for _ in range(2)]
        there = hosts.start(procs, 1, unauthenticated_peers_workers.meet, port)
        assert make_world(here, "of one host", False) == [set(), set()]
        address = hosts.address(0)
        found = make_world([*here, there], "of both", True, address)
        assert all(LOOPBACK not in addresses for addresses in found)
        finish([*here, there])
