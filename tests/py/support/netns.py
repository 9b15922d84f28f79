"""Hosts for tests: network namespaces of this machine, connected by a switch (a bridge in one more
namespace).

    with netns.Hosts(2) as hosts:
        child = hosts.start(procs, 0, workers.something)     # procs: the fixture
        hosts.cut(1)                                         # pulls the cable of host 1

The namespaces have no names. Each is held by a process that ends when this one does, in whatever
way it ends, so they need no cleanup. Hosts have their own names (UTS namespaces) and addresses in
10.212.0.0/24, which exist only inside.
"""

import os
import shutil
import subprocess

INTERFACE = "veth0"
HOLDER_TIMEOUT_S = 10
_unavailable = None


class Unavailable(Exception):
    """This process cannot make network namespaces."""


def why_unavailable():
    """Return the reason why hosts cannot be made, or None. Tried once."""
    global _unavailable
    if _unavailable is None:
        try:
            with Hosts(2):
                _unavailable = ""
        except Unavailable as error:
            _unavailable = str(error)
    return _unavailable or None


def run(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Namespace:
    """A network and a host name. It lives as long as its holder process, which reads our pipe until
    end of file."""

    def __init__(self, name):
        self.name = name
        command = ["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && echo ready && exec cat >/dev/null"]
        self.holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self.holder.stdout.readline() != "ready\n":
            self.holder.stdin.close()
            self.holder.wait(HOLDER_TIMEOUT_S)
            reason = self.holder.stderr.read().strip()
            self.close()
            raise Unavailable(f"making a namespace: {reason}")
        self.ip("link", "set", "lo", "up")

    @property
    def pid(self):
        return self.holder.pid

    @property
    def prefix(self):
        """Return a command prefix that runs the command in the namespace, as the same process."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--"]

    def ip(self, *words):
        run([*self.prefix, "ip", *words])

    def close(self):
        self.holder.stdin.close()
        try:
            self.holder.wait(HOLDER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()
        self.holder.stdout.close()
        self.holder.stderr.close()


class Hosts:
    """`count` hosts, each with one network interface on the switch."""

    def __init__(self, count):
        if os.geteuid() != 0:
            raise Unavailable("only root makes network namespaces")
        for command, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
            if shutil.which(command) is None:
                raise Unavailable(f"there is no {command} (package {package})")
        self.namespaces = []
        self.switch = None
        try:
            self._make(count)
        except BaseException:
            self.close()
            raise

    def _make(self, count):
        self.switch = Namespace("switch")
        self.switch.ip("link", "add", "name", "bridge0", "type", "bridge")
        self.switch.ip("link", "set", "bridge0", "up")
        for number in range(count):
            host = Namespace(f"host{number}")
            self.namespaces.append(host)
            port = f"port{number}"
            self.switch.ip(
                *f"link add name {port} type veth peer name {INTERFACE} netns {host.pid}".split()
            )
            self.switch.ip("link", "set", port, "master", "bridge0", "up")
            host.ip("address", "add", f"{self.address(number)}/24", "dev", INTERFACE)
            host.ip("link", "set", INTERFACE, "up")

    @staticmethod
    def address(number):
        return f"10.212.0.{number + 1}"

    def name(self, number):
        return self.namespaces[number].name

    def start(self, procs, number, function, *args, env=None):
        """Start a child (procs.py) on that host."""
        return procs.start(function, *args, env=env, prefix=self.namespaces[number].prefix)

    def add_interface(self, number, name, address):
        """Add an interface that is not connected."""
        host = self.namespaces[number]
        host.ip("link", "add", "name", name, "type", "veth", "peer", "name", f"{name}-end")
        host.ip("address", "add", address, "dev", name)
        host.ip("link", "set", f"{name}-end", "up")
        host.ip("link", "set", name, "up")

    def cut(self, number):
        """Pull the cable: packets are lost, and neither side is notified."""
        self.switch.ip("link", "set", f"port{number}", "nomaster")

    def swallow_large(self, number, mtu=600):
        """Drop large packets from and to the host silently, on connections made from now on."""
        # ^ limits packets to the size that the host sends; merged packets would pass as one
        for host in self.namespaces:
            host.ip("link", "set", INTERFACE, "gso_max_segs", "1")
        self.switch.ip("link", "set", f"port{number}", "mtu", str(mtu))

    def send_small(self, one, other, nbytes=550):
        """Limit packets between two hosts to `nbytes`, on connections made from now on."""
        for here, there in ((one, other), (other, one)):
            route = f"{self.address(there)}/32 dev {INTERFACE} mtu lock {nbytes} advmss {nbytes - 60}"
            self.namespaces[here].ip("route", "add", *route.split())

    def restore_switch(self, number):
        self.switch.ip("link", "set", f"port{number}", "master", "bridge0")

    def set_down(self, number):
        """Take the interface down, so that the host itself has no route."""
        self.namespaces[number].ip("link", "set", INTERFACE, "down")

    def set_up(self, number):
        """Take the interface up again."""
        self.namespaces[number].ip("link", "set", INTERFACE, "up")

    def sent_bytes(self, number):
        """Return the bytes that the host has sent, with all headers."""
        return self._counters(number)[8]

    def received_bytes(self, number):
        return self._counters(number)[0]

    def _counters(self, number):
        with open(f"/proc/{self.namespaces[number].pid}/net/dev", encoding="ascii") as file:
            for line in file:
                name, colon, fields = line.partition(":")
                if colon and name.strip() == INTERFACE:
                    return [int(field) for field in fields.split()]
        raise LookupError(f"{INTERFACE} of {self.name(number)}")

    def close(self):
        for namespace in reversed(self.namespaces):
            namespace.close()
        self.namespaces = []
        if self.switch is not None:
            self.switch.close()
            self.switch = None

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()
