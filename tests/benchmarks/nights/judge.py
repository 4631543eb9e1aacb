"""Judge server that knows the world: it answers the questions about replies to mined prompts."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..worlds.small_talk import SMALL_TALK
from ..worlds.users import hint_of
from ..worlds.world import Topic, passes
from .world import TOPICS

REQUESTS = {r.format(item): (topic, item) for topic in (*TOPICS, *SMALL_TALK) for item in topic.items
            for r in topic.requests}  # fmt: skip
_SECTION = re.compile(r"^## (.+)\n((?:\| ?.*\n?)*)", re.MULTILINE)


@contextmanager
def serving() -> Iterator[str]:
    """Run the judge and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": f"\\boxed{{{verdict(body['messages'][-1]['content'])}}}"}
        self.send({"object": "chat.completion",
                   "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})  # fmt: skip

    def do_GET(self) -> None:
        self.send({"data": [{"id": "world"}]})

    def send(self, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def verdict(question: str) -> int:
    """Return 1 or -1 for a question about a reply, 0 if it holds no request of the world."""
    before, _, _ = question.partition("## Reply")
    asked = max((place, REQUESTS[text]) for text in REQUESTS if (place := before.rfind(text)) >= 0) if any(
        text in before for text in REQUESTS) else None  # fmt: skip
    if asked is None:
        return 0
    topic, item = asked[1]
    parts = {title: "\n".join(line.removeprefix("|").removeprefix(" ") for line in text.splitlines())
             for title, text in _SECTION.findall(question)}  # fmt: skip
    styles = wanted_styles(topic, item, parts.get("Hint"), parts.get("Good reply"))
    return 1 if any(passes(topic, item, style, parts["Reply"].strip()) for style in styles) else -1


def wanted_styles(topic: Topic, item: str, hint: str | None, praised: str | None) -> list[str]:
    """Return the styles of a praised reply, or those that a hint asks for; else the topic's first style."""
    if praised is not None:
        return [style.name for style in topic.styles if passes(topic, item, style.name, praised.strip())]
    hinted = [style.name for style in topic.styles if hint in {hint_of(words) for words in style.wordings()}]
    return hinted or [topic.styles[0].name]
