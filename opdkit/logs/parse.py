"""One line of JSON: fast where it is clean, forgiving where a log is only almost JSON."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from opdkit.logs.conversation import JSON, Conversation, Line, Rejected, Unreadable, rejected

TOO_DEEP = "nested too deeply"
COMMENT = "comment line"


def parse(line: Line) -> JSON:
    """The object on a line. Of duplicate keys the last counts, as in every JSON reader. Raises Unreadable."""
    if line.problem is not None:
        raise line.problem
    try:
        value = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        value = _parse_slowly(line)
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object", f"the line is a {type(value).__name__}")
    return value


def _parse_slowly(line: Line) -> Any:
    """What orjson refuses and logs contain all the same: a byte-order mark, NaN and Infinity, lone surrogates."""
    data = line.data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip().startswith((b"#", b"//")):
        raise Unreadable(COMMENT)
    try:
        return _without_surrogates(json.loads(data.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8", f"byte {error.start}: {error.reason}") from None
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None
    except json.JSONDecodeError as error:
        reason = "not JSON" if data.endswith(b"\n") else "last line cut short"
        raise Unreadable(reason, f"character {error.pos}: {error.msg}") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise Unreadable("not JSON", str(error)) from None


def _without_surrogates(value: Any) -> Any:
    """`value` with every lone surrogate replaced: neither UTF-8 nor Parquet can hold one."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if _has_surrogate(value) else value
    if isinstance(value, list):
        return [_without_surrogates(v) for v in value]
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return value


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def dump(value: Any) -> str:
    """Compact JSON. NaN and Infinity, which JSON does not have, become null. Raises Unreadable for deep nesting."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # deeper than orjson writes, or integers beyond 64 bits
        try:
            return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            raise Unreadable(TOO_DEEP) from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return value


def one_by_one(unit: Sequence[Line], tell: Callable[[Line, JSON], Conversation]) -> Iterator[Conversation | Rejected]:
    """The conversations of a format that has one a line; a line that cannot be read is rejected by itself."""
    for line in unit:
        try:
            yield tell(line, parse(line))
        except Unreadable as why:
            yield rejected(line, why)
