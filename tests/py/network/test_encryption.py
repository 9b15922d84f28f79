"""Data must be encrypted between hosts if there is a secret: checked on the wire, in child
processes, and with ranks that disagree.

tests/c checks the formats bit by bit.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import encryption_workers
import netns
import pytest

SECRET = "a secret of the test"
ETH_P_ALL = 3
needs_hosts = pytest.mark.skipif(netns.why_unavailable() is not None, reason=f"no hosts: {netns.why_unavailable()}")


class Capture:
    """Capture all packets on a host's interface, in both directions."""

    def __init__(self, host):
        self.packets = []
        # A socket belongs to the network namespace in which it was made, so enter that namespace.
        with open(f"/proc/{host.pid}/ns/net", "rb") as there, open("/proc/thread-self/ns/net", "rb") as here:
            _enter(there)
            try:
                self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            finally:
                _enter(here)
        self.socket.bind((netns.INTERFACE, 0))
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self.socket.settimeout(0.2)
        self.is_over = False
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        while not self.is_over:
            try:
                self.packets.append(self.socket.recv(1 << 17))
            except TimeoutError:
                pass

    def close(self):
        self.is_over = True
        self.thread.join()
        self.socket.close()
        return b"|".join(self.packets)


def _enter(file):
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def run_ranks(procs, hosts, job, env, size=2):
    """Run one rank per host. env[rank] is added to its environment."""
    children = [
        hosts.start(procs, rank, encryption_workers.start, job, rank, size, hosts.address(0), env=env[rank])
        for rank in range(size)
    ]
    port = children[0].recv()
    for child in children:
        child.send(port)
    return [child.result(40) for child in children]


def environment(secret=SECRET, encryption="on"):
    return {"DLDIST_SECRET": secret, "DLDIST_ENCRYPTION": encryption}


@pytest.fixture
def hosts(procs):
    with netns.Hosts(2) as made:
        yield made
        procs.close()


@needs_hosts
@pytest.mark.parametrize("encryption", ["on", "off"])
def test_nothing_sent_between_hosts_can_be_read_on_the_wire(procs, hosts, encryption):
    capture = Capture(hosts.namespaces[0])
    try:
        transports = run_ranks(procs, hosts, "everything", [environment(encryption=encryption)] * 2)
    finally:
        seen = capture.close()
    assert len(seen) > 1_000_000
    # Without encryption the marker is visible, so the capture would find it.
    words = [encryption_workers.MARKER[:20], b"key of ", b"marker"]
    assert [word in seen for word in words] == [encryption == "off"] * 3
    assert transports == [{"encrypted TCP" if encryption == "on" else "TCP"}] * 2
    assert SECRET.encode() not in seen


@needs_hosts
def test_groups_use_the_secret_of_their_store(procs, hosts):
    capture = Capture(hosts.namespaces[0])
    try:
        transports = run_ranks(procs, hosts, "everything_with_secret", [{}] * 2)
    finally:
        seen = capture.close()
    assert len(seen) > 1_000_000
    assert encryption_workers.MARKER[:20] not in seen
    assert transports == [{"encrypted TCP"}] * 2


@needs_hosts
def test_log_names_the_cipher_once(procs, hosts):
    for records in run_ranks(procs, hosts, "log", [environment()] * 2):
        assert len(records) == 1
        assert re.match("connections over TCP are encrypted with (AES-256-GCM|ChaCha20-Poly1305), by OpenSSL ", records[0]), records


@needs_hosts
def test_clients_and_stores_that_disagree_on_encryption_fail_to_connect(procs, hosts):
    served, refused = [environment(), environment(encryption="off")]
    failures = []
    for env in ([served, refused], [refused, served]):
        children = [
            hosts.start(procs, rank, encryption_workers.start, "meet", rank, 2, hosts.address(0), env={**env[rank], "DLDIST_SHM": "0"})
            for rank in range(2)
        ]
        port = children[0].recv()
        children[1].send(port)
        failures.append(children[1].result(40))
        for child in children:
            child.close()
    assert "the store's connections are encrypted, and the client does not encrypt: DLDIST_ENCRYPTION" in failures[0]["text"]
    assert "the client encrypts its connections, and the store does not: DLDIST_ENCRYPTION" in failures[1]["text"]
    assert {failure["kind"] for failure in failures} == {"DistAuthError"}


