"""What the environment says about connections and algorithms; docs/environment.md lists it."""

import os

_MAX_LANES = 16


def _fail(name: str, wanted: str) -> ValueError:
    return ValueError(f"{name} must be {wanted}, not {os.environ[name]!r}")


def _interfaces() -> str:
    name = "DLDIST_SOCKET_IFNAME" if os.environ.get("DLDIST_SOCKET_IFNAME") else "GLOO_SOCKET_IFNAME"
    return os.environ.get(name, "")


def _ports() -> tuple[int, int]:
    name = "DLDIST_PORT_RANGE"
    text = os.environ.get(name, "")
    if not text:
        return 0, 0
    first, _, last = text.partition("-")
    try:
        ports = int(first), int(last or first)
    except ValueError:
        ports = 0, 0
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise _fail(name, 'a range of ports such as "5000-5010"')
    return ports


def _has_shared_memory() -> bool:
    name = "DLDIST_SHM"
    text = os.environ.get(name, "") or "1"
    if text not in ("0", "1"):
        raise _fail(name, '"0" or "1"')
    return text == "1"


def _lanes() -> int:
    name = "DLDIST_TCP_LANES"
    text = os.environ.get(name, "") or "1"
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_LANES:
        raise _fail(name, f"a number from 1 to {_MAX_LANES}")
    return int(text)


def connection() -> tuple[str, int, int, bool, int, str, bytes]:
    """Interfaces, first and last port, whether shared memory may be used, connections a peer, TCP's congestion control,
    the secret."""
    congestion = os.environ.get("DLDIST_TCP_CONGESTION", "")
    secret = os.environb.get(b"DLDIST_SECRET", b"")
    return (_interfaces(), *_ports(), _has_shared_memory(), _lanes(), congestion, secret)


def algorithm() -> str:
    """The algorithms that are asked for, whatever the size."""
    return os.environ.get("DLDIST_ALGORITHM", "")
