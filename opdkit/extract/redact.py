"""Redaction: placeholders replace personal data and secrets in a log before anything is written.

The rules are in rules/gitleaks.toml and rules/opdkit.toml. docs/logs.md has the measured recall per kind.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import orjson
import regex

from opdkit.chat.conversation import JSON, Note, Unreadable
from opdkit.chat.messages import TOO_DEEP, dump
from opdkit.errors import ConfigError
from opdkit.extract.inputs.files import add_name
from opdkit.extract.names import load_names
from opdkit.extract.redact_rules import Rule, load_rules, unescape
from opdkit.extract.turns import TurnRow, is_decided
from opdkit.store.skip_reasons import NO_NEXT

CACHED, CACHED_CHARS = 16_384, 8_192  # texts in the cache, longest of them: logs repeat prompts and field names
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_ASCII_ESCAPE = re.compile(r"\\u00([2-7][0-9a-fA-F])")
_ONE_WORD = re.compile(r"[\w.:/@-]*", re.ASCII)  # an id, or the name of a tool or field: not passed to the model
_WORDS = {"private key", "credentials", "rest of a key", "password", "email"}  # rules of other names need a digit
_TOKEN_IDS = re.compile(r"(?i)(?:tokens|(?:token|prompt|input|output|response|completion)_?ids)$")
_RUN, _DIGIT = re.compile(r"[A-Za-z0-9_+/=-]{12,}"), re.compile("[0-9]")
_ESCAPE = re.compile("%[2-7][0-9A-Fa-f]")
_ENCODED = re.compile(r"(?:[\w.~+-]|%[2-7][0-9A-Fa-f]){6,}+", re.ASCII)
_BREAK = r"(?:\\?\r?\n|(?:\\{1,15}r)?\\{1,15}n)[ \t>]{0,8}"  # a line break, as it is or escaped as in JSON
_BROKEN = re.compile(rf"(?<![\w-])[\w-]{{8,}}+(?:{_BREAK}[\w-]{{4,}}+){{1,3}}+", re.ASCII)
_LINE_BREAK = re.compile(rf"(?<=[\w-]{{4}}){_BREAK}(?=[\w-]{{4}})", re.ASCII)


def find_runs(text: str) -> str:
    """Return, in lower case, every long run of letters and digits that may be a key, with the 80 characters before it.

    Keywords of keys are searched for in these runs only, because there are hundreds of keywords.
    """
    runs = (m for m in _RUN.finditer(text) if m.end() - m.start() >= 20 or _DIGIT.search(m[0]))
    return "\n".join(text[max(0, m.start() - 80) : m.end()] for m in runs).lower()


def parse_own_patterns(pairs: Sequence[str]) -> list[tuple[str, str]]:
    """Parse --redact-pattern: ["order=ORD-[0-9]+"] -> [("order", "ORD-[0-9]+")].

    Raises ConfigError for a pattern that is not a regular expression, or that matches the empty text.
    """
    patterns = list[tuple[str, str]]()
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
        patterns.append((name, text))
    return patterns


def is_of_tokens(name: str, value: Any) -> bool:
    """Return whether a field holds token ids, or log-probs by token: they encode the text as it was."""
    if "logprobs" in name:
        return isinstance(value, list) or (isinstance(value, dict) and not {"content", "tokens"}.isdisjoint(value))
    return bool(_TOKEN_IDS.search(name)) and isinstance(value, list) and not any(isinstance(v, str) for v in value)


class Redactor:
    """Redactor that replaces each match of its rules by `[name]`, counted in `counts`; the user's patterns come first.

    Raises OpdkitError if a pattern takes longer than its limit on one text.
    """

    def __init__(self, redact: bool, own: Iterable[tuple[str, str]], names_model: str | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._own = [
            ("", Rule(name, ("",), text, regex.compile, f"--redact-pattern {name}", is_whole=True))
            for name, text in own
        ]
        by_keyword = [(keyword, rule) for rule in (load_rules() if redact else ()) for keyword in rule.keywords]
        cookies = [pair for pair in by_keyword if "cookie:" in pair[1].keywords]  # long: its name may be far from a run
        self._keys = [pair for pair in by_keyword if pair[1].name == "key" and pair not in cookies]
        self._words = [pair for pair in by_keyword if pair[1].name in _WORDS] + cookies
        self._numbers = [pair for pair in by_keyword if pair[1].name not in {"key", *_WORDS}]
        self._replace_names = load_names(names_model) if names_model else None
        words = {keyword for keyword, _ in by_keyword if len(keyword) > 2}
        self._is_telling = lru_cache(CACHED)(lambda name: any(word in name.lower() for word in words))
        self._cached = lru_cache(CACHED)(self._redact)

    def text(self, text: str) -> str:
        """Return `text` with a placeholder for each match of the rules."""
        redacted, counts = (self._cached if len(text) <= CACHED_CHARS else self._redact)(text)
        if counts:
            self.counts.update(counts)
        return redacted

    def _redact(self, text: str) -> tuple[str, Counter[str]]:
        counts: Counter[str] = Counter()
        text = self._apply(self._own, text, str.lower, counts)
        text = self._apply(self._keys, text, find_runs, counts)
        text = self._apply(self._words, text, str.lower, counts)
        if _DIGIT.search(text):
            text = self._apply(self._numbers, text, str.lower, counts)
        if _ESCAPE.search(text):
            text = _ENCODED.sub(lambda m: self._redact_decoded(m[0], unquote(m[0]), counts), text)
        if _LINE_BREAK.search(text):
            text = _BROKEN.sub(lambda m: self._redact_decoded(m[0], _LINE_BREAK.sub("", m[0]), counts), text)
        if self._replace_names and not _ONE_WORD.fullmatch(text):
            text = self._replace_names(text, counts)
        return text, counts

    @staticmethod
    def _apply(
        rules: Sequence[tuple[str, Rule]], text: str, prepare: Callable[[str], str], counts: Counter[str]
    ) -> str:
        """Apply the rules with a keyword in `prepare(text)`, as it is or without its escapes."""
        if not rules:
            return text
        plain = unescape(text)
        lower = prepare(f"{plain.text}\n{text}" if plain else text)
        for rule in dict.fromkeys(rule for keyword, rule in rules if keyword in lower) if lower else ():
            replaced = rule.replace(text, counts, plain)
            if replaced != text:
                text, plain = replaced, unescape(replaced)
        return text

    def _redact_decoded(self, written: str, plain: str, counts: Counter[str]) -> str:
        """Return `plain`, the decoded `written`, redacted if it holds a key or an address; else `written` unchanged."""
        matches: Counter[str] = Counter()
        if plain != written:
            plain = self._apply(self._keys, plain, find_runs, matches)
            plain = self._apply(self._words, plain, str, matches) if "@" in plain else plain
        counts.update(matches)
        return plain if matches else written

    def value(self, value: Any) -> Any:
        """Return a JSON value with its strings, keys and long integers redacted; a field's value also by its name.

        Raises Unreadable if the value is nested too deeply.
        """
        try:
            if isinstance(value, dict):
                names: dict[str, int] = {}  # numbers the keys that redaction makes equal: "[email]", "[email] 2"
                label = value.get("name")  # {"name": "DB_PASSWORD", "value": "abc-123"} is a field, too
                fields = ((key, label if key == "value" and isinstance(label, str) else key) for key in value)
                return {add_name(self.text(k), names, " "): self._redact_field(name, value[k]) for k, name in fields}
            if isinstance(value, list):
                return [self.value(inner) for inner in value]
        except RecursionError:
            raise Unreadable(TOO_DEEP, "more levels than can be redacted") from None
        if isinstance(value, str):
            return self.text(value)
        if type(value) is int and abs(value) >= 10**9:
            redacted = self.text(f"n: {value}")  # as after the name of a field: 11 digits are no phone number there
            return value if redacted == f"n: {value}" else redacted.removeprefix("n: ")
        return value

    def _redact_field(self, name: str, value: Any) -> Any:
        """Return the value of {"password": "abc-123"}, redacted as in the text `"password": "abc-123"`; no tokens."""
        if is_of_tokens(name, value):
            return None
        redacted = self.value(value)
        if redacted == value and isinstance(value, (str, int, float)) and (self._own or self._is_telling(name)):
            before, written = f'"{name}": ', f'"{value}"' if isinstance(value, str) else str(value)
            line = self.text(before + written)
            if not line.endswith(written):
                return line.removeprefix(before).removeprefix('"').removesuffix('"')
        return redacted

    def json(self, text: str) -> str:
        """Return JSON text redacted inside its strings, so that it stays JSON; unchanged if nothing matched."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self.text(text)
        redacted = self.value(value)
        if redacted != value:
            return dump(redacted)
        # A pattern may match across fields, and a key that is there twice has only its last value in `value`.
        replaced = self.text(text)
        try:
            orjson.loads(replaced)
        except orjson.JSONDecodeError:
            return dump(redacted)
        return replaced

    def raw(self, text: str) -> str:
        """Return the redacted text of a line that could not be read, for the rejected table."""
        if "\x00" in text:  # UTF-16, or damage: no pattern could match in it
            return "[not text]"
        return self.text(_ASCII_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text))

    def message(self, message: JSON) -> JSON:
        """Return one `message` of tables.toml, redacted."""
        fields = [key for key in ("content", "reasoning", "name", "tool_call_id") if message[key]]
        texts = {key: self.text(message[key]) for key in fields}
        calls = [
            {"id": self.text(call["id"]), "name": self.text(call["name"]), "arguments": self.json(call["arguments"])}
            for call in message["tool_calls"]
        ]
        return message | texts | {"tool_calls": calls}


def redact_session(session: JSON, turns: Sequence[TurnRow], redactor: Redactor) -> list[TurnRow]:
    """Redact messages, tools and model of a row of tables.SESSIONS in place. Return the rows of its turns, redacted.

    The sampled tokens of a reply encode its text, so they and their log-probs are left out if the reply was redacted.
    """
    logged: list[JSON] = session["messages"]
    session["messages"] = [redactor.message(message) for message in logged]
    for key, redact in (("tools", redactor.json), ("model", redactor.text)):
        session[key] = redact(session[key]) if session[key] else None
    rows = []
    for turn in turns:
        if turn.finish_reason:
            turn = turn._replace(finish_reason=redactor.text(turn.finish_reason))
        if turn.decision:
            note = Note(decision={key: redactor.value(value) for key, value in turn.decision.items()})
            note.drop_unchanged(session["messages"][turn.message_index]["content"])
            turn = turn._replace(decision=note.decision)
            if turn.trainable and turn.next_role is None and not is_decided(note.decision):
                turn = turn._replace(trainable=False, skip_reason=NO_NEXT)
        if session["messages"][turn.message_index] != logged[turn.message_index]:
            turn = turn._replace(response_token_ids=None, behavior_logprobs=None)
        rows.append(turn)
    return rows
