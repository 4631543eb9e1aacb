"""Data of the page: JSON as gzip in the base64 that a browser unpacks, added until a size limit is reached."""

import base64
import zlib
from itertools import product

from opdkit.config.fields import JSON

_GZIP = 31  # zlib's window bits for a gzip header and trailer; without a time in it, equal data packs equally
_BEFORE = 12  # messages before the reply that a turn shown whole has
_CHARS, _REPLY_CHARS, _RAW_CHARS = 3_000, 12_000, 800  # of a message, of the reply, of a judge's answer
_TOKENS = 1_500


class Packed:
    """Bytes of a JSON document, in at most `room` characters of base64."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._zip = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._out = bytearray()

    def add(self, data: bytes, share: float = 1.0) -> bool:
        """Add data. Return False, and add nothing, if it does not fit into a share of the room."""
        trial = self._zip.copy()
        most = round(self._room * share) // 4 * 3 - 64  # bytes before base64; the end of the document takes the rest
        if len(self._out) + len(trial.compress(data)) + len(trial.flush()) > most:
            return False
        self._out += self._zip.compress(data)
        return True

    def text(self, end: bytes) -> str:
        """Add the last few bytes, and return everything as base64."""
        self._out += self._zip.compress(end) + self._zip.flush()
        return base64.b64encode(self._out).decode("ascii")


def shorten_view(view: JSON) -> JSON:
    """Return a turn view with the messages nearest to the reply, long texts cut, and numbers rounded.

    `cut` counts the characters, or tokens, that a message or a target lacks; `earlier` the messages before the first.
    """
    index, verdict = view["message_index"], view["verdict"]
    first = max(0, index - _BEFORE)
    short = view | {"earlier": first, "messages": [], "targets": []}
    for n, message in enumerate(view["messages"][first:], start=first):
        short["messages"].append(_shorten_message(message, _REPLY_CHARS if n == index else _CHARS))
    for name in ("reward_votes", "hint_votes") if verdict else ():
        votes = [vote | {"raw": vote["raw"][:_RAW_CHARS]} for vote in verdict[name]]
        short["verdict"] = short["verdict"] | {name: votes}
    for target in view["targets"]:
        tokens = [dict(token) for token in target["tokens"][:_TOKENS]]
        for token, name in product(tokens, ("old", "teacher", "advantage")):
            token[name] = None if token[name] is None else round(token[name], 3)
        left_out = len(target["tokens"]) - len(tokens)
        short["targets"].append(target | {"tokens": tokens} | ({"cut": left_out} if left_out else {}))
    return short


def _shorten_message(message: JSON, chars: int) -> JSON:
    short, cut = dict(message), 0
    for name in ("content", "reasoning"):
        text = message[name] or ""
        if len(text) > chars:
            cut += len(text) - chars
            short[name] = text[:chars]
    cut += sum(max(0, len(call["arguments"]) - chars) for call in message["tool_calls"])
    short["tool_calls"] = [call | {"arguments": call["arguments"][:chars]} for call in message["tool_calls"]]
    return short | ({"cut": cut} if cut else {})
