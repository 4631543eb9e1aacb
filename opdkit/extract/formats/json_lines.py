"""Parsing of JSON lines: fast if they are valid, tolerant if they are only almost JSON, and bounded in memory."""

import hashlib
import re
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import TOO_DEEP
from opdkit.extract.formats.reader import Line, Reader

TOO_DENSE = "too many values"
COMMENT = "comment line"
NOT_AN_OBJECT, NOT_UTF_8 = "not a JSON object", "not UTF-8"
_LONGEST_ID = 200  # characters of a logged id that go into a session id
# Parsing "[],[],[]" takes 30 times the memory of the text. Lines with fewer values than this are always read (150 MB at
# most); others only if they have 5 or more bytes per value, as token ids and top log-probs do and an attack does not.
MOST_VALUES, BYTES_PER_VALUE = 1_000_000, 5
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TEXT_OR_NUMBER = re.compile(_TEXT.pattern + rb"|-?Infinity|NaN", re.DOTALL)
_SURROGATE, _LOW = re.compile(rb"\\u[dD][89a-fA-F][\da-fA-F]{2}"), re.compile(rb"\\u[dD][c-fC-F][\da-fA-F]{2}")
_QUOTE, _BACKSLASH = b'"\\'


def parse(line: Line) -> JSON:
    """Return the object on a line. Of duplicate keys the last counts, as in other JSON parsers. Raises Unreadable."""
    if line.problem is not None:
        raise line.problem.with_traceback(None)  # lines may share the exception; its traceback would keep their frames
    if len(line.data) > MOST_VALUES:
        most = max(MOST_VALUES, len(line.data) // BYTES_PER_VALUE)
        # Strings may hold any number of commas and brackets: if the quick count is too high, count without strings.
        if _count_values(line.data) > most and _count_values(_TEXT.sub(b"", line.data)) > most:
            raise Unreadable(TOO_DENSE, f"more than {MOST_VALUES:,} in {len(line.data):,} bytes")
    try:
        value = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        value = _parse_almost_json(line.data.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        raise Unreadable(NOT_AN_OBJECT, f"the line is a {type(value).__name__}")
    return value


def find_id(reader: Reader, line: Line) -> str | None:
    """Return the logged id on a line as session ids contain it: short, and without `#`, which numbers repetitions.

    Different ids stay different. None if the reader finds no id, or the line cannot be read.
    """
    if reader.id_of is None or reader.header_mark not in line.data:
        return None
    try:
        logged = reader.id_of(parse(line))
    except Unreadable:
        return None
    if logged is not None and len(logged) > _LONGEST_ID:
        logged = f"{logged[:_LONGEST_ID]}~{hashlib.sha256(logged.encode()).hexdigest()[:16]}"
    return logged and logged.replace("%", "%25").replace("#", "%23")


def _count_values(data: bytes) -> int:
    """Return roughly how many values the JSON holds. An object counts as three, since it takes that much memory."""
    return data.count(b",") + data.count(b"[") + 3 * data.count(b"{")


def _parse_almost_json(data: bytes) -> Any:
    """Parse a line that orjson refuses, because of NaN, Infinity or lone surrogates. Raise Unreadable if that fails."""
    if data.lstrip().startswith((b"#", b"//")):
        raise Unreadable(COMMENT)
    try:
        data.decode()
        return orjson.loads(_mend(data))
    except UnicodeDecodeError as error:
        raise Unreadable(NOT_UTF_8, f"byte {error.start}: {error.reason}") from None
    except orjson.JSONDecodeError as error:
        if "depth limit" in error.msg:
            raise Unreadable(TOO_DEEP) from None
        reason = "not JSON" if data.endswith(b"\n") else "last line cut short"
        raise Unreadable(reason, f"character {error.pos}: {error.msg}") from None


def _mend(data: bytes) -> bytearray:
    """Return a line with null for NaN and Infinity, and U+FFFD for lone surrogates, which UTF-8 and Parquet lack.

    Python's json would read them, but keeps an object per escape in a string: 13 times the memory of the string.
    """
    mended, done = bytearray(), 0
    for match in _TEXT_OR_NUMBER.finditer(data):
        is_text = data[match.start()] == _QUOTE
        if is_text and not _SURROGATE.search(data, *match.span()):
            continue
        mended += data[done : match.start()]
        mended += _replace_lone_surrogates(match[0]) if is_text else b"null"
        done = match.end()
    mended += data[done:]
    return mended


def _replace_lone_surrogates(text: bytes) -> bytearray:
    r"""Return a JSON string with every lone surrogate escape replaced by `\ufffd`, which has the same length."""
    mended, second = bytearray(text), -1
    for match in _SURROGATE.finditer(text):
        start, end = match.span()
        first = start
        while text[first - 1] == _BACKSLASH:
            first -= 1
        if start == second or (start - first) % 2:
            continue  # the low half of a pair, or not an escape: its backslash is escaped itself
        if text[start + 3] in b"89abAB" and _LOW.match(text, end):
            second = end
        else:
            mended[start:end] = b"\\ufffd"
    return mended
