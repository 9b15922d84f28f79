"""Workers of the processes of test_unauthenticated_peers.py. No pytest here."""

import contextlib
import os
import resource
import select
import socket
import time
from datetime import timedelta

import dldist
import procs
from dldist._launch import rank_environment

LOOPBACK = "127.0.0.1"


def limit_descriptors(count):
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def crowded_server(channel, descriptors, secret):
    """Serve a store with few descriptors. Open as many files as each message states, until None."""
    limit_descriptors(descriptors)
    store = dldist.TCPStore(LOOPBACK, 0, is_master=True, secret=secret, timeout=timedelta(seconds=30))
    channel.send(store.port)
    while (count := channel.recv(120)) is not None:
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        channel.send(procs.fd_count())
        for file in files:
            os.close(file)


def listening_ports():
    """Return (address, port) of all TCP sockets that this process listens on: "127.0.0.1", "::",
    ..."""
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
    ports = set()
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        with open(f"/proc/self/net/{name}", encoding="ascii") as file:
            rows = [row.split() for row in file][1:]
        for row in rows:
            if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                address, port = row[1].split(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                ports.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return ports


def meet(channel, port):
    """Make worlds from (name, rank, size, whether it then listens, and perhaps another store host).

    Send the seconds that each took and the addresses on which the process then listens.
    """
    worlds = []
    while (order := channel.recv(120)) is not None:
        name, rank, size, is_listening, *hosts = order
        store = dldist.TCPStore(*(hosts or [LOOPBACK]), port, timeout=timedelta(seconds=60))
        start = time.monotonic()
        worlds.append(dldist.World(store, rank, size, name=name, timeout=60))
        worlds[-1].barrier()
        end = time.monotonic()
        procs.poll_until(lambda: bool(listening_ports()) == is_listening, description="ports that open or close")
        channel.send((end - start, listening_ports()))
    for world in worlds:
        world.close()


def connect_as(channel, user, name, bytes_to_send):
    """Send the response of a store's Unix socket to a process of that user."""
    os.setuid(user)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(20)
        peer.connect("\0" + name)
        with contextlib.suppress(ConnectionError):
            peer.send(bytes_to_send)
            return peer.recv(100)
    return b""


def ask_as(channel, user, host, port, bytes_to_send):
    """Return a store's answer over TCP to a process of that user; b"" if it closes the connection."""
    os.setuid(user)
    # bytes, because for a text Python imports the codec "idna", which the user may not read
    with socket.create_connection((host.encode(), port), 20) as peer, contextlib.suppress(ConnectionError):
        peer.sendall(bytes_to_send)
        return peer.recv(100)
    return b""


def serve_launcher_store(channel):
    """Serve the store of a launcher on all addresses until the parent's message."""
    store = rank_environment.serve("::", 0, "a secret")
    channel.send(store.port)
    channel.recv()


def listen_as(channel, user, name):
    """Listen at the name of a store's Unix socket until the parent's message; send whether any
    process sent data there."""
    os.setuid(user)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.bind("\0" + name)
        peer.listen()
        peer.setblocking(False)
        channel.send("listening")
        channel.recv()
        received = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = peer.accept()
                received += connection.recv(100)
        return received


def use_store_as(channel, user, port):
    timeout = timedelta(seconds=20)
    dldist.TCPStore(LOOPBACK, port, timeout=timeout)  # imports modules that the user may not read
    os.setuid(user)
    store = dldist.TCPStore(LOOPBACK, port, timeout=timeout)
    return store.get("key")


def flood(channel, ports, count, words=b""):
    """Keep `count` connections per port that send only `words`; reopen those that are closed."""
    limit_descriptors(min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], count * len(ports) + 200))
    poll = select.poll()
    connections = {}

    def connect(port):
        peer = socket.socket()
        peer.setblocking(False)
        peer.connect_ex((LOOPBACK, port))
        connections[peer.fileno()] = (peer, port)
        poll.register(peer, select.POLLOUT)

    for port in ports:
        for _ in range(count):
            connect(port)
    nopened = 0
    is_told = False
    while not channel._connection.poll(0):
        for fd, events in poll.poll(20):
            peer, port = connections[fd]
            if events & (select.POLLERR | select.POLLHUP | select.POLLIN):
                poll.unregister(fd)
                peer.close()
                del connections[fd]
                connect(port)
            else:
                nopened += 1
                with contextlib.suppress(ConnectionError):
                    peer.send(words)
                poll.modify(fd, select.POLLIN | select.POLLRDHUP)
        if not is_told and nopened >= count * len(ports):
            is_told = True
            channel.send("there")
        time.sleep(0.002)
    return nopened
