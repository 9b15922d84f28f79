"""Ports for servers that tests start."""

import socket

LOOPBACK = "127.0.0.1"
_reservations = []


def reserve_port(host=LOOPBACK):
    """Return a port that the system assigns to no other socket while this process runs.

    A socket with SO_REUSEADDR is bound to it and does not listen. Connections to the port are
    refused until a server listens on it, which needs SO_REUSEADDR as well.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((host, 0))
    _reservations.append(reservation)
    return reservation.getsockname()[1]
