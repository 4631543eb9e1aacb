"""`--filter FIELD OP VALUE`: conditions on the logged fields of a session.

    model=gpt-4*   time>=2026-01-01   language=en|de   metadata.reward>0.5   metadata.task!=retail

Text is compared as it is logged, with * and ? as in file names and | between alternatives. Numbers are compared by
value, times in UTC, and a date without a time of day by the day. A session that lacks the field fails the condition,
with a reason of its own.
"""

import contextlib
import datetime
import fnmatch
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opdkit.config.fields import JSON, did_you_mean
from opdkit.errors import ConfigError

FILTERED = "filtered: "  # prefix of the reason why a condition leaves a session out
FIELDS = ("model", "time", "language", "format", "source", "metadata.NAME")
SESSION = "session"  # the session's id: a field only after extract, which gives the ids
GROUPS = (SESSION, "model", "language", "format", "source", "metadata.NAME")  # what sessions can be grouped by
# Metadata keys under which logs store the time, the language and the user of a session.
TIMES = ("timestamp", "time", "created_at", "created", "start_time", "startTime", "tstamp", "date", "create_time",
         "sent_at", "createdAt")  # fmt: skip
LANGUAGES = ("language", "lang", "locale")
USERS = ("user", "user_id", "userId", "user.id", "username", "user_name", "end_user", "customer_id")
_NAME = r"[\w.\-\[\]]+"  # of the name of a field
_EXPRESSION = re.compile(rf"\s*({_NAME}?)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*", re.DOTALL)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_MISSING = object()


@dataclass(frozen=True)
class Filter:
    """Condition on one field of a session."""

    text: str  # as it was written
    field: str
    op: str
    value: str


def parse_filters(texts: Sequence[str], flag: str = "--filter", fields: Sequence[str] = FIELDS) -> list[Filter]:
    """Return the conditions, parsed; all of them must hold. Raises ConfigError, also for a field not in `fields`."""
    filters = []
    for text in texts:
        match = _EXPRESSION.fullmatch(text)
        if match is None:
            raise ConfigError(f"{flag} {text!r}: write it as FIELD OP VALUE with =, !=, >=, <=, > or <: 'model=gpt-4*'")
        field, op, value = match.groups()
        root = check_field(field, f"{flag} {text!r}", fields)
        if not value:
            raise ConfigError(f"{flag} {text!r}: there is no value to compare with")
        if field == "time" and (parse_time(value) is None or parse_number(value) is not None):  # 2026 is a number here
            problem = "there is no such day" if _DAY.fullmatch(value) else "write 2026-01-31 or 2026-01-31T12:00:00Z"
            raise ConfigError(f"{flag} {text!r}: {problem}")
        if root in ("model", "format", "source", "language", SESSION) and op not in ("=", "!="):
            raise ConfigError(f"{flag} {text!r}: {root} is text; compare it with = or !=")
        if "|" in value and op not in ("=", "!="):
            raise ConfigError(f"{flag} {text!r}: a value with | holds alternatives; compare them with = or !=")
        filters.append(Filter(text.strip(), field, op, value))
    return filters


def check_field(field: str, where: str, fields: Sequence[str] = GROUPS) -> str:
    """Return the part of a field's name before the first dot. Raises ConfigError, starting with `where`, if unknown."""
    root, _, path = field.partition(".")
    if (f"{root}.NAME" if path else root) not in fields:
        raise ConfigError(f"{where}: there is no field {field!r}; {did_you_mean(field, fields)}")
    if not re.fullmatch(_NAME, field):
        raise ConfigError(f"{where}: no condition can name the field {field!r}: only letters, digits and _ . - [ ] can")
    return root


def parse_session_filters(texts: Sequence[str], flag: str = "--filter") -> list[Filter]:
    """Return conditions on sessions that extract has read, which also have an id to compare. Raises ConfigError."""
    return parse_filters(texts, flag, (*FIELDS, SESSION))


def find_rejection(filters: Sequence[Filter], session: Any, log_format: str) -> str | None:
    """Return why the first failing condition leaves `session` (a Conversation) out; None if all conditions hold."""
    for condition in filters:
        field, op, value = condition.field, condition.op, condition.value
        logged = read_logged_value(field, session, log_format)
        if logged in (None, "", []):
            return f"{FILTERED}no {field}"
        holds: bool | None
        if field != "time":
            holds = _compare(logged, op, value)
        elif _DAY.fullmatch(value):
            holds = _COMPARE[op](logged.date(), datetime.date.fromisoformat(value))
        else:
            holds = _COMPARE[op](logged, parse_time(value))
        if holds is None:
            return f"{FILTERED}no {field} to compare"
        if not holds:
            return f"{FILTERED}{condition.text}"
    return None


