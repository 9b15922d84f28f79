"""Hosts for benchmarks/collectives.py: network namespaces joined by veth pairs to a bridge.

The script creates and removes them; this requires root. Each has its own network and host name, and
shares CPUs, files and the driver's Unix socket. The addresses are from the documentation block
(192.0.2.0/24) and visible only inside the namespaces.
"""

import os
import shutil
import subprocess


class HostsUnavailable(Exception):
    """Namespaces cannot be created on this machine."""


def ip(*words):
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    except OSError as error:
        raise HostsUnavailable(f"ip: {error}") from error
    if done.returncode != 0:
        raise HostsUnavailable(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """`count` namespaces, each with an interface of the same name, all connected."""

    interface = "veth0"

    def __init__(self, count, folder, congestion=None):
        if os.geteuid() != 0:
            raise HostsUnavailable("only root makes network namespaces")
        if not shutil.which("ip") or not shutil.which("unshare"):
            raise HostsUnavailable("ip (iproute2) and unshare (util-linux) are not installed")
        self.count, self.folder, self.congestion = count, folder, congestion
        self.names = [f"dldist-bench-{os.getpid()}-{host}" for host in range(count)]
        self.made = []
        try:
            self.make()
        except BaseException:
            self.close()
            raise

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
            self.made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        if self.count == 2:
            self.join_two()
        else:
            self.join_by_bridge()
        for host, name in enumerate(self.names):
            ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", self.interface)
            ip("-n", name, "link", "set", self.interface, "up")
            if self.congestion:
                ip("-n", name, "route", "replace", "192.0.2.0/24", "dev", self.interface, "congctl", self.congestion)
        self.write_agent()

    def join_two(self):
        first, second = self.names
        ip("-n", first, "link", "add", self.interface, "type", "veth", "peer", "name", self.interface, "netns", second)

    def join_by_bridge(self):
        """Put the bridge into the first namespace, so that removing the namespace removes it."""
        first = self.names[0]
        ip("-n", first, "link", "add", "bridge0", "type", "bridge")
        ip("-n", first, "link", "set", "bridge0", "up")
        for host, name in enumerate(self.names):
            port = f"port{host}"
            ip("-n", first, "link", "add", port, "type", "veth", "peer", "name", self.interface, "netns", name)
            ip("-n", first, "link", "set", port, "master", "bridge0", "up")

    def address(self, host):
        return f"192.0.2.{host + 1}"

    def prefix(self, host):
        """Return a command prefix that runs in the host's namespace, under the host's name."""
        rename = f'hostname host{host} && exec "$@"'
        return ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", rename, "sh"]

    # Open MPI starts daemons on other hosts with an agent called like ssh; here, a script.

    @property
    def agent(self):
        return os.path.join(self.folder, "agent.sh")

    def write_agent(self):
        lines = ["#!/bin/sh", "address=$1", "shift", "case $address in"]
        for host in range(self.count):
            prefix = " ".join(f"'{word}'" for word in self.prefix(host))
            lines.append(f'{self.address(host)}) exec {prefix} sh -c "$*" ;;')
        lines += ["esac", "exit 1", ""]
        with open(self.agent, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        os.chmod(self.agent, 0o700)

    def openmpi_options(self, nranks):
        places = [0] * self.count
        for rank in range(nranks):
            places[rank * self.count // nranks] += 1
        hosts = ",".join(f"{self.address(host)}:{places[host]}" for host in range(self.count))
        paths = "self,tcp" if nranks <= self.count else "self,vader,tcp"
        options = {
            "plm_rsh_agent": self.agent,
            "btl": paths,
            "btl_tcp_if_include": self.interface,
            "oob_tcp_if_include": self.interface,
        }
        return ["--host", hosts, *(word for name, value in options.items() for word in ("--mca", name, value))]

    def close(self):
        for name in reversed(self.made):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20)
        self.made = []
