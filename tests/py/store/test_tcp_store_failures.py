"""Failures and their errors: dead servers, hostile bytes, bad addresses, lost workers, secrets."""

import os
import re
import socket
import struct
import threading
import time
from datetime import timedelta

import dldist
import procs as helper
import pytest
import workers

LOOPBACK = "127.0.0.1"
LONG = timedelta(seconds=20)
SHORT = timedelta(milliseconds=300)
MAGIC = 0x3C85F7CE
VALIDATE, SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE = range(9)
APPEND, MULTI_GET, MULTI_SET, CANCEL_WAIT, PING, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN = range(9, 17)


def free_port():
    """Return a port that refuses connections, and the socket that reserves it."""
    unused = socket.socket()
    unused.bind((LOOPBACK, 0))
    return unused, unused.getsockname()[1]


def master(host=LOOPBACK, port=0, **options):
    return dldist.TCPStore(host, port, is_master=True, timeout=LONG, **options)


# -- a server that dies --------------------------------------------------------------------------


@pytest.mark.deadline(60)
def test_killed_store_server_fails_every_blocked_call(procs):
    """Every blocked call of every client must fail within a second and name the server."""
    server = procs.start(workers.tcp_server)
    port = server.recv()
    names = list(workers.BLOCKING_CALLS)
    clients = [procs.start(workers.blocked_client, port, names) for _ in range(3)]
    for client in clients:
        assert client.recv() == "blocked"
    killed = time.monotonic()
    server.kill()
    for client in clients:
        outcome, later = client.result(30)
        assert set(outcome) == set(names)
        for name, (kinds, text, at) in outcome.items():
            assert "DistNetworkError" in kinds, (name, kinds, text)
            assert "DistTimeoutError" not in kinds, (name, kinds, text)
            assert f"{LOOPBACK}:{port}" in text, (name, text)
            assert at - killed < helper.under_load(3), f"{name} failed {at - killed:.2f} s after the kill"
        assert later is not None and "DistNetworkError" in later[0], later


def test_closing_the_store_server_fails_blocked_calls_of_the_same_process():
    """The same must hold after del, with the client in another thread, and del must be quick."""
    server = master()
    port = server.port
    client = dldist.TCPStore(LOOPBACK, port, timeout=LONG)
    raised = []

    def block():
        try:
            client.get("absent")
        except Exception as error:
            raised.append((error, time.monotonic()))

    thread = threading.Thread(target=block)
    thread.start()
    helper.poll_until(lambda: thread.native_id)
    helper.wait_asleep([thread.native_id])
    start = time.monotonic()
    del server
    assert time.monotonic() - start < helper.under_load(1.0)
    thread.join(5)
    assert raised and isinstance(raised[0][0], dldist.DistNetworkError)
    assert f"{LOOPBACK}:{port}" in str(raised[0][0])
    assert raised[0][1] - start < helper.under_load(1.0)
    with pytest.raises(dldist.DistNetworkError):
        client.set("a", "1")
        client.get("a", timeout=SHORT)


# -- hostile bytes -------------------------------------------------------------------------------


def u64(number):
    return struct.pack("<Q", number)


def string(value):
    return u64(len(value)) + value


def raw_connection(port, handshake=True):
    raw = socket.create_connection((LOOPBACK, port), timeout=5)
    if handshake:
        raw.sendall(struct.pack("<BI", VALIDATE, MAGIC) + struct.pack("<BI", PING, 1234))
        assert raw.recv(4) == struct.pack("<I", 1234)
    return raw


def assert_closed(raw):
    """Check that the server closes the connection without a response."""
    try:
        assert raw.recv(64) == b""
    except ConnectionResetError:
        pass
    finally:
        raw.close()


