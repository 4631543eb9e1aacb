"""Personal data and secrets in a log, replaced by placeholders before anything is written.

The patterns are conservative: what they take for an address, a key or a phone number nearly always is one, and numbers
in ordinary text (prices, dates, order ids, code) stay. Names and streets have no shape that a pattern could match.
"""

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import regex

from opdkit.chat.conversation import JSON
from opdkit.chat.messages import dump
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.tables import TURNS

SECONDS = 10.0  # limit of a user's pattern on one text; a sound pattern takes microseconds
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_MESSAGE_INDEX, _FINISH_REASON, _TOKEN_IDS, _LOGPROBS = map(
    TURNS.schema.get_field_index, ("message_index", "finish_reason", "response_token_ids", "behavior_logprobs")
)
_ASCII_ESCAPE = re.compile(r"\\u00([2-7][0-9a-fA-F])")


@dataclass(frozen=True)
class Shape:
    """Pattern of one kind of secret. Every match holds one of `hints` in lower case: looking for these is fast."""

    name: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]  # its group `before`, where it has one, is needed for a match, and stays


_FILES = "png|jpe?g|gif|svg|webp|ico|js|mjs|ts|tsx|jsx|py|css|scss|html?|json|ya?ml|toml|md|txt|sh|so|service|target"
_TOKENS = (
    r"(?<![A-Za-z0-9_])(?:"
    r"sk-(?:[0-9a-f]{32}|(?=[\w-]{0,200}?[0-9])(?=[\w-]{0,200}?[A-Z])[\w-]{20,300})"  # OpenAI, Anthropic, others
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_\w{22,255}|glpat-[\w-]{20,255}|xox[abeoprs]-[A-Za-z0-9-]{10,255}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,500}|hf_[A-Za-z]{30,40}|npm_[A-Za-z0-9]{36}"
    r"|pypi-AgE[\w-]{50,500}|[rsp]k_(?:live|test)_[A-Za-z0-9]{16,255}|SG\.[\w-]{22}\.[\w-]{43}"
    r"|eyJ[\w-]{8,5000}\.eyJ[\w-]{8,5000}\.[\w-]{8,5000})(?![A-Za-z0-9_])"
)
_ASSIGNED = (
    r"(?P<before>(?:api[_-]?key|secret|access[_-]?key|auth[_-]?token|access[_-]?token|password)[\"']?\s{0,3}[:=]\s{0,3}"
    r"[\"']?)(?=[\w+/-]{0,200}?[0-9])(?=[\w+/-]{0,200}?[A-Za-z])[\w+/-]{20,500}={0,2}(?![\w+/(.-])"
)
_EMAIL = (
    r"(?:(?<=\\[nrt])|(?<![A-Za-z0-9._%+\-\\]))"  # after "\n" in a text that holds JSON, too
    r"(?!git@)[A-Za-z0-9](?:[A-Za-z0-9._%+-]{0,62}[A-Za-z0-9_%+-])?"
    r"@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}"
    rf"(?!(?:{_FILES})(?![A-Za-z0-9-]))[A-Za-z]{{2,24}}(?![A-Za-z0-9-]|\.[A-Za-z0-9]|\()"
)
_PHONE_END = r"(?!\w|[.,-][0-9])"
_PHONE_WORDS = ("phone", "tel", "mobile", "cell", "whatsapp", "电话", "手机")
SHAPES = (
    Shape("private key", ("private key-----",), re.compile(
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL)),
    Shape("credentials", ("://",), re.compile(
        r"(?P<before>://)[^\s/:@\"'<>\[\]{}$]{1,100}:[^\s/@\"'<>\[\]{}$]{3,200}(?=@[\w\[])")),
    Shape("key", ("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "akia", "asia", "aiza",
                  "ya29.", "hf_", "npm_", "pypi-", "k_live_", "k_test_", "sg.", "eyj"), re.compile(_TOKENS)),
    Shape("key", ("bearer",), re.compile(
        r"(?P<before>bearer\s{1,3})(?=\S{0,500}?[0-9])[\w.~+/-]{20,5000}={0,2}", re.IGNORECASE)),
    Shape("key", ("key", "secret", "token", "password"), re.compile(_ASSIGNED, re.IGNORECASE)),
    Shape("email", ("@",), re.compile(_EMAIL)),
    # Of any country with a +, North American ones as they are written there, others after a word such as "phone".
    Shape("phone", ("+",), re.compile(
        r"\+(?<![\w+.,/=*-]\+)[1-9][0-9]{0,2}(?:[ .-]?\([0-9]{1,4}\))?(?:[ .-]?[0-9]){7,12}" + _PHONE_END)),
    Shape("phone", (") ", ")2", ")3", ")4", ")5", ")6", ")7", ")8", ")9"), re.compile(
        r"(?:(?<![\w.,/#$-])1[ .-])?\((?<![\w.,/#$]\()[2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .-][0-9]{4}" + _PHONE_END)),
    Shape("phone", ("-", "."), re.compile(
        r"[2-9](?<![\w.,/#$-][2-9])[0-9]{2}([.-])[2-9][0-9]{2}\1[0-9]{4}" + _PHONE_END)),
    Shape("phone", ("1-", "1."), re.compile(
        r"1(?<![\w.,/#$-]1)[.-][2-9][0-9]{2}([.-])[2-9][0-9]{2}\1[0-9]{4}" + _PHONE_END)),
    Shape("phone", _PHONE_WORDS, re.compile(
        r"(?P<before>(?:\b(?:phone|telephone|tel|mobile|cell|whatsapp)|电话|手机)(?:[ _-]?(?:number|no|nr)|号码?)?"
        r"(?:[\"':=. ]| is |[:是为]){1,6})\(?[0-9](?:[ .()-]{0,2}[0-9]){6,14}" + _PHONE_END, re.IGNORECASE)),
)  # fmt: skip


