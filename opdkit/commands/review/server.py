"""The reviewers' page over HTTP, for one person on this machine and nobody else.

It listens on 127.0.0.1 and answers whoever knows the random token that the address carries. A page of another origin
can make a browser send requests here, and a name server can point its own name here: so a foreign Origin or Host is
refused whatever it knows, and nothing that a link, an image or a form can send changes anything: a change is a POST of
JSON. Whoever may read the run directory needs no server, and is not kept out.
"""

import hmac
import json
import secrets
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from opdkit.commands.review.api import Api, UnknownTurnError
from opdkit.config.fields import JSON
from opdkit.config.review import ReviewConfig
from opdkit.console import say, warn
from opdkit.errors import OpdkitError
from opdkit.store import reviews

MAX_BODY = 1 << 16  # bytes; a decision is a hint and a note
_PATIENCE = 10.0  # seconds without a byte before a connection is dropped
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def run(config: ReviewConfig) -> None:
    """Serve the page of a run until Ctrl-C or SIGTERM; its address goes to stdout.

    Raises OpdkitError when the run is not judged yet, or the port is taken.
    """
    reviewer = config.reviewer or reviews.whoami()
    server = ReviewServer(Api(config.run, reviewer), config.port)
    stop = threading.Event()
    before = {name: signal.signal(name, _setting(stop)) for name in (signal.SIGINT, signal.SIGTERM)}
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    serving.start()
    try:
        print(server.address, flush=True)
        say(f"reviewing {config.run} as {reviewer}; stop with Ctrl-C")
        if config.open and not webbrowser.open(server.address):
            warn("no browser could be opened here: open the address yourself")
        stop.wait()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()  # waits for the answers under way: no decision is cut short
        for name, handler in before.items():
            signal.signal(name, handler)
    say(f"stopped; decisions in force: {len(reviews.in_force(config.run)):,}, in {reviews.folder(config.run)}")


def _setting(stop: threading.Event) -> Callable[[int, FrameType | None], None]:
    return lambda number, frame: stop.set()


class ReviewServer(ThreadingHTTPServer):
    """The server of one run. `token` is what a request must carry."""

    daemon_threads = False

    def __init__(self, api: Api, port: int = 0) -> None:
        """Raises OpdkitError when the port is taken."""
        self.api, self.token = api, secrets.token_urlsafe(24)
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            raise OpdkitError(f"--port {port} cannot be used: {error.strerror or error}") from error
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no news; everything else is said, without a traceback."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            warn(f"a request failed: {type(error).__name__}: {error}")


class RefusedError(Exception):
    """A request that is not answered, and how that is said."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ReviewServer
    server_version, sys_version = "opdkit", ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: a log of addresses would be a log of tokens."""

    # -- who may ask ------------------------------------------------------------------------------------------------

    def _answer(self, action: Callable[[str], tuple[str, bytes]]) -> None:
        try:
            self._refuse_strangers()
            kind, body = action(urlsplit(self.path).path)
            self._send(HTTPStatus.OK, kind, body)
        except RefusedError as refused:
            self._send(refused.status, *_json({"error": str(refused)}))
        except UnknownTurnError as error:
            self._send(HTTPStatus.NOT_FOUND, *_json({"error": str(error)}))
        except OpdkitError as error:
            status = HTTPStatus.BAD_REQUEST if self.command == "POST" else HTTPStatus.INTERNAL_SERVER_ERROR
            self._send(status, *_json({"error": str(error)}))

    def _refuse_strangers(self) -> None:
        """Raises RefusedError unless the request comes from our own page, and knows the token."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            raise RefusedError(HTTPStatus.FORBIDDEN, "foreign Host")
        origins = self.headers.get_all("Origin", [])
        if any(origin != f"http://{hosts[0].lower()}" for origin in origins):
            raise RefusedError(HTTPStatus.FORBIDDEN, "foreign Origin")
        given = self.headers.get("X-Opdkit-Token") or _parameter(self.path, "token")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self.server.token.encode()):
            raise RefusedError(HTTPStatus.FORBIDDEN, "no token, or not that of this server: use the address it printed")

    # -- what is asked ----------------------------------------------------------------------------------------------

    def _get(self, path: str) -> tuple[str, bytes]:
        if path == "/":
            from opdkit.commands.report.page import page  # imported here: it is most of what there is to import

            return "text/html; charset=utf-8", page(self.server.api.run, review={"token": self.server.token}).encode()
        if path == "/api/reviews":
            return _json(self.server.api.decisions())
        if path.startswith("/api/turns/"):
            return _json(self.server.api.turn(unquote(path.removeprefix("/api/turns/"))))
        raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _post(self, path: str) -> tuple[str, bytes]:
        if path != "/api/reviews":
            raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")
        if self.headers.get_content_type() != "application/json":  # what a form of another page can send is none
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a decision is sent as application/json")
        return _json(self.server.api.decide(self._document()))

    def _document(self) -> object:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        if int(length) > MAX_BODY:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a decision has at most {MAX_BODY:,} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is cut short")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _json(document: JSON) -> tuple[str, bytes]:
    return "application/json", json.dumps(document, ensure_ascii=True, allow_nan=False).encode()


def _parameter(path: str, name: str) -> str:
    try:
        return parse_qs(urlsplit(path).query, max_num_fields=10).get(name, [""])[0]
    except ValueError:
        return ""
