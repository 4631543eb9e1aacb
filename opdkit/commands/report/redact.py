"""Report without the texts of users: numbers stay, names become numbers, and only opdkit's own words are left.

Any text that is not known to be opdkit's own is left out, so that a new field of the report cannot show users' text by
accident. No turn is shown whole: with the model, a reader could guess a reply from the log-probs of its tokens.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from opdkit.config.commands import COMMANDS
from opdkit.config.fields import JSON, fields_of
from opdkit.evaluate.scores import METRICS
from opdkit.store.turn_ids import logged_session_id, session_of

_ORDINAL = re.compile(r"(?::\d+(?:/rollout-\d+)?)+")  # the rest of a turn id after the id of the logged session
_NUMBERED = ("source", "session", "domain")
_KEPT = ("opdkit", "sentence", "watch", "training")  # opdkit's own sentences and numbers
_EMPTIED: JSON = {"run": "", "next": [], "replies": [], "examples": [], "moved": [], "largest": [], "models": []}
_OTHER = "not shown"
_NAMED = "The trainings of this run have names, which are left out here: redact the report of each training instead."


@dataclass
class Names:
    """Numbers that replace names, in order of first use: "source 1"."""

    _numbers: dict[str, dict[str, int]] = field(default_factory=dict)  # kind -> name -> number

    def number(self, kind: str, name: str) -> str:
        """Return "KIND N"; the same name always gets the same number."""
        known = self._numbers.setdefault(kind, {})
        return f"{kind} {known.setdefault(name, len(known) + 1)}"

    def turn(self, turn_id: str) -> str:
        """Return "session N:INDEX"."""
        session = logged_session_id(session_of(turn_id))
        ordinal = turn_id.removeprefix(session)
        return self.number("session", session) + (ordinal if _ORDINAL.fullmatch(ordinal) else ":0")


@cache
def list_own_words() -> frozenset[str]:
    """Return opdkit's own words: names of commands, options, choices and metrics, and the labels of its counters."""
    fields = [field for command in COMMANDS.values() for field in fields_of(command.config)]
    options = {word for field in fields for word in (field.name, *field.choices)}
    counted = Path(__file__).with_name("own_words.txt").read_text(encoding="utf-8").splitlines()
    metrics = METRICS.keys() | {metric.words for metric in METRICS.values()}
    return frozenset(options | COMMANDS.keys() | metrics | set(counted))


def redact_label(label: str) -> str:
    """Return a label such as "word: detail", with "not shown" in place of each part that is not opdkit's own word."""
    head, colon, detail = label.partition(": ")
    if colon and label not in list_own_words():
        return f"{redact_label(head)}: {redact_label(detail)}"
    return label if label in list_own_words() else _OTHER


def redact(value: Any, names: Names, key: str = "") -> Any:
    """Return the JSON value under `key`, without any text that is not opdkit's own."""
    if key in _KEPT:
        return value
    if key in _EMPTIED:
        return _EMPTIED[key]
    if isinstance(value, dict):
        return {name: redact(one, names, key if name == "words" else name) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [redact(one, names, key) for one in value]
    if not isinstance(value, str) or not value:
        return value
    if key == "id":
        return names.turn(value)
    kind = key.removesuffix("s")
    return names.number(kind, value) if kind in _NUMBERED and value not in list_own_words() else redact_label(value)


def redact_summary(summary: JSON, names: Names) -> JSON:
    """Return the summary of the page without texts, paths and names of the run, its logs and its prompts."""
    number = len(summary["notices"])
    notices = [f"{number} of the report's notices may quote names and are left out here"] if number else []
    comparison = {"sentence": _NAMED, "tables": []} if summary["comparison"] else None
    return redact(summary, names) | {"redacted": True, "notices": notices, "comparison": comparison}


def redact_columns(table: JSON, names: Names) -> JSON:
    """Return the list of turns, whose texts are empty already, with numbers in place of ids and sources."""
    reviews = JSON()
    for turn_id, review in table["reviews"].items():
        decided = {name: review[name] for name in ("reward", "hint") if name in review}
        reviews[names.turn(turn_id)] = decided | ({"hint": ""} if decided.get("hint") else {})
    return redact(table | {"reviews": {}}, names) | {"reviews": reviews}
