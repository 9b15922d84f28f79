"""One connection to a worker's HTTP/1.1 server, with limits on sizes, times and requests."""

from __future__ import annotations

import hmac
import io
import json
import re
import socket
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote_to_bytes

from dldist.control import handlers
from dldist.control.handlers import BufferedResponse, ReceivedRequest, get_handler, handler_names

LINE_BYTES = 8192
"""Maximum bytes of the request line, and of a form body."""
HEAD_BYTES = 65536
"""Maximum bytes of request line and headers. http.client also limits the headers to 100."""
BODY_BYTES = 4 << 20
REQUEST_S = 10.0
"""Seconds to receive a request after its first byte; for the first request, after accept()."""
IDLE_S = 1.0
"""Seconds that a connection may wait for its next request."""
ANSWER_S = 30.0
"""Seconds for a client to receive a response."""
LINGER_S = 1.0
"""Seconds to read the rest of a rejected request, so that the client can read the response."""
REQUESTS = 30
"""Maximum requests on a connection, as in torch's server."""

_METHODS = frozenset("GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PRI".split())
_HANDLER = re.compile(r"/handler/([^/]*)/?", re.DOTALL)
_INDEX = b'<h1>dldist.WorkerServer</h1>\n<a href="/handler/">Handler names</a>\n'
_REASONS = {code: phrase for code, (phrase, _) in BaseHTTPRequestHandler.responses.items()}


class _Refusal(Exception):
    """Raised to end a request with this status and close the connection."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(status)
        self.response = BufferedResponse()
        self.response.status = status
        if text:
            self.response.set_content(text.encode("utf-8", "backslashreplace"), "text/plain")


class _LimitedReader(io.RawIOBase):
    """Reads from a socket, up to a limit of bytes and a deadline."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._remaining = 0
        self._deadline = 0.0

    def set_limits(self, nbytes: int, seconds: float) -> None:
        self._remaining = nbytes
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._remaining <= 0:
            raise _Refusal(400)
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(seconds)
        count = self._sock.recv_into(memoryview(buffer)[: self._remaining])
        self._remaining -= count
        return count


