"""One line of JSON: fast where it is clean, forgiving where a log is only almost JSON, and bounded."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import orjson

from opdkit.logs.conversation import JSON, Conversation, Line, Rejected, Unreadable, rejected

TOO_DEEP = "nested too deeply"
TOO_DENSE = "too many values"
COMMENT = "comment line"
DEEPEST = 500  # levels of what orjson does not read or write; half of what Python's own parser takes on an empty stack
# A line of "[],[],[]" becomes objects of 30 times its size. Lines with fewer values than this are always read, 150 MB
# at most; others when they have a value for every 5 bytes or more: token ids and top log-probs do, an attack does not.
MOST_VALUES, BYTES_A_VALUE = 1_000_000, 5
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def parse(line: Line) -> JSON:
    """The object on a line. Of duplicate keys the last counts, as in every JSON reader. Raises Unreadable."""
    if line.problem is not None:
        raise line.problem
    if len(line.data) > MOST_VALUES and _too_dense(line.data):
        raise Unreadable(TOO_DENSE, f"more than {MOST_VALUES:,} in {len(line.data):,} bytes")
    try:
        value = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        value = _parse_slowly(line)
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object", f"the line is a {type(value).__name__}")
    return value


def _too_dense(data: bytes) -> bool:
    """Whether parsing would take many times the memory of the text."""
    most = max(MOST_VALUES, len(data) // BYTES_A_VALUE)
    # Text may hold any number of commas and brackets: look without it, but only where it could matter.
    return _weight(data) > most and _weight(_TEXT.sub(b"", data)) > most


def _weight(data: bytes) -> int:
    """Values, about. An object weighs as much as three of the others."""
    return data.count(b",") + data.count(b"[") + 3 * data.count(b"{")


def _parse_slowly(line: Line) -> Any:
    """What orjson refuses and logs contain all the same: a byte-order mark, NaN and Infinity, lone surrogates."""
    data = line.data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip().startswith((b"#", b"//")):
        raise Unreadable(COMMENT)
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8", f"byte {error.start}: {error.reason}") from None
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None
    except json.JSONDecodeError as error:
        reason = "not JSON" if data.endswith(b"\n") else "last line cut short"
        raise Unreadable(reason, f"character {error.pos}: {error.msg}") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise Unreadable("not JSON", str(error)) from None
    _refuse_depth(value)
    return _without_surrogates(value) if b"\\u" in data else value


def _without_surrogates(value: Any) -> Any:
    """`value` with every lone surrogate replaced: neither UTF-8 nor Parquet can hold one."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    return value


def dump(value: Any) -> str:
    """Compact JSON. NaN and Infinity, which JSON does not have, become null. Raises Unreadable for deep nesting."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # deeper than orjson writes, or integers beyond 64 bits
        _refuse_depth(value)
        text = _dumped(value)
        if "NaN" in text or "Infinity" in text:
            text = _dumped(json.loads(text, parse_constant=lambda _: None))
        return text


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _refuse_depth(value: Any) -> None:
    """Raise Unreadable for more than `DEEPEST` levels: the same on every machine, however deep its own stack is."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = (v.values() if v.__class__ is dict else v for v in level if v.__class__ in (dict, list))
        level = list(chain.from_iterable(inner))
        if not level:
            return
    raise Unreadable(TOO_DEEP, f"more than {DEEPEST} levels")


def one_by_one(unit: Sequence[Line], tell: Callable[[Line, JSON], Conversation]) -> Iterator[Conversation | Rejected]:
    """The conversations of a format that has one a line; a line that cannot be read is rejected by itself."""
    for line in unit:
        try:
            yield tell(line, parse(line))
        except Unreadable as why:
            yield rejected(line, why)