@needs_hosts
def test_ranks_that_disagree_on_encryption_fail_to_connect(procs, hosts, tmp_path):
    env = [environment(), environment(encryption="off")]
    children = [
        hosts.start(procs, rank, encryption_workers.start, "meet_over_file", rank, 2, str(tmp_path / "store"), env=env[rank])
        for rank in range(2)
    ]
    texts = [child.result(40)["text"] for child in children]
    assert any("DLDIST_ENCRYPTION must be the same for all ranks" in text for text in texts), texts
    for rank, text in enumerate(texts):
        assert f"rank {1 - rank}" in text or f"rank {rank} " in text, texts


def test_child_processes_do_not_inherit_the_secret(procs):
    child = procs.start(encryption_workers.start, "inspect_children", 0, 1, "127.0.0.1", env=environment())
    child.send(child.recv())
    before, after, refusal, forked, pid = child.result(40)
    assert before == SECRET
    assert after == f"(taken by process {pid})"
    assert f"DLDIST_SECRET has no secret: got '(taken by process {pid})'" in refusal
    assert forked == SECRET.encode()  # a fork has its parent's memory, not only its variables


def test_secret_of_dlrun_is_not_visible_in_process_lists(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, subprocess, dldist\n"
        "secret = os.environ['DLDIST_SECRET']\n"
        "with dldist.World(timeout=20) as world:\n"
        "    listed = [open(f'/proc/{pid}/cmdline', 'rb').read() for pid in os.listdir('/proc') if pid.isdigit()"
        " and os.path.exists(f'/proc/{pid}/cmdline')]\n"
        "    child = subprocess.run(['env'], capture_output=True, text=True).stdout\n"
        "    print(len(secret) >= 32, any(secret.encode() in line for line in listed), secret in child)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "dldist.run", "--nproc-per-node", "2", str(program)],
        capture_output=True, text=True, timeout=60, env={k: v for k, v in os.environ.items() if k != "DLDIST_SECRET"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split("]: ")[-1] for line in done.stdout.splitlines()]
    assert lines == ["True False False"] * 2, done.stdout


# ---- without the library

LIBRARIES = ("libcrypto.so.3", "libcrypto.so.1.1")


def find(name):
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    return [line.split(" => ")[1] for line in listed.splitlines() if line.strip().startswith(name + " ")]


def run_without(hidden, code):
    """Run a program in a namespace where the libraries are empty files."""
    paths = [os.path.realpath(path) for name in hidden for path in find(name)]
    script = "".join(f"mount --bind /dev/null {path} && " for path in paths) + 'exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment()})


PAIR_OVER_TCP = """
import threading, dldist
store = dldist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=10)
print("served")
import socket, os, ctypes
# A client in a network namespace of its own would not find the Unix socket; here it is another process's: we hide it by a relay.
relay = socket.create_server(("127.0.0.1", 0))
def serve():
    while True:
        here, _ = relay.accept()
        there = socket.create_connection(("127.0.0.1", store.port))
        for a, b in ((here, there), (there, here)):
            threading.Thread(target=pump, args=(a, b), daemon=True).start()
def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
threading.Thread(target=serve, daemon=True).start()
try:
    other = dldist.TCPStore("127.0.0.1", relay.getsockname()[1], timeout=5)
    other.set("key", b"value" * 10000)
    print(store.get("key") == b"value" * 10000)
except Exception as error:
    print(type(error).__name__, error)
"""

needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0,
    reason="only root hides libraries",
)


@needs_mounts
def test_error_about_a_missing_crypto_library_says_what_to_do():
    done = run_without(LIBRARIES, PAIR_OVER_TCP)
    lines = done.stdout.splitlines()
    assert lines[0] == "served", done.stderr  # a single host needs no encryption
    assert "needs OpenSSL's libcrypto" in lines[1]
    assert "DLDIST_ENCRYPTION=off" in lines[1]