def read_logged_value(field: str, session: Any, log_format: str) -> Any:
    """Return the value of a field of a Conversation, or of LoggedFields; only the latter have the field SESSION.

    If the metadata of a session lack NAME, metadata.NAME is the list of the values in its logged calls.
    """
    if field == "time":
        return find_time(session.metadata)
    if field == "language":
        return find_first(session.metadata, LANGUAGES)
    if field == SESSION:
        return session.session_id
    if not field.startswith("metadata."):
        return {"model": session.model, "format": log_format, "source": session.source}[field]
    path = field.partition(".")[2]
    value = value_at(session.metadata, path)
    if value is not _MISSING:
        return value
    values = (value_at(record, path) for record in _list_records(session.metadata))
    return [value for value in values if value is not _MISSING]


def _compare(logged: Any, op: str, value: str) -> bool | None:
    """Return True if the comparison holds (in a list, for one element; with !=, for all), None if it is impossible."""
    if isinstance(logged, list):
        results = [_compare(item, op, value) for item in flat(logged) if item is not None]
        if all(result is None for result in results):
            return None
        return all(result is not False for result in results) if op == "!=" else any(results)
    if isinstance(logged, bool):
        logged = "true" if logged else "false"
    if isinstance(logged, (int, float)):
        numbers = [parse_number(part) for part in value.split("|")]
        if op in ("=", "!="):
            return (logged in numbers) == (op == "=")
        return _COMPARE[op](logged, numbers[0]) if numbers[0] is not None else None
    if not isinstance(logged, str):
        return None
    if op in ("=", "!="):
        patterns = value.replace("[", "[[]").split("|")  # a bracket is text
        return any(fnmatch.fnmatchcase(logged, pattern) for pattern in patterns) == (op == "=")
    bound = parse_number(value)
    if bound is None:
        return _COMPARE[op](logged, value)
    number = parse_number(logged)  # of a number that was logged as text; "high" is neither above nor below 1
    return None if number is None else _COMPARE[op](number, bound)


def flat(logged: Any) -> list[Any]:
    """Return the values in a list and its nested lists; for any other value, a list of that value."""
    items = [logged]
    for item in items:  # also over what is appended
        items += item if isinstance(item, list) else ()
    return [item for item in items if not isinstance(item, list)]


def parse_number(text: str) -> float | None:
    """Return the number in a text, None for other text. Integers stay exact: a float would round long ids."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path in nested objects, or `_MISSING`.

    A list of {"name": ..., "value": ...}, a common form of scores and attributes, is read as {name: [values]}.
    """
    if isinstance(value, dict) and path in value:  # keys may hold dots
        return value[path]
    for key in path.split("."):
        if isinstance(value, list):
            by_name: dict[str, list[Any]] = {}
            for item in value:
                if isinstance(item, dict) and isinstance(item.get("name"), str) and "value" in item:
                    by_name.setdefault(item["name"], []).append(item["value"])
            value = by_name
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _list_records(metadata: JSON) -> list[JSON]:
    """Return the metadata of each logged call, for a session that was assembled from calls."""
    records = metadata.get("records")
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []


def find_first(metadata: JSON, keys: Sequence[str]) -> Any:
    """Return the first of these fields in the metadata, else in those of the first logged call; None without any."""
    values = (holder.get(key) for holder in (metadata, *_list_records(metadata)[:1]) for key in keys)
    return next((value for value in values if value not in (None, "")), None)


def find_time(metadata: JSON) -> datetime.datetime | None:
    """Return the time of a session in UTC, from the first field with one. Times in 1970 are skipped, as durations."""
    times = (parse_time(holder.get(key)) for holder in (metadata, *_list_records(metadata)[:1]) for key in TIMES)
    return next((time for time in times if time is not None and time.year > 1970), None)


def parse_time(value: Any) -> datetime.datetime | None:
    """Return the time given by an ISO 8601 text or by s, ms, us or ns since 1970; None for any other value.

    The text may also be that of BigQuery (2026-01-31 12:00:00 UTC), and have slashes (2026/01/31).
    """
    try:
        if isinstance(value, str):
            number = parse_number(value)
            if number is None:
                text = value.strip().removesuffix("UTC").rstrip().replace("/", "-")
                time = datetime.datetime.fromisoformat(text)
                return time.replace(tzinfo=time.tzinfo or datetime.UTC).astimezone(datetime.UTC)
            value = number
        if value.__class__ not in (int, float) or not math.isfinite(value) or value <= 0:
            return None
        while value > 1e11:  # the year 5138 in seconds
            value /= 1_000
        return datetime.datetime.fromtimestamp(value, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