class Connection(BaseHTTPRequestHandler):
    """Serves one client within this module's limits. The base class only parses requests' heads."""

    protocol_version = "HTTP/1.1"  # keeps connections alive by default

    def __init__(self, sock: socket.socket, token: str, on_idle_change: Callable[[bool], object] = lambda is_idle: None) -> None:
        """Serve one client. Requests must contain `token` unless it is "". on_idle_change(False) is
        called after reading a request, on_idle_change(True) after responding."""
        self.connection = sock
        self._token = token
        self._on_idle_change = on_idle_change
        self._input = _LimitedReader(sock)
        # Python 3.14's default buffer exceeds HEAD_BYTES: it would read beyond that limit.
        self._reader = io.BufferedReader(self._input, LINE_BYTES)
        self.rfile = self._reader  # the base class reads from rfile
        self._requests_left = REQUESTS
        self.close_connection = False

    def run(self) -> None:
        """Serve requests until either side closes the connection."""
        try:
            while not self.close_connection and self._requests_left:
                self._serve_next()
            self._linger()
        except (OSError, _Refusal):
            pass  # nothing to send: the client disconnected or was rejected
        finally:
            self._reader.detach()

    def _linger(self) -> None:
        """Discard the rest of the input, or closing the socket would drop the response."""
        self.connection.shutdown(socket.SHUT_WR)
        self._input.set_limits(BODY_BYTES, LINGER_S)
        while self._reader.read1(65536):
            pass

    def _serve_next(self) -> None:
        self._input.set_limits(HEAD_BYTES, REQUEST_S if self._requests_left == REQUESTS else IDLE_S)
        if not self._reader.peek(1):
            self.close_connection = True
            return
        self._requests_left -= 1
        try:
            self._input.set_limits(HEAD_BYTES, REQUEST_S)
            self._read_head()
            body = self._read_body()
        except (TimeoutError, _Refusal) as error:
            self._send((error if isinstance(error, _Refusal) else _Refusal(408)).response)
            return
        self._on_idle_change(False)
        self._send(self._respond(body))
        self._on_idle_change(True)

    def _read_head(self) -> None:
        self.command = ""
        self.raw_requestline = self._reader.readline(LINE_BYTES + 1)
        if len(self.raw_requestline) > LINE_BYTES:
            raise _Refusal(414)
        if not self.raw_requestline.endswith(b"\n") or not self.parse_request() or self.request_version == "HTTP/0.9":
            raise _Refusal(400)
        if self.command not in _METHODS:
            raise _Refusal(400)
        self._check_client()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject a request that BaseHTTPRequestHandler cannot parse: status 400, no page."""
        raise _Refusal(400)

    def handle_expect_100(self) -> bool:
        return True  # no reply yet: _read_body sends 100 Continue after its checks

    def _check_client(self) -> None:
        """Check the token. Reject web pages: browsers can reach servers that only this host can."""
        if self.headers.get("Origin") is not None:
            raise _Refusal(403, "requests of web pages are refused: got a header Origin, expected none\n")
        credentials = (self.headers.get("Authorization") or "").encode("utf-8", "surrogateescape")
        if self._token and not hmac.compare_digest(credentials, f"Bearer {self._token}".encode()):
            raise _Refusal(401, "authentication required: expected Authorization: Bearer TOKEN, with TOKEN of dldist.control.token()\n")

    def _read_body(self) -> bytes:
        nbytes = self._body_bytes()
        if nbytes and (self.headers.get("Expect") or "").lower() == "100-continue":
            self.connection.settimeout(ANSWER_S)
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._input.set_limits(nbytes + 1, REQUEST_S)
        body = self._reader.read(nbytes)
        if len(body) < nbytes:
            raise _Refusal(400)
        return body

    def _body_bytes(self) -> int:
        if self.headers.get("Transfer-Encoding") is not None:
            raise _Refusal(411)
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if len(lengths) > 1 or not re.fullmatch("[0-9]{1,18}", lengths[0]):
            raise _Refusal(400)
        nbytes = int(lengths[0])
        if nbytes > (LINE_BYTES if self._is_form() else BODY_BYTES):
            raise _Refusal(413)
        return nbytes

    def _is_form(self) -> bool:
        return (self.headers.get("Content-Type") or "").lower().startswith("application/x-www-form-urlencoded")

    def _respond(self, body: bytes) -> BufferedResponse:
        target = self.path.partition("#")[0].encode("latin-1")
        path, _, query = target.partition(b"?")
        name = unquote_to_bytes(path).decode("utf-8", "replace")
        if self.command in ("GET", "HEAD"):
            return _page(name)
        match = _HANDLER.fullmatch(name)
        if self.command != "POST" or not match:
            return _Refusal(404).response
        params = _parse(query)
        if self._is_form():
            params = _parse(body) | params
        return _call(match[1], ReceivedRequest(body, params))

    def _send(self, response: BufferedResponse) -> None:
        is_last = response.status >= 400 or self.close_connection or not self._requests_left
        self.close_connection = is_last
        lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Internal Server Error')}"]
        lines.append("Connection: close" if is_last else f"Keep-Alive: timeout={IDLE_S:.0f}, max={REQUESTS}")
        if response.status == 401:
            lines.append("WWW-Authenticate: Bearer")
        content = b"" if response.status in (204, 304) else response.content
        lines.append(f"Content-Length: {len(content)}")
        if response.content_type is not None:
            lines.append(f"Content-Type: {response.content_type}")
        if self.command == "HEAD":
            content = b""
        self.connection.settimeout(ANSWER_S)  # sendall applies the timeout to the whole response
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode() + content)


def _page(name: str) -> BufferedResponse:
    response = BufferedResponse()
    if name == "/":
        response.set_content(_INDEX, "text/html")
    elif name == "/handler/":
        response.set_content(json.dumps(handler_names(), separators=(",", ":")), "application/json")
    else:
        return _Refusal(404).response
    return response


def _parse(query: bytes) -> dict[bytes, bytes]:
    """Return the parameters by name. The first of several with the same name counts."""
    params: dict[bytes, bytes] = {}
    for item in query.split(b"&"):
        name, _, value = item.replace(b"+", b" ").partition(b"=")
        params.setdefault(unquote_to_bytes(name), unquote_to_bytes(value))
    return params


def _call(name: str, request: ReceivedRequest) -> BufferedResponse:
    try:
        handler = get_handler(name)
    except ValueError:
        return _Refusal(404, f"Handler {name} not found: Failed to find handler {name}").response
    response = BufferedResponse()
    try:
        handler(request, response)
    except BaseException as error:  # even SystemExit of a handler must not end the server
        return _Refusal(500, f"Handler {name} failed: {_describe(error)}").response
    return response


def _describe(error: BaseException) -> str:
    """Return the error and its traceback, innermost frame first, as torch's server does."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if frame.filename != handlers.__file__]
    location = "".join(f"  {frame.filename}({frame.lineno}): {frame.name}\n" for frame in reversed(frames))
    try:
        text = str(error)
    except Exception as second:
        text = f"no text, as its __str__ raised {type(second).__name__}"
    return f"{type(error).__name__}: {text}\n\nAt:\n{location}"
