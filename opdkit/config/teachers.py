"""Which teachers there are: their names, paths and weights, as the options say. Imports nothing heavy."""

import json
import math
import re
from collections.abc import Sequence

from opdkit.config.fields import did_you_mean
from opdkit.errors import ConfigError

_NAMED = re.compile(r"(?P<name>[\w.-]+)=(?P<path>.+)", re.DOTALL)


def parse_teachers(given: Sequence[str]) -> dict[str, str]:
    """["big=models/72b", "models/7b"] -> {"big": "models/72b", "models/7b": "models/7b"}.

    A path that has "=" in its first part is written ./A=B. Raises ConfigError for two teachers of one name.
    """
    teachers: dict[str, str] = {}
    for text in given:
        match = _NAMED.fullmatch(text)
        name, path = (match["name"], match["path"]) if match else (text, text)
        if not path:
            raise ConfigError("--teacher is empty; write it as PATH or NAME=PATH")
        if name in teachers:
            raise ConfigError(f"--teacher: two are named {name!r}; write them as NAME=PATH with names of their own")
        teachers[name] = path
    return teachers


def parse_weights(given: Sequence[str], teachers: Sequence[str]) -> dict[str, float]:
    """name -> its share: positive, the sum is 1. A teacher that `given` does not name weighs 1 before the division.

    Raises ConfigError for a name that no teacher has, given twice, or a weight that is no positive number.
    """
    weights: dict[str, float] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals:
            raise ConfigError(f"--teacher-share {text!r}: write it as NAME=WEIGHT")
        if name not in teachers:
            raise ConfigError(f"--teacher-share {text!r}: no teacher is named {name!r}; {_known(name, teachers)}")
        if name in weights:
            raise ConfigError(f"--teacher-share {name} is given twice")
        weights[name] = _positive(number, text)
    raw = {name: weights.get(name, 1.0) for name in teachers}
    total = math.fsum(raw.values())
    return {name: weight / total for name, weight in raw.items()}


def check_roster(teacher: Sequence[str], weight: Sequence[str], route: str | None) -> None:
    """Raise ConfigError unless `--teacher`, `--teacher-share` and `--teacher-route` make sense together."""
    teachers = parse_teachers(teacher)
    parse_weights(weight, list(teachers))
    if route is not None and not teachers:
        raise ConfigError(f"--teacher-route {route}: there is nothing to choose from; name teachers as NAME=PATH")
    if route is not None and weight:
        raise ConfigError("--teacher-share is for teachers that are averaged; --teacher-route picks one of them")


def routed(metadata: str | None, field: str) -> str | None:
    """The value of one field of a session's metadata (JSON) as text; None where it has none."""
    try:
        fields = json.loads(metadata) if metadata else None
    except (ValueError, RecursionError):
        return None
    value = fields.get(field) if isinstance(fields, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _positive(number: str, text: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not (weight > 0 and math.isfinite(weight)):
        raise ConfigError(f"--teacher-share {text!r}: the weight must be a number above 0")
    return weight


def _known(name: str, teachers: Sequence[str]) -> str:
    return did_you_mean(name, teachers) if teachers else "there is no --teacher at all"
