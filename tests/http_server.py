"""A small real HTTP server on loopback that answers chat completions as a script says, failures included."""

import asyncio
import json
import os
import socket
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """Response to one request, or a fault of the connection.

    `fault`: reset; hang (`seconds` without a byte); half (half the bytes, then the end); drip (a byte per 0.1 s).
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    fault: str | None = None
    seconds: float = 30.0


def completion(content: Any, finish_reason: str | None = "stop", **message: Any) -> Reply:
    """Return a well-formed chat completion; the server adds the name of the requested model, as real servers do."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    choice |= {"finish_reason": finish_reason} if finish_reason else {}
    return Reply(body={"object": "chat.completion", "choices": [choice]})


Script = Callable[[dict[str, Any], int], Reply]  # (request body, number of the request from 0) -> what to send


class ChatServer:
    """HTTP server: `requests` and `headers` record each request; GET /models lists `models` (None: 404)."""

    def __init__(self, script: Script, models: list[str] | None) -> None:
        self.script, self.models = script, models
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.most_at_once = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                outer.post(self)

            def do_GET(self) -> None:
                listed = {"data": [{"id": name} for name in outer.models or ()] or None}  # Ollama has null for []
                missing = Reply(404, "<html>no such page</html>")
                outer.send(self, missing if outer.models is None else Reply(body=listed))

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # connections beyond it are retried after a second

        self.http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append({name.title(): value for name, value in handler.headers.items()})
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            reply = self.script(body, number)
            if isinstance(reply.body, dict) and reply.body.get("object") == "chat.completion":
                reply = replace(reply, body={"model": body["model"]} | reply.body)
            self.send(handler, reply)
        finally:
            with self.lock:
                self.under_way -= 1

    def send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        if reply.fault == "reset":
            # Linger 0 makes close() send RST instead of FIN; the handler's own shutdown would send a FIN first.
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            os.close(handler.connection.detach())
            handler.close_connection = True
            return
        if reply.fault == "hang":
            self.closing.wait(reply.seconds)
            handler.close_connection = True
            return
        raw = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
        payload = raw.encode()
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(payload)))
        handler.end_headers()
        if reply.fault == "half":
            handler.wfile.write(payload[: len(payload) // 2])
            handler.close_connection = True
        elif reply.fault == "drip":
            for byte in payload:
                handler.wfile.write(bytes([byte]))
                handler.wfile.flush()
                if self.closing.wait(0.1):
                    break
        else:
            handler.wfile.write(payload)


@contextmanager
def serving(script: Script, models: list[str] | None = None):
    """Yield a running ChatServer."""
    server = ChatServer(script, models)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()


def unused_address() -> str:
    """Return an address at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


@contextmanager
def recorded_pauses() -> Iterator[list[float]]:
    """Yield a list that fills with the seconds of every `asyncio.sleep`."""
    seconds, sleep = list[float](), asyncio.sleep

    async def recorded(delay: float, result: Any = None) -> Any:
        seconds.append(delay)
        return await sleep(delay, result)

    with unittest.mock.patch("asyncio.sleep", recorded):
        yield seconds
