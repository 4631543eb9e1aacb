"""Data of the page: gzipped JSON as base64, which the browser unpacks. Data is added until a size limit is reached."""

import base64
import zlib
from itertools import product

from opdkit.config.fields import JSON

_GZIP = 31  # zlib's window bits for gzip; the header has no time, so that equal data gives equal bytes
_BEFORE = 12  # messages before the reply that a whole turn shows, at most
_CHARS, _REPLY_CHARS, _RAW_CHARS = 3_000, 12_000, 800  # of a message, of the reply, of a judge's answer, at most
_TOKENS = 1_500


class Packed:
    """JSON document under construction, gzipped, in at most `room` characters of base64."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._zip = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._out = bytearray()

    def add(self, data: bytes, share: float = 1.0) -> bool:
        """Add data. Return False, and add nothing, if it does not fit into `share` of the room."""
        trial = self._zip.copy()
        most = round(self._room * share) // 4 * 3 - 64  # bytes before base64; 64 are left for the end
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

    `cut`: number of characters cut from a message, or tokens cut from a target. `earlier`: number of messages left out.
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
