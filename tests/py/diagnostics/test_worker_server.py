"""The worker's server: its responses compared with torch's, access control, limits and lifetime."""

import functools
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import types

import dldist
import pytest
from dldist import control, distributed_c10d
from dldist.control import handlers
from dldist.control import http as connection
from dldist.control import server as control_server
from paths import SUPPORT, TESTS
from procs import poll_until
from worker_server_cases import case

SECRET = "of the job"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)


def send_request(path, method, target, body=None, headers=None):
    """Return the status, the content type, the Keep-Alive header, and the content."""
    client = UnixConnection(path)
    client.request(method, target, body, headers or {})
    answer = client.getresponse()
    found = answer.status, answer.getheader("Content-Type"), answer.getheader("Keep-Alive"), answer.read()
    client.close()
    return found


def request_tcp(server, target="/handler/ping", headers=None):
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    client.request("POST", target, None, headers or {})
    answer = client.getresponse()
    content = answer.status, answer.read()
    client.close()
    return content


def raw(path, data):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(path)
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65536), b""))


@functools.cache
def register():
    control.register_handler("case", case)


@pytest.fixture
def path(tmp_path):
    register()
    with control.serve(tmp_path / "dldist") as server:
        yield server.address


# ---- compared with torch


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return the paths of a dldist server and of torch's, in another process; same handlers."""
    register()
    folder = tmp_path_factory.mktemp("control")
    paths = str(folder / "dldist"), str(folder / "torch")
    program = [sys.executable, str(SUPPORT / "worker_server_cases.py"), paths[1]]
    with (
        distributed_c10d._WorkerServer(paths[0]),
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as peer,
    ):
        assert peer.stdout.readline() == b"ready\n"
        yield paths
        peer.stdin.close()
        try:
            peer.wait(20)
        finally:
            peer.kill()


