"""Reviewers' page over HTTP, for one person on this machine and nobody else.

The server listens on 127.0.0.1 and answers only requests that carry the random token of the printed address. A page of
another origin can make a browser send requests here, and an attacker's DNS name can resolve to this address. So a
request with a foreign Origin or Host is refused even with the token. The Host may name any port of loopback, because an
SSH tunnel may use another port. A change is a POST of JSON, which no link, image or form can send. The server does not
protect the run directory from people who may read its files.
"""

import contextlib
import glob
import hmac
import json
import re
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from opdkit.commands.review.api import Api
from opdkit.commands.turns.view import read_turn_view
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.config.review import ReviewConfig
from opdkit.console import say, warn
from opdkit.errors import OpdkitError
from opdkit.store import reviews
from opdkit.store.plans import find_command, has_stage
from opdkit.store.reading import find_parts
from opdkit.store.run_stage import find_next_step

_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost):[0-9]{1,5}", re.IGNORECASE)
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

    Raises OpdkitError if the run is not judged yet, or the port is taken.
    """
    reviewer = config.reviewer or reviews.whoami()
    server = ReviewServer(Api(config.run, reviewer), config.port)
    logs = [path / "log" for path in (config.run, config.run.parent) if has_stage(path / "log", "judge")]
    if logs and find_command(config.run, "judge") == "night":
        warn(f"later nights read only decisions in the folder log of a night: `opdkit review {quote(logs[0])}`")
    stop = threading.Event()
    before = {name: signal.signal(name, lambda *_: stop.set()) for name in (signal.SIGINT, signal.SIGTERM)}
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1})
    serving.start()
    try:
        print(server.address, flush=True)
        port = server.server_port
        say(f"reviewing {config.run} as {reviewer}; stop with Ctrl-C")
        tunnel = f"ssh -L {port}:127.0.0.1:{port} {reviews.whoami()}@{socket.gethostname()}"
        say(f"to open it on another computer, run there: {tunnel}")
        if config.open and not webbrowser.open(server.address):
            warn("no browser could be opened here: open the address yourself")
        stop.wait()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()  # waits for running requests, so that no decision is cut short
        for name, handler in before.items():
            signal.signal(name, handler)
    decided = len(reviews.read_reviews_in_force(config.run))
    say(f"stopped; decisions in force: {decided:,}, in {reviews.reviews_dir(config.run)}")
    with contextlib.suppress(OpdkitError):  # a later stage is damaged
        if step := find_next_step(config.run):
            say(step)


class ReviewServer(ThreadingHTTPServer):
    """Server of one run. Every request must carry `token`."""

    daemon_threads = False

    def __init__(self, api: Api, port: int = 0) -> None:
        """Bind the port. Raises OpdkitError if it is taken."""
        self.api, self.token = api, secrets.token_urlsafe(24)
        self._making, self._page = threading.Lock(), (list[tuple[str, int, int]](), b"")
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OSError as error:
            raise OpdkitError(f"--port {port} cannot be used: {error.strerror or error}") from error
        self.address = f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def page(self) -> bytes:
        """Return the page, cached until a stage writes or somebody decides, as its figures count decisions, too."""
        from opdkit.commands.report.page import make_page  # imported here: it imports most of opdkit

        run, written = self.api.run, list[tuple[str, int, int]]()
        for folder, pattern in ((run, "*/*"), (reviews.reviews_dir(run), "*")):
            for name in glob.glob(pattern, root_dir=folder, include_hidden=True):  # noqa: PTH207 -- that of Path raises
                with contextlib.suppress(FileNotFoundError):  # a stage just removed the file, or a link is broken
                    status = (folder / name).stat()
                    written.append((str(folder / name), status.st_size, status.st_mtime_ns))
        written.sort()
        with self._making:
            if written != self._page[0]:
                self._page = written, make_page(run, {"token": self.token, "reviewer": self.api.reviewer}).encode()
            return self._page[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Warn of an error, without a traceback, unless the client has gone away."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            warn(f"a request failed: {type(error).__name__}: {error}")


class RequestError(Exception):
    """Refusal of a request. Its arguments are the HTTP status and the reason."""


class Handler(BaseHTTPRequestHandler):
    """Handler of one request."""

    server: ReviewServer
    server_version, sys_version = "opdkit", ""
    timeout = _PATIENCE

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing, because the address of a request may hold the token."""

    def do_GET(self) -> None:
        """Answer a request, GET or POST."""
        answer: JSON | bytes
        try:
            self._check_sender()
            status, answer = HTTPStatus.OK, self._answer(urlsplit(self.path).path)
        except RequestError as error:
            status, answer = error.args[0], {"error": error.args[1]}
        except reviews.ConflictError as error:
            newer = {review.turn_id: review.to_json() for review in error.newer}
            status, answer = HTTPStatus.CONFLICT, {"error": str(error), "newer": newer} | self.server.api.decisions()
        except OpdkitError as error:
            is_wrong = isinstance(error, reviews.InvalidDecisionError)
            status = HTTPStatus.BAD_REQUEST if is_wrong else HTTPStatus.INTERNAL_SERVER_ERROR
            answer = {"error": str(error)}
        if isinstance(answer, bytes):
            kind, body = "text/html; charset=utf-8", answer
        else:
            kind, body = "application/json", json.dumps(answer, ensure_ascii=True, allow_nan=False).encode()
        self.send_response(status)
        headers = _HEADERS | {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def _answer(self, path: str) -> JSON | bytes:
        """Return the answer: JSON, or the HTML of the page. Raises RequestError if there is none."""
        api, is_post = self.server.api, self.command == "POST"
        if path == "/" and not is_post:
            return self.server.page()
        if path == "/api/reviews":
            return api.decide(self._read_decision()) if is_post else api.decisions()
        if path.startswith("/api/turns/") and not is_post:
            turn_id = unquote(path.removeprefix("/api/turns/"))
            if not find_parts(api.run, [turn_id]):
                raise RequestError(HTTPStatus.NOT_FOUND, f"there is no turn {turn_id}")
            return read_turn_view(api.run, turn_id)
        raise RequestError(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _check_sender(self) -> None:
        """Raise RequestError unless the request comes from our own page and carries the token."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _LOOPBACK.fullmatch(hosts[0]):
            raise RequestError(HTTPStatus.FORBIDDEN, "foreign Host")
        origins = self.headers.get_all("Origin", [])
        if any(origin != f"http://{hosts[0].lower()}" for origin in origins):
            raise RequestError(HTTPStatus.FORBIDDEN, "foreign Origin")
        token = self.headers.get("X-Opdkit-Token", "")
        if not token:
            with contextlib.suppress(ValueError):  # raised for too many parameters
                token = parse_qs(urlsplit(self.path).query, max_num_fields=10).get("token", [""])[0]
        if not hmac.compare_digest(token.encode(errors="surrogateescape"), self.server.token.encode()):
            raise RequestError(HTTPStatus.FORBIDDEN, "no token, or not that of this server: use the address it printed")

    def _read_decision(self) -> object:
        """Read the body of a POST. Raises RequestError unless it is JSON of a bounded size."""
        if self.headers.get_content_type() != "application/json":  # a form of another page cannot send this type
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a decision is sent as application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing")
        if int(length) > MAX_BODY:
            raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a decision has at most {MAX_BODY:,} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the body is cut short")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the body is not JSON") from None
