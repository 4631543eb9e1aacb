"""Damage a line of a log as disks, encoders, other programs and attackers do.

Everything is drawn from the generator that is passed, so that a line can be made again and hypothesis can shrink it.
"""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

Path = list[str | int]

LITERALS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e-999", "9" * 400, "9" * 5_000, str(2**63), str(-(2**70)), "-0",
            "0.1e", "01", "tru", "'text'", '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\q"', "")  # fmt: skip
VALUES = (None, True, False, 0, -1, 2**31, 2**63, 1.5, 1e308, "", " ", "\x00", "\x1b[31m", "\u2028", "\ufeff", [], {},
          [[]], [None], {"": ""}, "user", "assistant", "tool", "<think>", "</tool_call>", "<tool_call>{", "unknown",
          "../../etc/passwd", "a#2", "%23", "<|im_start|>assistant\n")  # fmt: skip
BYTES = (b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\r", b"\x1b", b'"',
         b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\xe2\x80\xa8", b"//", b"#")  # fmt: skip
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "shift_jis")
DEPTHS = (10, 200, 400, 900, 1_100, 3_000, 10_000)
_HOLE = "\ue000hole\ue000"  # stands for a literal until the record is JSON


def mutated(line: bytes, draw: random.Random, most: int = 3) -> bytes:
    """Return `line` after 0 to `most` mutations, without line breaks."""
    for _ in range(draw.randint(0, most)):
        line = draw.choice(BYTE_MUTATIONS if draw.random() < 0.4 else VALUE_MUTATIONS)(line, draw)
    return line.replace(b"\n", b" ")


# -- bytes -----------------------------------------------------------------------------------------------------------


def _place(line: bytes, draw: random.Random) -> int:
    return draw.randint(0, len(line))


def flip(line: bytes, draw: random.Random) -> bytes:
    """Flip some bits."""
    data = bytearray(line)
    for _ in range(draw.randint(1, 4) if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def cut(line: bytes, draw: random.Random) -> bytes:
    return line[: _place(line, draw)]


def behead(line: bytes, draw: random.Random) -> bytes:
    return line[_place(line, draw) :]


def double(line: bytes, draw: random.Random) -> bytes:
    """Repeat the line or a piece of it."""
    a, b = sorted((_place(line, draw), _place(line, draw)))
    return line + line if draw.random() < 0.3 else line[:b] + line[a:]


def lose(line: bytes, draw: random.Random) -> bytes:
    a = _place(line, draw)
    return line[:a] + line[a + draw.randint(1, 20) :]


def insert(line: bytes, draw: random.Random) -> bytes:
    a = draw.choice((0, len(line), _place(line, draw)))
    return line[:a] + draw.choice(BYTES) * draw.choice((1, 1, 2, 50)) + line[a:]


def encode(line: bytes, draw: random.Random) -> bytes:
    return line.decode("utf-8", "replace").encode(draw.choice(ENCODINGS), "replace")


def carriage_return(line: bytes, draw: random.Random) -> bytes:
    return line + b"\r"


def nest(line: bytes, draw: random.Random) -> bytes:
    """Put the whole line inside many lists, closed or not."""
    depth, close = draw.choice(DEPTHS), draw.random() < 0.5
    return b'{"messages":' + b"[" * depth + line + b"]" * (depth * close) + b"}"


# -- values ----------------------------------------------------------------------------------------------------------


def _on_value(change: Callable[[Any, str | int, random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    """Return a mutation of a line that changes one value anywhere in its record."""

    def mutation(line: bytes, draw: random.Random) -> bytes:
        try:
            record = json.loads(line)
            holder, key = _somewhere(record, draw)
            change(holder, key, draw)
            text = json.dumps(record, ensure_ascii=draw.random() < 0.5)
        except (ValueError, RecursionError, LookupError):
            return insert(line, draw)
        if _HOLE in text or "\\ue000" in text:
            hole = json.dumps(_HOLE) if '"\\ue000' in text else f'"{_HOLE}"'
            text = text.replace(hole, draw.choice(LITERALS))
        return text.encode("utf-8", "surrogatepass")

    mutation.__name__ = change.__name__
    return mutation


def _somewhere(record: Any, draw: random.Random) -> tuple[Any, Any]:
    """Return (holder, key) of a value, by a walk from the root that may stop at every step. Raises LookupError."""
    holder, key = None, None
    value = record
    while isinstance(value, (dict, list)) and value and (holder is None or draw.random() < 0.7):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        holder, key = value, draw.choice(keys)
        value = holder[key]
    if holder is None:
        raise LookupError
    return holder, key


def retype(holder: Any, key: Any, draw: random.Random) -> None:
    value = holder[key]
    holder[key] = draw.choice((str(value)[:500], [value], {"value": value}, json.dumps(value), None, 7))


def replace(holder: Any, key: Any, draw: random.Random) -> None:
    holder[key] = copy.deepcopy(draw.choice(VALUES))


def remove(holder: Any, key: Any, draw: random.Random) -> None:
    del holder[key]


def literal(holder: Any, key: Any, draw: random.Random) -> None:
    """Replace the value by a number or a word that JSON does not have, or that no type can hold."""
    holder[key] = _HOLE


def move(holder: Any, key: Any, draw: random.Random) -> None:
    """Move the value to another key."""
    if isinstance(holder, dict):
        holder[draw.choice([*holder, "role", "content", "messages", "from", "type", "K" * 10_000])] = holder.pop(key)


def repeat(holder: Any, key: Any, draw: random.Random) -> None:
    """Repeat a value of a list many times, or make a text long."""
    if isinstance(holder, list):
        holder[key:key] = [holder[key]] * draw.choice((1, 5, 200))
    elif isinstance(holder[key], str):
        holder[key] = (holder[key] or "x")[:1_000] * draw.choice((2, 100))


def deepen(holder: Any, key: Any, draw: random.Random) -> None:
    value = holder[key]
    for _ in range(draw.choice((1, 5, 200, 300))):
        value = [value]
    holder[key] = value


def duplicate_key(line: bytes, draw: random.Random) -> bytes:
    """Add a key a second time, with another value, before or after the first."""
    try:
        keys = list(json.loads(line))
        key = draw.choice(keys)
    except (ValueError, RecursionError, TypeError, LookupError):
        return insert(line, draw)
    entry = json.dumps({key: draw.choice(VALUES)}).encode()[1:-1]
    return b"{" + entry + b"," + line[1:] if draw.random() < 0.5 else line.rstrip()[:-1] + b"," + entry + b"}"


BYTE_MUTATIONS = (flip, cut, behead, double, lose, insert, encode, carriage_return, nest)
VALUE_MUTATIONS = (*map(_on_value, (retype, replace, remove, literal, move, repeat, deepen)), duplicate_key)