FORM = {"Content-Type": "application/x-www-form-urlencoded"}
REQUESTS = [
    *((method, "/handler/ping") for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW")),
    *(("POST", target) for target in ("/", "/nope", "/handler", "/handler/", "/handler/nope", "/handler/no%20pe?x=1", "/handler/a+b")),
    *(("POST", f"/handler/ping{end}") for end in ("/", "/x", "#part?a=1", "?" + "a" * 9000)),
    ("POST", "/handler/a%2Fb"),
    ("POST", "http://x/handler/ping"),
    ("GET", "/handler"),
    *(("POST", f"/handler/case?{query}") for query in
      "a=1 a=1&a=2 a=%41+b%20c a a= =3 a=%zz a=%ff a=1;b=2 a=b%26c=d action=raise action=exit action=nothing action=bytes action=twice".split()),
    *(("POST", f"/handler/case?action=status&status={status}") for status in (200, 204, 299, 304, 404, 418, 503)),
    ("POST", "/handler/case", "body é".encode()),
    ("POST", "/handler/case", b"\xff"),
    ("POST", "/handler/case", b"x" * 100000),
    ("POST", "/handler/case", b"a=frombody&action=twice", FORM),
    ("POST", "/handler/case", b"x" * 10000, FORM),
    ("POST", "/handler/ping", None, {"X": "y" * 70000}),
    ("POST", "/handler/wait_counter_values"),
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: " ".join(str(part)[:40] for part in request))
def test_answers_of_the_worker_server_match_torchs(both, request_):
    dldist_answer, torch_answer = (send_request(path, *request_) for path in both)
    assert dldist_answer == torch_answer


RAW = [
    b"POST /handler/ping HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"garbage\r\n\r\n",
    b"POST /handler/ping HTTP/3.1\r\n\r\n",
    b"POST /handler/ping HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
]


@pytest.mark.torch
@pytest.mark.parametrize("data", RAW)
def test_bytes_of_worker_server_responses_match_torchs(both, data):
    lines = [sorted(raw(path, data).split(b"\r\n")) for path in both]
    assert lines[0] == lines[1]


@pytest.mark.torch
def test_pages_and_handlers_of_the_worker_server_match_torchs(both):
    import re

    for method in ("GET", "HEAD"):
        for target in ("/", "/handler/"):
            dldist_answer, torch_answer = (send_request(path, method, target) for path in both)
            assert dldist_answer[:3] == torch_answer[:3]
    dldist_answer, torch_answer = (json.loads(send_request(path, "GET", "/handler/")[3]) for path in both)
    assert set(torch_answer) - {"torch_profile"} <= set(dldist_answer)  # torch.distributed.debug registers it
    for name in ("dump_traceback", "fr_trace_json"):
        dldist_answer, torch_answer = (send_request(path, "POST", f"/handler/{name}") for path in both)
        assert dldist_answer[:3] == torch_answer[:3]
        if name == "dump_traceback":
            assert all(re.search(rb"Current thread 0x\w+ \(most recent call first\)", each[3]) for each in (dldist_answer, torch_answer))
        else:
            assert json.loads(torch_answer[3]).keys() <= json.loads(dldist_answer[3]).keys()


@pytest.mark.torch
def test_torchs_debug_client_can_read_worker_servers_of_dldist():
    """torch's debug server must be able to fetch from all ranks, with its own function, from a
    dldist server over TCP."""
    pytest.importorskip("jinja2")
    pytest.importorskip("requests")
    from torch.distributed.debug import _frontend

    with control.serve() as server:
        urls = [f"{server.address}/handler/{name}?" for name in ("ping", "fr_trace_json", "nope")]
        ping, trace, nope = _frontend.fetch_thread_pool(urls, timeout=20)
    assert (ping.status_code, ping.text) == (200, "pong")
    assert trace.json()["version"]
    assert (nope.status_code, nope.text) == (404, "Handler nope not found: Failed to find handler nope")


RECORDS_OF_A_WORLD = """
import dldist
from dldist import control, distributed_c10d

class Printed(distributed_c10d._Response):
    def set_content(self, content, content_type):
        print(content.decode() if isinstance(content, bytes) else content)

with dldist.World(dldist.HashStore(), 0, 1) as world:
    world.barrier()
    control.get_handler("fr_trace_json")(distributed_c10d._Request(), Printed())
"""


@pytest.mark.torch
def test_torchs_debug_pages_can_read_dumps_of_dldist(monkeypatch):
    """torch's debug server must build its table of groups and collectives from all responses."""
    pytest.importorskip("jinja2")
    # draws tables, which are not checked
    monkeypatch.setitem(sys.modules, "tabulate", types.SimpleNamespace(tabulate=lambda *_, **__: ""))
    from torch.distributed.debug import _debug_handlers, _frontend

    # In a separate process, because a recorder knows the groups of all earlier tests.
    done = subprocess.run([sys.executable, "-c", RECORDS_OF_A_WORLD], capture_output=True, text=True, timeout=60, check=True)
    database = _debug_handlers.FlightRecorderHandler._build_db(["rank0"], [_frontend.Response(200, done.stdout)])
    assert database.groups


# ---- handlers


def test_handlers_of_the_worker_server_are_registered_and_found_by_name():
    assert {"c10d_health_check", "ping", "dump_traceback", "fr_trace_json", "wait_counter_values", "pyspy_dump"} <= set(control.handler_names())
    with pytest.raises(ValueError, match="Handler ping already registered"):
        control.register_handler("ping", control.get_handler("ping"))
    with pytest.raises(ValueError, match="Failed to find handler nope"):
        distributed_c10d._get_handler("nope")
    with pytest.raises(TypeError, match="must be callable"):
        distributed_c10d._register_handler("five", 5)


def test_handler_of_the_worker_server_accepts_torch_requests_and_responses():
    received = []

    class Mine(distributed_c10d._Response):
        def set_content(self, content, content_type):
            received.append((content, content_type))

    control.get_handler("ping")(distributed_c10d._Request(), Mine())
    assert received == [("pong", "text/plain")]
    with pytest.raises(RuntimeError, match="set_content"):
        control.get_handler("ping")(distributed_c10d._Request(), distributed_c10d._Response())


@pytest.mark.parametrize("query", ["action=status&status=99", "action=status&status=600"])
def test_wrong_status_set_by_a_handler_is_a_server_error(path, query):
    status, _, _, content = send_request(path, "POST", f"/handler/case?{query}")
    assert status == 500 and b"200 to 599" in content


def test_wrong_content_type_set_by_a_handler_is_a_server_error():
    for content in (5, None):
        with pytest.raises(TypeError):
            handlers.BufferedResponse().set_content(content, "text/plain")


def test_handler_for_the_flight_recorder_returns_its_entries(path):
    world = dldist.World(dldist.HashStore(), 0, 1)
    world.barrier()
    trace = json.loads(send_request(path, "POST", "/handler/fr_trace_json")[3])
    world.close()
    assert any("barrier" in entry["profiling_name"] for entry in trace["entries"])


def test_handler_for_py_spy_runs_it_on_the_process(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, _, content = send_request(path, "POST", "/handler/pyspy_dump")
    assert status == 500 and b"py-spy: not found" in content
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o700)
    status, kind, _, content = send_request(path, "POST", "/handler/pyspy_dump?native=1&nonblocking=1")
    assert (status, kind, content.decode()) == (200, "text/plain", f"dump --pid {os.getpid()} --native --nonblocking\n")


class NoText(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "words"), [(ValueError("\ud800"), rb"ValueError: \ud800"), (NoText(), b"NoText: no text"), (SystemExit(3), b": 3")]
)
def test_exception_of_a_handler_is_returned_as_a_response(path, error, words):
    def fail(request, response):
        raise error

    name = f"fail_{type(error).__name__}"
    control.register_handler(name, fail)
    status, _, _, content = send_request(path, "POST", f"/handler/{name}")
    assert status == 500 and words in content
    assert send_request(path, "POST", "/handler/ping")[3] == b"pong"


