"""Teachers named by options: their names, paths and shares. Nothing heavy is imported."""

import json
import math
import re
from collections.abc import Sequence

from opdkit.config.fields import did_you_mean
from opdkit.errors import ConfigError

_NAMED = re.compile(r"(?P<name>[\w.-]+)=(?P<path>.+)", re.DOTALL)


def parse_teachers(options: Sequence[str]) -> dict[str, str]:
    """Return {"big": "models/72b", "models/7b": "models/7b"} for ["big=models/72b", "models/7b"].

    Write a path with "=" in its first part as ./A=B. Raises ConfigError for two teachers with one name.
    """
    teachers: dict[str, str] = {}
    for text in options:
        match = _NAMED.fullmatch(text)
        name, path = (match["name"], match["path"]) if match else (text, text)
        if not path:
            raise ConfigError("--teacher is empty; write it as PATH or NAME=PATH")
        if name in teachers:
            raise ConfigError(f"--teacher: two are named {name!r}; write them as NAME=PATH with different names")
        teachers[name] = path
    return teachers


def parse_shares(options: Sequence[str], teachers: Sequence[str]) -> dict[str, float]:
    """Return name -> share, normalised to the sum 1. A teacher that `options` does not name has 1 before that.

    Raises ConfigError for an unknown name, a name given twice, or a share that is not a positive number.
    """
    shares = dict.fromkeys(teachers, 1.0)
    named = set()
    for text in options:
        name, equals, number = text.rpartition("=")
        if not equals:
            raise ConfigError(f"--teacher-share {text!r}: write it as NAME=SHARE")
        if name not in teachers:
            known = did_you_mean(name, teachers) if teachers else "there is no --teacher at all"
            raise ConfigError(f"--teacher-share {text!r}: no teacher is named {name!r}; {known}")
        if name in named:
            raise ConfigError(f"--teacher-share {name} is given twice")
        try:
            shares[name] = float(number)
        except ValueError:
            shares[name] = math.nan
        if not (shares[name] > 0 and math.isfinite(shares[name])):
            raise ConfigError(f"--teacher-share {text!r}: the share must be a number above 0")
        named.add(name)
    total = math.fsum(shares.values())
    return {name: share / total for name, share in shares.items()}


def read_routed_name(metadata: str | None, field: str) -> str | None:
    """Return the value of `field`, NAME or metadata.NAME, in a session's metadata (JSON) as text; None if missing."""
    try:
        fields = json.loads(metadata) if metadata else None
    except (ValueError, RecursionError):
        return None
    value = fields.get(field, fields.get(field.removeprefix("metadata."))) if isinstance(fields, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value)
