"""English phrases that the rules judge knows: the regular expressions of phrases.toml, compiled."""

import re
import tomllib
from pathlib import Path

_DOCUMENT = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8"))
_PARTS: dict[str, str] = {}


def _fill_in(pattern: str) -> str:
    """Return a pattern of the file on one line, with the parts that it names filled in."""
    in_one_line = "".join(map(str.lstrip, pattern.split("\n")))
    return re.sub(r"%(\w+)%", lambda part: _PARTS[part[1]], in_one_line)


def _compile_any(patterns: list[str]) -> re.Pattern[str]:
    """Return a case-insensitive pattern that matches if any of `patterns` does."""
    return re.compile("|".join(f"(?:{_fill_in(pattern)})" for pattern in patterns), re.IGNORECASE)


for _name, _text in _DOCUMENT["parts"].items():  # a part may name earlier parts
    _PARTS[_name] = _fill_in(_text)
MANNERS: dict[str, str] = _DOCUMENT["manners"]
_CLAUSES, _WHOLE_MESSAGES = _DOCUMENT["instructions"]["clauses"], _DOCUMENT["instructions"]["whole_messages"]
INSTRUCTIONS = {_compile_any([f"%OPEN%(?P<lead>%LEAD%)\n{pattern}"]): hint for pattern, hint in _CLAUSES} | {
    _compile_any([f"^(?P<lead>%LEAD%)(?P<x>\n{pattern})%END%"]): "Answer like this: {x}." for pattern in _WHOLE_MESSAGES
}
ABOUT_REPLY = _compile_any(["%ABOUT_REPLY%"])
_PATTERNS = {name: _compile_any(patterns) for name, patterns in _DOCUMENT["patterns"].items()}
GOOD_NEWS, NO_NEWS = _PATTERNS["GOOD_NEWS"], _PATTERNS["NO_NEWS"]
ASKS, CLOSING_FORMULA = _PATTERNS["ASKS"], _PATTERNS["CLOSING_FORMULA"]
MANNER, SHOULD, SUPPOSED = _PATTERNS["MANNER"], _PATTERNS["SHOULD"], _PATTERNS["SUPPOSED"]
DONT, NOT_THAT, OBJECTS = _PATTERNS["DONT"], _PATTERNS["NOT_THAT"], _PATTERNS["OBJECTS"]
MISSING_ARGUMENT = _PATTERNS["MISSING_ARGUMENT"]
COMPLAINT, OPENING_COMPLAINT, NO = _PATTERNS["COMPLAINT"], _PATTERNS["OPENING_COMPLAINT"], _PATTERNS["NO"]
PRAISE, NO_PRAISE, BARE = _PATTERNS["PRAISE"], _PATTERNS["NO_PRAISE"], _PATTERNS["BARE"]