# ---- access control


def test_worker_server_over_tcp_requires_the_secret():
    with control.serve(secret=SECRET) as server:
        for shown in (None, "Bearer", "Bearer x", f"Bearer {SECRET}", f"Bearer {control.token('other')}"):
            status, content = request_tcp(server, headers={"Authorization": shown} if shown else None)
            assert status == 401 and b"dldist.control.token()" in content
        assert request_tcp(server, headers={"Authorization": f"Bearer {control.token(SECRET)}"}) == (200, b"pong")


def test_worker_server_requires_the_secret_of_the_environment(monkeypatch):
    monkeypatch.setenv("DLDIST_SECRET", SECRET)
    server = distributed_c10d._WorkerServer("127.0.0.1", 0)
    assert request_tcp(server)[0] == 401
    assert request_tcp(server, headers={"Authorization": f"Bearer {control.token()}"})[0] == 200
    server.shutdown()


def test_host_name_of_the_worker_server_is_resolved():
    with pytest.raises(ValueError, match="expected a loopback address"):
        control.serve(host="0.0.0.0", secret="")
    for choice in ({"anyone": True, "secret": ""}, {"secret": SECRET}):
        with control.serve(host="0.0.0.0", **choice) as server:
            assert server.port


def test_worker_server_can_listen_on_all_addresses():
    """A server made like torch's debug server must be reachable over both address families."""
    server = distributed_c10d._WorkerServer("::", 0)
    assert request_tcp(server) == (200, b"pong")
    server.shutdown()


def test_worker_server_rejects_requests_of_web_pages(path):
    assert send_request(path, "POST", "/handler/ping", None, {"Origin": "http://elsewhere"})[0] == 403


# ---- limits


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /handler/ping HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 400),
        (b"POST /handler/ping HTTP/1.1\r\n" + (b"A: " + b"b" * 60000 + b"\r\n") * 2 + b"\r\n", 400),
        (b"POST /handler/ping HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /handler/ping HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"POST /handler/ping HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"GET /\r\n\r\n", 400),
    ],
)
def test_worker_server_rejects_requests_over_a_size_limit(path, data, status):
    assert raw(path, data).startswith(b"HTTP/1.1 %d " % status)


