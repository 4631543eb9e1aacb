"""Rows of tables (Parquet files, data sets) as lines of JSON. What JSON cannot hold becomes text or a placeholder."""

import contextlib
import datetime
import decimal
from typing import Any

import orjson

from opdkit.chat.conversation import JSON

_LONGEST_ID = 64  # bytes of an id, such as a UUID or a digest


def dump_row(row: JSON) -> bytes:
    """Return a row as a line of JSON. Raises JSONEncodeError."""
    full = {name: _drop_missing(value) for name, value in row.items()}
    return orjson.dumps(full, default=_convert_to_text, option=orjson.OPT_APPEND_NEWLINE)


def _drop_missing(value: Any) -> Any:
    """Return a value without the empty fields of its structs: all rows share a struct, with the fields of each of them.

    So a tool call would get the arguments of all other tools, as null. Arrow's maps, which are lists of pairs here,
    become objects.
    """
    if isinstance(value, list):
        if not (value and isinstance(value[0], tuple)):
            return list(map(_drop_missing, value))
        value = {name if isinstance(name, str) else _convert_to_text(name): item for name, item in value}
    if isinstance(value, dict):
        return {name: _drop_missing(item) for name, item in value.items() if item is not None}
    return value


def _convert_to_text(value: Any) -> str:
    """Return the text, or the placeholder, that stands for a value that JSON cannot hold.

    Bytes may be text (Impala and Hive write it without its type) or an id, which has to stay unique.
    """
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, (int, float, decimal.Decimal, datetime.timedelta)):
        return str(value)
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            if b"\0" not in value:
                return value.decode()
        if len(value) <= _LONGEST_ID:
            return value.hex()
    return f"[{type(value).__name__}]"
