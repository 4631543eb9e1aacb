"""One line of JSON: fast where it is clean, forgiving where a log is only almost JSON, and bounded."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.messages import TOO_DEEP
from opdkit.extract.formats.reader import Line, Rejected, rejected

TOO_DENSE = "too many values"
COMMENT = "comment line"
# A line of "[],[],[]" becomes objects of 30 times its size. Lines with fewer values than this are always read, 150 MB
# at most; others when they have a value for every 5 bytes or more: token ids and top log-probs do, an attack does not.
MOST_VALUES, BYTES_A_VALUE = 1_000_000, 5
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TEXT_OR_NUMBER = re.compile(_TEXT.pattern + rb"|-?Infinity|NaN", re.DOTALL)
_SURROGATE, _LOW = re.compile(rb"\\u[dD][89a-fA-F][\da-fA-F]{2}"), re.compile(rb"\\u[dD][c-fC-F][\da-fA-F]{2}")
_QUOTE, _BACKSLASH = b'"\\'


def parse(line: Line) -> JSON:
    """The object on a line. Of duplicate keys the last counts, as in every JSON reader. Raises Unreadable."""
    if line.problem is not None:
        raise line.problem
    if len(line.data) > MOST_VALUES and _too_dense(line.data):
        raise Unreadable(TOO_DENSE, f"more than {MOST_VALUES:,} in {len(line.data):,} bytes")
    try:
        value = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        value = _parse_mended(line)
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


def _parse_mended(line: Line) -> Any:
    """What orjson refuses and logs contain all the same: a byte-order mark, NaN and Infinity, lone surrogates."""
    data = line.data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip().startswith((b"#", b"//")):
        raise Unreadable(COMMENT)
    try:
        data.decode()
        return orjson.loads(_mended(data))
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8", f"byte {error.start}: {error.reason}") from None
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise Unreadable(TOO_DEEP) from None
        reason = "not JSON" if data.endswith(b"\n") else "last line cut short"
        raise Unreadable(reason, f"character {error.pos}: {error.msg}") from None


def _mended(data: bytes) -> bytearray:
    """The line with null for NaN and Infinity and U+FFFD for every lone surrogate: neither UTF-8 nor Parquet has one.

    Python's own parser would read those, but keeps an object for each escape of a text, 13 times what it is made from.
    """
    mended, done = bytearray(), 0
    for found in _TEXT_OR_NUMBER.finditer(data):
        text = data[found.start()] == _QUOTE
        if text and not _SURROGATE.search(data, *found.span()):
            continue
        mended += data[done : found.start()]
        mended += _without_surrogates(found[0]) if text else b"null"
        done = found.end()
    mended += data[done:]
    return mended


def _without_surrogates(text: bytes) -> bytearray:
    """A text of JSON with every lone surrogate replaced, in place: both are six bytes."""
    mended, second = bytearray(text), -1
    for found in _SURROGATE.finditer(text):
        start, end = found.span()
        first = start
        while text[first - 1] == _BACKSLASH:
            first -= 1
        if start == second or (start - first) % 2:
            continue  # the low half of a pair, or a backslash that is escaped itself
        if text[start + 3] in b"89abAB" and _LOW.match(text, end):
            second = end
        else:
            mended[start:end] = b"\\ufffd"
    return mended


def one_by_one(unit: Sequence[Line], tell: Callable[[Line, JSON], Conversation]) -> Iterator[Conversation | Rejected]:
    """The conversations of a format that has one a line; a line that cannot be read is rejected by itself."""
    for line in unit:
        try:
            yield tell(line, parse(line))
        except Unreadable as why:
            yield rejected(line, why)