def test_slow_request_to_the_worker_server_has_a_deadline(path, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_S", 0.5)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(path)
        client.sendall(b"POST /handler/ping HTTP/1.1\r\n")
        began = time.monotonic()
        client.settimeout(0.05)
        received = b""
        while not received and time.monotonic() - began < 15:
            try:
                client.sendall(b"A")
                received = client.recv(100)
            except TimeoutError:
                pass
        assert received.startswith(b"HTTP/1.1 408 ")


def test_slow_clients_of_the_worker_server_do_not_delay_others(path):
    slow = [socket.socket(socket.AF_UNIX) for _ in range(2 * control_server.CONNECTIONS)]
    for client in slow:
        client.settimeout(20)
        client.connect(path)
    began = time.monotonic()
    assert send_request(path, "POST", "/handler/ping")[3] == b"pong"
    assert time.monotonic() - began < connection.REQUEST_S / 2
    for client in slow:
        client.close()


def test_connection_over_the_limit_of_the_worker_server_is_closed(path):
    """A connection over the limit must be closed immediately, without a thread, and the server stay
    usable."""
    may_end = threading.Event()
    going = threading.Semaphore(0)
    control.register_handler("long", lambda request, response: (going.release(), may_end.wait(30)))
    clients = [UnixConnection(path) for _ in range(control_server.CONNECTIONS)]
    try:
        for client in clients:
            client.request("POST", "/handler/long")
        for _ in clients:
            assert going.acquire(timeout=20)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            send_request(path, "POST", "/handler/ping")
    finally:
        may_end.set()
    for client in clients:
        assert client.getresponse().status == 200
        client.close()
    assert send_request(path, "POST", "/handler/ping")[3] == b"pong"


def test_slow_handler_of_the_worker_server_does_not_delay_others(path):
    going, may_end = threading.Event(), threading.Event()
    control.register_handler("slow", lambda request, response: (going.set(), may_end.wait(20)))
    thread = threading.Thread(target=send_request, args=(path, "POST", "/handler/slow"))
    thread.start()
    assert going.wait(20)
    assert send_request(path, "POST", "/handler/ping")[3] == b"pong"
    may_end.set()
    thread.join(20)
    assert not thread.is_alive()


def test_one_connection_to_the_worker_server_serves_thirty_requests(path):
    request = b"POST /handler/ping HTTP/1.1\r\n\r\n"
    assert raw(path, request * 40).count(b"pong") == connection.REQUESTS


def test_worker_server_keeps_serving_after_fuzzed_requests(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TESTS / "fuzz"))
    monkeypatch.chdir(tmp_path)
    import fuzz_control

    assert fuzz_control.fuzz(2, seed=1) > 10


# ---- start and end


def test_unix_socket_of_the_worker_server_is_private_and_removed_at_the_end(tmp_path):
    path = tmp_path / "socket"
    server = control.serve(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(RuntimeError, match="already exists"):
        distributed_c10d._WorkerServer(str(path))
    server.shutdown()
    server.shutdown()
    assert not path.exists()


@pytest.mark.parametrize("where", [("/nonexistent/x",), ("x" * 200,), ("nohost.invalid", 0), ("localhost", -2), ("localhost", 70000)])
def test_worker_server_rejects_unusable_addresses(where):
    with pytest.raises(RuntimeError, match="Error binding to"):
        distributed_c10d._WorkerServer(*where)


def run(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, timeout=60, check=False
    )


def test_unix_socket_with_a_relative_path_is_removed_even_after_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with control.serve("relative"):
        monkeypatch.chdir("/")
    assert not os.listdir(tmp_path)


def test_worker_server_runs_only_during_the_function_of_worker_main(tmp_path):
    path = str(tmp_path / "socket")
    code = """if True:
        import os, sys
        from dldist import control
        @control.worker_main()
        def main():
            return os.path.exists(sys.argv[1]) if sys.argv[1:] else os.path.exists(os.environ["P"])
        print(main(), os.path.exists(os.environ["P"]))
    """
    done = run(code, TORCH_WORKER_SERVER_SOCKET=path, P=path)
    assert done.stdout == "True False\n", done.stderr
    assert run(code, P=path).stdout == "False False\n"


def test_process_exit_removes_the_unix_socket_of_the_worker_server(tmp_path):
    path = str(tmp_path / "socket")
    done = run(f"from dldist import control; server = control.serve({path!r})")
    assert done.returncode == 0 and not done.stderr and not os.path.exists(path)


def test_forked_child_has_no_worker_server(path):
    """The child's exit must not affect the parent's socket or port."""
    child = os.fork()
    if child == 0:
        for state in list(control_server._open_servers):
            state.close()
        os._exit(len(control_server._open_servers))
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert send_request(path, "POST", "/handler/ping")[3] == b"pong"


def test_closed_worker_servers_leak_no_threads_or_descriptors(tmp_path):
    def open_resources():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with control.serve(tmp_path / "first") as server:
        send_request(server.address, "POST", "/handler/ping")
    before = open_resources()
    for _ in range(20):
        with control.serve(tmp_path / "socket") as server:
            send_request(server.address, "POST", "/handler/ping")
    # A connection's thread may still exit after the server has closed, here and in earlier tests.
    poll_until(lambda: all(now <= then for now, then in zip(open_resources(), before)), description="fewer threads and descriptors")