GARBAGE = {
    "no-such-query": bytes([200]),
    "all-ones": b"\xff" * 64,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "set-key-2**63": bytes([SET]) + u64(2**63),
    "set-key-2**64-1": bytes([SET]) + u64(2**64 - 1),
    "set-key-8-GiB": bytes([SET]) + u64(8 << 30),
    "set-value-2**63": bytes([SET]) + string(b"/k") + u64(2**63),
    "set-value-8-GiB": bytes([SET]) + string(b"/k") + u64(8 << 30),
    "compare-set-2**62": bytes([COMPARE_SET]) + string(b"/k") + string(b"") + u64(2**62),
    "get-key-2**63": bytes([GET]) + u64(2**63),
    "add-key-2**63": bytes([ADD]) + u64(2**63 - 1),
    "check-2**40-keys": bytes([CHECK]) + u64(2**40),
    "wait-2**64-1-keys": bytes([WAIT]) + u64(2**64 - 1),
    "multi-get-2**61-keys": bytes([MULTI_GET]) + u64(2**61),
    "multi-set-2**63-keys": bytes([MULTI_SET]) + u64(2**63),
    "queue-push-2**63": bytes([QUEUE_PUSH]) + string(b"/q") + u64(2**63),
    "append-2**63": bytes([APPEND]) + string(b"/k") + u64(2**63),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_malformed_bytes_close_only_their_own_connection(garbage):
    server = master()
    client = dldist.TCPStore(LOOPBACK, server.port, timeout=LONG)
    good = raw_connection(server.port)
    raw = raw_connection(server.port)
    raw.sendall(garbage)
    assert_closed(raw)
    client.set("a", "1")
    assert client.get("a") == b"1"
    good.sendall(bytes([GET]) + string(b"/a"))
    assert good.recv(64) == string(b"1")
    good.close()
    assert server.num_keys() == 1


HANDSHAKES = {
    "wrong-magic": struct.pack("<BI", VALIDATE, MAGIC ^ 1),
    "no-validate": bytes([SET]) + string(b"/k") + string(b"v"),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
}


@pytest.mark.parametrize("greeting", HANDSHAKES.values(), ids=HANDSHAKES.keys())
def test_connection_with_a_wrong_first_message_is_closed(greeting):
    server = master()
    raw = raw_connection(server.port, handshake=False)
    raw.sendall(greeting)
    assert_closed(raw)
    assert server.num_keys() == 0
    server.set("a", "1")


def test_truncated_requests_have_no_effect():
    """Every truncated request must have no effect, and other clients must be served."""
    server = master()
    request = bytes([SET]) + string(b"/key") + string(b"value")
    for length in range(1, len(request)):
        raw = raw_connection(server.port)
        raw.sendall(request[:length])
        raw.shutdown(socket.SHUT_WR)
        assert_closed(raw)
    assert server.num_keys() == 0
    raw = raw_connection(server.port)
    raw.sendall(request)
    helper.poll_until(lambda: server.try_get("key") == b"value")
    raw.close()


def test_reset_during_a_request_has_no_effect():
    server = master()
    for _ in range(20):
        raw = raw_connection(server.port)
        raw.sendall(bytes([SET]) + string(b"/key") + u64(100) + b"partial")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
    server.set("a", "1")
    assert server.num_keys() == 1


def test_request_that_announces_a_huge_length_allocates_no_memory(procs):
    """A length within the limits must only cost memory as its bytes arrive."""
    server = procs.start(workers.tcp_server)
    port = server.recv()
    client = dldist.TCPStore(LOOPBACK, port, timeout=LONG)
    client.set("warm", b"x" * 100000)
    client.get("warm")
    before = helper.rss_bytes(server.pid)
    claims = []
    for _ in range(16):
        for head in (
            bytes([SET]) + string(b"/k") + u64(200 << 20),
            bytes([MULTI_GET]) + u64(1 << 19),
            bytes([MULTI_SET]) + u64(1 << 19),
            bytes([WAIT]) + u64(1 << 19),
        ):
            raw = raw_connection(port)
            raw.sendall(head + b"\1")
            claims.append(raw)
    client.set("during", "1")
    assert client.get("during") == b"1"
    grown = helper.rss_bytes(server.pid) - before
    print(f"{len(claims)} claims of together {16 * 200} MiB and more: server grew by {grown >> 10} KiB")
    for raw in claims:
        raw.close()
    assert grown < 32 << 20
    assert client.num_keys() == 2
    server.send("stop")


def test_slow_client_is_served_and_delays_no_other_client():
    """A slow peer must be served eventually, and delay no other client."""
    server = master()
    client = dldist.TCPStore(LOOPBACK, server.port, timeout=LONG)
    raw = raw_connection(server.port, handshake=False)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = (
        struct.pack("<BI", VALIDATE, MAGIC)
        + struct.pack("<BI", PING, 77)
        + bytes([SET])
        + string(b"/slow")
        + string(b"value")
        + bytes([GET])
        + string(b"/slow")
        + bytes([ADD])
        + string(b"/n")
        + struct.pack("<q", -5)
        + bytes([CHECK])
        + u64(1)
        + string(b"/n")
    )
    for index in range(len(stream)):
        raw.sendall(stream[index : index + 1])
        client.set("fast", str(index))
        assert client.get("fast") == str(index).encode()
    expected = struct.pack("<I", 77) + string(b"value") + struct.pack("<q", -5) + b"\0"
    answer = b""
    while len(answer) < len(expected):
        part = raw.recv(64)
        assert part, answer
        answer += part
    assert answer == expected
    raw.close()


def test_waiting_requests_of_a_closed_connection_are_removed():
    """Waiters of closed connections must be removed: a pushed item must go to a live client."""
    server = master()
    for _ in range(10):
        raw = raw_connection(server.port)
        raw.sendall(bytes([QUEUE_POP]) + string(b"/q"))
        raw.shutdown(socket.SHUT_RDWR)
        raw.close()
    for _ in range(10):  # the connections' local ends, processed by the server's loop
        assert server.add("n", 0) == 0
    helper.poll_until(lambda: (server.queue_push("q", "x"), server.queue_len("q"))[1] > 0)
    assert server.queue_pop("q") == b"x"


def test_client_that_does_not_read_does_not_delay_others(procs):
    """Responses to a client that does not read must be limited, and other clients be served."""
    server = procs.start(workers.tcp_server)
    port = server.recv()
    client = dldist.TCPStore(LOOPBACK, port, timeout=LONG)
    client.set("big", b"x" * (1 << 20))
    client.get("big")
    before = helper.rss_bytes(server.pid)
    raw = raw_connection(port)
    raw.setblocking(False)
    request = (bytes([GET]) + string(b"/big")) * 100
    sent = 0
    try:
        while sent < 2000 * len(request):
            sent += raw.send(request)
    except BlockingIOError:
        pass
    for index in range(50):
        client.set("a", str(index))
        assert client.get("a", timeout=timedelta(seconds=5)) == str(index).encode()
    grown = helper.rss_bytes(server.pid) - before
    print(f"{sent // 15} unread answers of 1 MiB: server grew by {grown >> 20} MiB")
    raw.close()
    assert grown < 512 << 20


# -- constructors that fail ----------------------------------------------------------------------


def test_store_that_waits_for_workers_times_out_if_none_join():
    start = time.monotonic()
    with pytest.raises(dldist.DistStoreTimeoutError) as raised:
        dldist.TCPStore(LOOPBACK, 0, 3, True, timedelta(seconds=0.5))
    elapsed = time.monotonic() - start
    text = str(raised.value)
    assert 0.45 <= elapsed < helper.under_load(3)
    assert re.search("1(/| of )3 .*joined", text), text
    assert str(os.getpid()) in text, text
    assert socket.gethostname() in text or LOOPBACK in text, text


def test_store_that_waits_for_workers_times_out_if_some_do_not_join(procs):
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    port = listener.getsockname()[1]
    child = procs.start(workers.joining_client, port, 3)
    assert child.recv() == "joining"
    with pytest.raises(dldist.DistStoreTimeoutError) as raised:
        dldist.TCPStore(LOOPBACK, port, 3, True, timedelta(seconds=3), master_listen_fd=listener.detach())
    text = str(raised.value)
    assert re.search("2(/| of )3 .*joined", text), text
    assert str(os.getpid()) in text and str(child.pid) in text, text


def test_store_server_waits_until_all_workers_have_joined(procs):
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    port = listener.getsockname()[1]
    children = [procs.start(workers.joining_client, port, 3) for _ in range(2)]
    assert [child.recv() for child in children] == ["joining"] * 2
    store = dldist.TCPStore(LOOPBACK, port, 3, True, LONG, master_listen_fd=listener.detach())
    for child in children:
        assert child.recv() == "joined"
        child.send("go")
    assert [child.result() for child in children] == [1, 1]
    assert store.list_keys() == []


def test_store_server_need_not_wait_for_workers():
    start = time.monotonic()
    store = dldist.TCPStore(LOOPBACK, 0, 5, True, LONG, wait_for_workers=False)
    assert time.monotonic() - start < helper.under_load(2)
    store.set("a", "1")


def test_store_server_on_a_port_in_use_is_an_error():
    first = master()
    with pytest.raises(dldist.DistNetworkError) as raised:
        master(port=first.port)
    text = str(raised.value)
    assert str(first.port) in text and LOOPBACK in text, text
    assert "in use" in text.lower(), text
    first.set("a", "1")


def test_store_server_on_a_port_of_another_program_is_an_error():
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen()
    with pytest.raises(dldist.DistNetworkError, match=str(listener.getsockname()[1])):
        master(port=listener.getsockname()[1])
    listener.close()


def test_store_server_at_an_address_of_another_machine_is_an_error():
    with pytest.raises(dldist.DistNetworkError, match="192.0.2.1"):
        master(host="192.0.2.1")


def test_store_client_without_a_server_times_out():
    unused, port = free_port()
    for seconds in (0.3, 1.2):
        start = time.monotonic()
        with pytest.raises(dldist.DistNetworkTimeoutError) as raised:
            dldist.TCPStore(LOOPBACK, port, timeout=timedelta(seconds=seconds))
        elapsed = time.monotonic() - start
        assert seconds - 0.02 <= elapsed < helper.under_load(seconds + 2)
        assert LOOPBACK in str(raised.value) and str(port) in str(raised.value)
        assert isinstance(raised.value, dldist.DistNetworkError) and isinstance(raised.value, TimeoutError)
    unused.close()


def test_store_client_waits_for_a_server_that_starts_late():
    unused, port = free_port()
    opened = []
    thread = threading.Thread(target=lambda: opened.append(dldist.TCPStore(LOOPBACK, port, timeout=LONG)))
    thread.start()
    helper.poll_until(lambda: thread.native_id)
    helper.wait_asleep([thread.native_id], samples=10)
    server = dldist.TCPStore(LOOPBACK, port, is_master=True, timeout=LONG, master_listen_fd=unused.detach())
    thread.join(10)
    assert opened
    opened[0].set("a", "1")
    assert server.get("a") == b"1"


def test_store_client_of_a_listener_that_never_answers_times_out():
    """A listener that accepts but sends nothing must not block: the handshake has the deadline."""
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen()
    port = listener.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(dldist.DistNetworkTimeoutError, match=str(port)):
        dldist.TCPStore(LOOPBACK, port, timeout=timedelta(seconds=0.5))
    assert 0.45 < time.monotonic() - start < helper.under_load(2)
    listener.close()


def test_store_client_of_a_server_with_another_protocol_is_an_error():
    """A server of another protocol must cause a network error that names the address, at the latest
    at the deadline."""
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen()
    port = listener.getsockname()[1]
    stop = threading.Event()

    def serve():
        listener.settimeout(0.1)
        while not stop.is_set():
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            with peer:
                peer.sendall(b"220 mail.example ESMTP\r\n" * 10)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with pytest.raises(dldist.DistNetworkError, match=f"{LOOPBACK}.*{port}"):
            dldist.TCPStore(LOOPBACK, port, timeout=timedelta(seconds=1))
    finally:
        stop.set()
        thread.join()
        listener.close()


@pytest.mark.deadline(60)
def test_store_client_of_a_host_that_cannot_be_resolved_is_an_error():
    with pytest.raises(dldist.DistNetworkError, match="no-such-host.invalid"):
        dldist.TCPStore("no-such-host.invalid", 29500, timeout=timedelta(seconds=1))


# -- addresses -----------------------------------------------------------------------------------


def need_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")


def connects(address, port, family=socket.AF_INET):
    with socket.socket(family) as raw:
        raw.settimeout(2)
        try:
            raw.connect((address, port))
        except OSError:
            return False
        return True


def test_store_server_can_listen_on_ipv6():
    need_ipv6()
    server = master(host="::1")
    client = dldist.TCPStore("::1", server.port, timeout=LONG)
    client.set("a", "6")
    assert server.get("a") == b"6"
    assert not connects(LOOPBACK, server.port)
    with pytest.raises(dldist.DistStoreTimeoutError, match=rf"\[?::1\]?:{server.port}"):
        client.get("absent", timeout=SHORT)


def test_store_server_can_listen_on_localhost():
    server = master(host="localhost")
    client = dldist.TCPStore("localhost", server.port, timeout=LONG)
    client.set("a", "1")
    assert server.get("a") == b"1"


def test_store_server_listens_only_on_the_given_address():
    server = master(host=LOOPBACK)
    assert connects(LOOPBACK, server.port)
    assert not connects("127.0.0.2", server.port)


def test_store_server_listens_on_all_addresses_on_request():
    server = master(host="0.0.0.0")
    assert connects(LOOPBACK, server.port)
    assert connects("127.0.0.2", server.port)
    client = dldist.TCPStore("127.0.0.3", server.port, timeout=LONG)
    client.set("a", "1")
    assert server.get("a") == b"1"


def test_store_server_listens_on_a_given_socket_and_closes_it():
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    port = listener.getsockname()[1]
    server = master(port=port, master_listen_fd=listener.detach())
    assert server.port == port
    client = dldist.TCPStore(LOOPBACK, port, timeout=LONG)
    client.set("a", "1")
    del client, server
    assert not connects(LOOPBACK, port)


def test_listening_socket_of_another_port_is_rejected():
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    bound = listener.getsockname()[1]
    unused, port = free_port()
    with pytest.raises((ValueError, dldist.DistError)) as raised:
        master(port=port, master_listen_fd=listener.fileno())
    assert str(port) in str(raised.value) and str(bound) in str(raised.value)
    assert listener.getsockname()[1] == bound  # a failure leaves the descriptor to its owner
    listener.close()
    unused.close()


@pytest.mark.parametrize("kind", ["closed", "file", "negative"])
def test_invalid_listening_socket_is_rejected(kind, tmp_path):
    fd = -5
    if kind == "closed":
        fd = os.dup(0)
        os.close(fd)
    elif kind == "file":
        fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    with pytest.raises((ValueError, dldist.DistError)):
        master(port=29999, master_listen_fd=fd)
    if kind == "file":
        os.close(fd)


def test_multi_tenant_stores_of_a_process_share_one_server():
    first = master(multi_tenant=True)
    second = master(port=first.port, multi_tenant=True)
    second.set("a", "1")
    assert first.get("a") == b"1"
    client = dldist.TCPStore(LOOPBACK, first.port, timeout=LONG)
    port = first.port
    del first
    assert client.get("a") == b"1"
    second.set("b", "2")
    assert client.get("b") == b"2"
    del second
    helper.poll_until(lambda: not connects(LOOPBACK, port))


def test_store_server_is_shared_only_if_all_are_multi_tenant():
    shared = master(multi_tenant=True)
    with pytest.raises(dldist.DistNetworkError):
        master(port=shared.port)
    alone = master()
    with pytest.raises(dldist.DistNetworkError):
        master(port=alone.port, multi_tenant=True)


def test_port_is_released_with_the_store_server():
    first = master()
    port = first.port
    client = dldist.TCPStore(LOOPBACK, port, timeout=LONG)
    client.set("a", "1")
    del first
    second = master(port=port)
    assert second.num_keys() == 0


# -- secrets -------------------------------------------------------------------------------------


def test_store_client_with_the_right_secret_is_accepted():
    server = master(secret="open sesame")
    client = dldist.TCPStore(LOOPBACK, server.port, timeout=LONG, secret=b"open sesame")
    client.set("a", "1")
    assert server.get("a") == b"1"
    assert client.clone().get("a") == b"1"
    waiting = []
    thread = threading.Thread(target=lambda: waiting.append(client.get("late")))
    thread.start()
    server.set("late", "v")
    thread.join(10)
    assert waiting == [b"v"]


@pytest.mark.parametrize(
    "servers, clients",
    [("sesame-1", "sesame-2"), ("sesame-1", None), (None, "sesame-2")],
    ids=["wrong", "client-has-none", "server-has-none"],
)
def test_store_client_with_a_different_secret_is_rejected(servers, clients):
    server = master(secret=servers)
    start = time.monotonic()
    with pytest.raises(dldist.DistAuthError) as raised:
        dldist.TCPStore(LOOPBACK, server.port, timeout=timedelta(seconds=5), secret=clients)
    assert time.monotonic() - start < helper.under_load(4), "the answer was no long before the deadline"
    text = str(raised.value)
    assert "secret" in text and str(server.port) in text, text
    assert "sesame" not in text, "a secret does not belong into a message"
    assert isinstance(raised.value, dldist.DistNetworkError)
    assert server.num_keys() == 0
    server.set("a", "1")


def test_store_client_without_the_secret_is_rejected():
    """Without the secret, requests must be ignored and nothing be stored."""
    server = master(secret="s")
    raw = raw_connection(server.port, handshake=False)
    raw.sendall(struct.pack("<BI", VALIDATE, MAGIC) + bytes([SET]) + string(b"/k") + string(b"v"))
    assert_closed(raw)
    assert server.num_keys() == 0


@pytest.mark.torch
def test_torch_client_of_a_store_server_with_a_secret_is_rejected():
    import torch.distributed

    server = master(secret="s")
    with pytest.raises(torch.distributed.DistNetworkError):
        torch.distributed.TCPStore(LOOPBACK, server.port, timeout=timedelta(seconds=2), wait_for_workers=False)
    assert server.num_keys() == 0


@pytest.mark.torch
def test_store_client_with_a_secret_rejects_a_server_of_torch():
    import torch.distributed

    server = torch.distributed.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    with pytest.raises(dldist.DistAuthError):
        dldist.TCPStore(LOOPBACK, server.port, timeout=timedelta(seconds=3), secret="s")


def test_secret_of_a_store_is_read_from_the_environment(procs, monkeypatch):
    monkeypatch.setenv("DLDIST_SECRET", "from the environment")
    server = master()
    child = procs.start(workers.secret_client, server.port)
    assert child.result() == b"1"
    assert server.get("from-child") == b"1"
    with pytest.raises(dldist.DistAuthError):
        dldist.TCPStore(LOOPBACK, server.port, timeout=timedelta(seconds=3), secret="argument wins")
    monkeypatch.delenv("DLDIST_SECRET")
    with pytest.raises(dldist.DistAuthError):
        dldist.TCPStore(LOOPBACK, server.port, timeout=timedelta(seconds=3))


def test_secret_of_a_wrong_type_is_rejected():
    with pytest.raises(TypeError, match="secret"):
        master(secret=3)


def test_limits_of_a_store_are_options_and_named_in_errors():
    store = dldist.TCPStore("127.0.0.1", 0, is_master=True, max_key_bytes=100, max_value_bytes=1000)
    other = dldist.TCPStore("127.0.0.1", store.port)
    other.set("k" * 99, "v" * 1000)  # with a leading "/" the key has 100 bytes on the wire
    with pytest.raises(ValueError, match="value length too large: got 1001, expected at most 1000 .the server's limit"):
        other.set("k", "v" * 1001)
    with pytest.raises(ValueError, match="key length too large: got 101, expected at most 100 .the server's limit"):
        other.get("k" * 100)
    assert other.get("k" * 99) == b"v" * 1000
    with pytest.raises(ValueError, match="max_value_bytes"):
        dldist.TCPStore("127.0.0.1", 0, is_master=True, max_value_bytes=0)
    with pytest.raises(TypeError, match="max_key_bytes"):
        dldist.TCPStore("127.0.0.1", 0, is_master=True, max_key_bytes="1")
