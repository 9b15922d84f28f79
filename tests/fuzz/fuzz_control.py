#!/usr/bin/env python3
"""Send malformed requests to a connection of a worker's server (pkg/dldist/control/http.py).

    PYTHONPATH=pkg python tests/fuzz/fuzz_control.py --seconds 600

Seeds are requests of every kind; inputs are made from them by cutting, repeating and changing. For
every input the connection must end, no exception may escape, and the answer must be HTTP. A failure
writes the input to control-failure.bin and prints the seed.
"""

import argparse
import pathlib
import random
import re
import socket
import sys
import time

from dldist.control import http, register_handler
from mutate import mutated

TOKEN = "0123456789abcdef"
SEEDS = [
    b"POST /handler/ping HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\nGET /handler/ HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"HEAD /handler/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST /handler/fuzz?a=1&b=%41+c&a=%ff&status=204#x HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /handler/fuzz HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\nstatus=%3",
    b"POST /handler/fuzz?raise=1 HTTP/1.1\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n",
    b"PUT /handler/%2e%00/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /handler/fuzz HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    b"GET /handler/fr_trace_json?includeStackTraces=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nOrigin: http://x\r\nX: " + b"y" * 300 + b"\r\n folded\r\n\r\n",
]
WORDS = [b"\r\n", b"\n", b"\0", b" ", b":", b"%", b"%zz", b"Content-Length: ", b"-1", b"999999999999", b"HTTP/1.1", b"HTTP/0.9"]
WORDS += [b"Transfer-Encoding: chunked\r\n", b"Authorization: Bearer \xff\r\n", b"A: b\r\n" * 120, b"a" * 9000, b"\xff\xfe", b"\x85", b"?", b"&="]
STATUS_LINE = re.compile(rb"HTTP/1\.1 [1-5][0-9]{2} [ -~]+\r\n")
LIMIT = 60000  # capacity of a socket pair without a reader


def answer(request, response):
    """Answer as a malicious handler: raise, or use any status and content."""
    if request.get_param("raise"):
        raise SystemExit(request.body())
    response.set_status(int(request.get_param("status") or 200))
    response.set_content(request.body() + request.get_param("a"), request.get_param("b") or "text/plain")


def serve_bytes(data, token):
    """Return the connection's answer to these bytes and the end of the client's stream."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        http.Connection(theirs, token).run()
        theirs.close()
        ours.settimeout(5)
        return b"".join(iter(lambda: ours.recv(1 << 16), b""))


def check(data, token):
    began = time.monotonic()
    said = serve_bytes(data, token)
    assert time.monotonic() - began < 5, "took too long"
    assert not said or STATUS_LINE.match(said), said[:200]
    if token and token.encode() not in data:
        assert b"\r\n\r\npong" not in said and b"Handler" not in said, "answered a stranger"


def fuzz(seconds, seed):
    """Return the number of inputs. Raise an exception for the first one that fails."""
    if "fuzz" not in http.handler_names():
        register_handler("fuzz", answer)
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        data = mutated(rng, SEEDS, WORDS, limit=LIMIT)
        token = rng.choice(["", TOKEN])
        try:
            check(data, token)
        except BaseException:
            pathlib.Path("control-failure.bin").write_bytes(data)
            print(f"failed: --seed {seed}, input {count}, token {token!r}: control-failure.bin", file=sys.stderr)
            raise
        count += 1
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replay", type=pathlib.Path, help="one input again")
    args = parser.parse_args()
    if args.replay:
        register_handler("fuzz", answer)
        for token in ("", TOKEN):
            check(args.replay.read_bytes(), token)
        return
    seed = random.randrange(2**32) if args.seed is None else args.seed
    print(f"{fuzz(args.seconds, seed)} inputs, seed {seed}")


if __name__ == "__main__":
    main()