def own_patterns(pairs: Sequence[str]) -> dict[str, str]:
    """Parse --redact-pattern: ["order=ORD-[0-9]+"] -> {"order": "ORD-[0-9]+"}.

    Raises ConfigError for a pattern that is no regular expression or matches the empty text.
    """
    patterns: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not _NAME.fullmatch(name) or not text:
            raise ConfigError(f"--redact-pattern {pair!r}: write it as NAME=REGEX, and NAME in letters and digits")
        try:
            pattern = regex.compile(text)
        except (regex.error, RecursionError, OverflowError) as error:
            raise ConfigError(f"--redact-pattern {name}: {text!r} is not a regular expression: {error}") from None
        if pattern.match("") is not None:
            raise ConfigError(f"--redact-pattern {name}: {text!r} matches the empty text, so it would match everywhere")
        patterns[name] = text
    return patterns


class Redactor:
    """Replaces what its patterns match by `[name]` and counts it in `counts`.

    Raises OpdkitError when one of the user's patterns takes longer than `SECONDS` on one text.
    """

    def __init__(self, shapes: Sequence[Shape], own: Mapping[str, str]) -> None:
        self.counts: Counter[str] = Counter()
        self._shapes = shapes
        self._own = [(name, regex.compile(text)) for name, text in own.items()]

    def text(self, text: str) -> str:
        """Return `text` without what the patterns match; the user's own patterns come first."""
        for name, own in self._own:
            try:
                text, count = own.subn(f"[{name}]", text, timeout=SECONDS)
            except TimeoutError:
                raise OpdkitError(
                    f"--redact-pattern {name} took more than {SECONDS:g} seconds on a text of {len(text):,} "
                    f"characters: {own.pattern[:200]!r} tries too many ways to match. Write it without repetitions "
                    "inside repetitions; nothing of this part was written"
                ) from None
            self.counts[name] += count
        lower = text.lower()
        for shape in self._shapes:
            if any(hint in lower for hint in shape.hints):
                kept = r"\g<before>" if "before" in shape.pattern.groupindex else ""
                text, count = shape.pattern.subn(f"{kept}[{shape.name}]", text)
                self.counts[shape.name] += count
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its texts, keys too, redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(inner) for key, inner in value.items()}
        return [self.value(inner) for inner in value] if isinstance(value, list) else value

    def json(self, text: str) -> str:
        """Return JSON text redacted inside its strings, so that it stays JSON; unchanged where nothing matched."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self.text(text)
        redacted = self.value(value)
        return text if redacted == value else dump(redacted)

    def raw(self, text: str) -> str:
        """Return what is kept of a line that could not be read."""
        if "\x00" in text:  # UTF-16, or damage: no pattern could match in it
            return "[not text]"
        return self.text(_ASCII_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text))

    def message(self, message: JSON) -> JSON:
        """Return one message of tables.MESSAGE, redacted."""
        redacted = copy.copy(message)
        for key in ("content", "reasoning", "name", "tool_call_id"):
            if redacted[key]:
                redacted[key] = self.text(redacted[key])
        redacted["tool_calls"] = [
            {"id": self.text(c["id"]), "name": self.text(c["name"]), "arguments": self.json(c["arguments"])}
            for c in redacted["tool_calls"]
        ]
        return redacted


def redact_session(session: JSON, turns: Sequence[tuple[Any, ...]], redactor: Redactor) -> list[tuple[Any, ...]]:
    """Redact messages, tools and model of a row of tables.SESSIONS in place. Return the rows of its turns, redacted.

    The sampled tokens of a reply hold its text: where that was redacted, they are left out.
    """
    logged: list[JSON] = session["messages"]
    session["messages"] = [redactor.message(message) for message in logged]
    for key, redact in (("tools", redactor.json), ("model", redactor.text)):
        session[key] = redact(session[key]) if session[key] else None
    changed = {i for i, message in enumerate(logged) if message != session["messages"][i]}
    rows = []
    for turn in map(list, turns):
        if turn[_FINISH_REASON]:
            turn[_FINISH_REASON] = redactor.text(turn[_FINISH_REASON])
        if turn[_MESSAGE_INDEX] in changed:
            turn[_TOKEN_IDS] = turn[_LOGPROBS] = None
        rows.append(tuple(turn))
    return rows
