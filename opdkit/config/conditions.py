"""`--filter FIELD OP VALUE`: which sessions are kept, by what their log says of them.

    model=gpt-4*   time>=2026-01-01   language=en|de   metadata.reward>0.5   metadata.task!=retail

Text is compared as it is logged, with * and ? as in file names and | between alternatives; numbers by their value;
times in UTC, those of a whole day where a day is given. A session whose log does not say is never guessed about: it is
left out too, and counted under a reason of its own.
"""

import datetime
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from opdkit.config.fields import JSON, did_you_mean
from opdkit.errors import ConfigError

FILTERED = "filtered: "  # how the reasons begin under which sessions are counted that a condition leaves out
FIELDS = ("model", "time", "language", "format", "source", "metadata")
# Where logs say when and in which language a session was; those that are put together of records, in each.
TIMES = ("timestamp", "time", "created_at", "created", "start_time", "startTime", "tstamp", "date", "create_time")
LANGUAGES = ("language", "lang", "locale")
_EXPRESSION = re.compile(r"\s*([\w.\-\[\]]+?)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*", re.DOTALL)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_MISSING = object()


class LoggedSession(Protocol):
    """The attributes of a session that conditions compare, such as those of chat.conversation.Conversation."""

    @property
    def source(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def metadata(self) -> JSON: ...


@dataclass(frozen=True)
class Filter:
    """One condition."""

    text: str  # as it was written
    field: str
    op: str
    value: str

    def refuses(self, session: LoggedSession, name: str) -> str | None:
        """Why a session of the format `name` is left out; None if it is kept."""
        found = self._found(session, name)
        if found in (None, "", []):
            return f"{FILTERED}no {self.field}"
        holds = self._holds_at(found) if self.field == "time" else _holds(found, self.op, self.value)
        if holds is None:
            return f"{FILTERED}no {self.field} to compare"
        return None if holds else f"{FILTERED}{self.text}"

    def _found(self, session: LoggedSession, name: str) -> Any:
        if self.field == "model":
            return session.model
        if self.field in ("format", "source"):
            return name if self.field == "format" else session.source
        if self.field == "time":
            return time_of(session.metadata)
        if self.field == "language":
            return first_of(session.metadata, LANGUAGES)
        path = self.field.partition(".")[2]
        found = value_at(session.metadata, path)
        if found is _MISSING:
            found = [
                value for record in _records(session.metadata) if (value := value_at(record, path)) is not _MISSING
            ]
        return found

    def _holds_at(self, found: datetime.datetime) -> bool:
        if _DAY.fullmatch(self.value):
            return _COMPARE[self.op](found.date(), datetime.date.fromisoformat(self.value))
        return _COMPARE[self.op](found, parse_time(self.value))


def parse_filters(texts: Sequence[str], flag: str = "--filter") -> list[Filter]:
    """The conditions, all of which must hold. Raises ConfigError."""
    return [_parse(text, flag) for text in texts]


def _parse(text: str, flag: str) -> Filter:
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise ConfigError(f"{flag} {text!r}: write it as FIELD OP VALUE with =, !=, >=, <=, > or <: 'model=gpt-4*'")
    field, op, value = match.groups()
    root, _, path = field.partition(".")
    if root not in FIELDS or (root == "metadata") != bool(path):
        raise ConfigError(f"{flag} {text!r}: there is no field {field!r}; {did_you_mean(field, _WRITTEN)}")
    if not value:
        raise ConfigError(f"{flag} {text!r}: there is no value to compare with")
    if field == "time" and not _DAY.fullmatch(value) and parse_time(value) is None:
        raise ConfigError(f"{flag} {text!r}: write a time like 2026-01-31 or 2026-01-31T12:00:00Z")
    if _DAY.fullmatch(value) and field == "time" and parse_time(value) is None:
        raise ConfigError(f"{flag} {text!r}: there is no such day")
    if root in ("model", "format", "source", "language") and op not in ("=", "!="):
        raise ConfigError(f"{flag} {text!r}: {root} is text; compare it with = or !=")
    return Filter(text.strip(), field, op, value)


_WRITTEN = [f"{name}.NAME" if name == "metadata" else name for name in FIELDS]


def refused(filters: Sequence[Filter], session: LoggedSession, name: str) -> str | None:
    """Why the first condition that does not hold leaves a session out; None if it is kept."""
    return next((why for f in filters if (why := f.refuses(session, name)) is not None), None)


# -- values ----------------------------------------------------------------------------------------------------------


def _holds(found: Any, op: str, value: str) -> bool | None:
    """Whether the comparison holds; None where there is none. Of a list, one element that does is enough."""
    if isinstance(found, list):
        each = [_holds(item, op, value) for item in found if item is not None]
        if op == "!=":
            return all(e is not False for e in each)
        return any(each) if any(e is not None for e in each) else None
    if found.__class__ is bool:
        found = "true" if found else "false"
    if isinstance(found, (int, float)):
        wanted = [_number(part) for part in value.split("|")]
        if op in ("=", "!="):
            return (found in wanted) == (op == "=")
        return _COMPARE[op](found, wanted[0]) if wanted[0] is not None else None
    if not isinstance(found, str):
        return None
    if op in ("=", "!="):
        return any(fnmatch.fnmatchcase(found, pattern) for pattern in value.split("|")) == (op == "=")
    bound = _number(value)
    if bound is None:
        return _COMPARE[op](found, value)
    number = _number(found)  # a number that was logged as text; "high" is neither above 1 nor below
    return None if number is None else _COMPARE[op](number, bound)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def value_at(value: Any, path: str) -> Any:
    """What a dotted path leads to in nested objects, `_MISSING` where it leads nowhere.

    A list of {"name": ..., "value": ...}, as scores and attributes are often logged, counts as an object of lists.
    """
    if isinstance(value, dict) and path in value:  # keys may hold dots
        return value[path]
    for key in path.split("."):
        if isinstance(value, list):
            value = _by_name(value)
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _by_name(items: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for item in items:
        if isinstance(item, dict) and isinstance(item.get("name"), str) and "value" in item:
            found.setdefault(item["name"], []).append(item["value"])
    return found


def first_of(metadata: JSON, keys: Sequence[str]) -> Any:
    """The first of these fields that the metadata have, else the first record's."""
    for holder in _holders(metadata):
        for key in keys:
            if holder.get(key) not in (None, ""):
                return holder[key]
    return None


def _holders(metadata: JSON) -> Iterator[JSON]:
    yield metadata
    yield from _records(metadata)[:1]


def _records(metadata: JSON) -> list[JSON]:
    """What the log says of each call, where a session is put together of calls."""
    records = metadata.get("records")
    return [each for each in records if isinstance(each, dict)] if isinstance(records, list) else []


def time_of(metadata: JSON) -> datetime.datetime | None:
    """When a session was, in UTC, by the first field that says so."""
    for holder in _holders(metadata):
        for key in TIMES:
            found = parse_time(holder.get(key))
            if found is not None:
                return found
    return None


def parse_time(value: Any) -> datetime.datetime | None:
    """ISO 8601, or seconds, milliseconds, microseconds or nanoseconds since 1970; None for anything else."""
    try:
        if isinstance(value, str):
            number = _number(value)
            if number is None:
                found = datetime.datetime.fromisoformat(value.strip())
                return found.replace(tzinfo=found.tzinfo or datetime.UTC).astimezone(datetime.UTC)
            value = number
        if value.__class__ not in (int, float) or not math.isfinite(value) or value <= 0:
            return None
        while value > 1e11:  # the year 5138 in seconds
            value /= 1_000
        return datetime.datetime.fromtimestamp(value, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
