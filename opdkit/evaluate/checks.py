"""Held-out prompts, the checks that a reply to each must pass, and echoes of hints in replies.

A file of prompts has one JSON object per line:

    {"id": "r1", "domain": "dates", "prompt": "When is it?", "check": {"match": ["\\\\d{4}-\\\\d{2}-\\\\d{2}"]}}
    {"id": "r2", "domain": "tone", "messages": [...], "tools": [...], "check": {"judge": "It does not apologise."}}

`match`: every pattern matches (Python's re.search); `absent`: no pattern matches; both may be given, and
`"ignore_case": true`. `^` and `$` stand for the ends of the whole reply unless a pattern begins with `(?m)`.
`judge`: a criterion that a judge model votes on. `id` (default: the line) and `domain` (rows that the tables group
together) may be left out. `"corrected": true` says that the logs correct replies like this one, `false` that they do
not, so that whatever changes there was not asked for; where rows have it, the scores also group all `true` rows as
"corrected" and all `false` ones as "uncorrected". Other fields of a row are ignored.

An echo is a reply that speaks of a hint that nobody gave: a model may learn it from a teacher that had read one. Three
things in a reply echo a hint, each of them only where the prompt gives no reason for it:

- a marker: `[HINT_START]`, `[HINT_END]`, or the line that introduces a hint in the teacher's prompt, with or without
  its brackets. It does not count where the prompt has the same marker.
- a phrase that credits the user with a hint ("based on your hint", "as you hinted"). English, and narrow: the word
  alone is ordinary ("type hints", "a hint of lemon"), so a phrase needs somebody who gave it. It does not count where
  the prompt itself speaks of hints (of instructions, for the phrase about those): there may be one.
- a whole hint of the run, word for word, of at least five words. It does not count where the prompt has it too.

The share before training says how often an ordinary reply looks like an echo; what training added is the difference.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from opdkit.chat.conversation import Unreadable
from opdkit.chat.messages import message, read_messages, read_tools
from opdkit.chat.openai_form import HINT_HEADER
from opdkit.config.fields import JSON, did_you_mean
from opdkit.errors import ConfigError
from opdkit.judge.votes import reward_of

# Domains that the scores make themselves: everything, and what the logs correct or do not.
ALL, CORRECTED, UNCORRECTED = "all", "corrected", "uncorrected"
POOLED = {ALL: "everything", CORRECTED: "what the logs correct", UNCORRECTED: "what the logs do not correct"}
_FIELDS = ("match", "absent", "ignore_case", "judge")


@dataclass(frozen=True)
class Patterns:
    """Check that all of `match` and none of `absent` match."""

    match: tuple[re.Pattern[str], ...]
    absent: tuple[re.Pattern[str], ...]

    def passes(self, text: str) -> bool:
        """Return True for a reply that passes. An empty one never does, or it would satisfy every `absent`."""
        if not text.strip():
            return False
        return all(p.search(text) for p in self.match) and not any(p.search(text) for p in self.absent)


@dataclass(frozen=True)
class Criterion:
    """Criterion that a judge model votes on."""

    text: str


@dataclass(frozen=True)
class HeldOutPrompt:
    """Row of the file of prompts."""

    id: str
    domain: str
    messages: list[JSON]  # tables.MESSAGE
    tools: str | None
    check: Patterns | Criterion
    corrected: bool | None = None  # the logs correct such replies; None: the row does not say

    def domains(self) -> tuple[str, ...]:
        """Return the domains that the prompt counts in: its own, and those that group several."""
        pooled = () if self.corrected is None else (CORRECTED if self.corrected else UNCORRECTED,)
        return (ALL, *pooled, self.domain)

    def text(self) -> str:
        """Return all that a reply may take up: messages, calls, thinking, and the tool definitions."""
        said = [(m["content"], m["reasoning"], *(c["arguments"] for c in m["tool_calls"])) for m in self.messages]
        return "\n".join(text for text in (*chain.from_iterable(said), self.tools) if text)


def read_prompts(path: Path, limit: int | None = None) -> list[HeldOutPrompt]:
    """Read the prompts of a file (its first `limit`). Raises ConfigError, with file and line, at the first bad row."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() breaks inside JSON text
    except OSError as error:
        raise ConfigError(f"--prompts {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompts {path} is not UTF-8 text: {error}") from error
    prompts: dict[str, HeldOutPrompt] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line), number)
            if prompt.id in prompts:
                raise ValueError(f"the id {prompt.id!r} is there twice")
        except (ValueError, RecursionError, Unreadable) as error:  # JSONDecodeError is a ValueError
            detail = f"{error.reason}: {error.detail}" if isinstance(error, Unreadable) else str(error)
            raise ConfigError(f"--prompts {path}, line {number}: {detail}") from error
        prompts[prompt.id] = prompt
    if not prompts:
        raise ConfigError(f"--prompts {path} holds no prompts")
    return list(prompts.values())[:limit]


def _prompt(row: Any, line: int) -> HeldOutPrompt:
    """Return one row as a prompt. Raises ValueError or Unreadable."""
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is needed, this is a {type(row).__name__}")
    row = {"id": f"line-{line}", "domain": "prompts"} | row
    for name in ("id", "domain"):
        if not isinstance(row[name], str) or not row[name]:
            raise ValueError(f"{name!r} must be a text that is not empty")
    if row["domain"] in POOLED:
        meaning = POOLED[row["domain"]]
        raise ValueError(f"the domain {row['domain']!r} stands for {meaning} in the tables; use another name")
    corrected = row.get("corrected", False)
    if not isinstance(corrected, bool):
        raise ValueError("'corrected' must be true or false")
    messages, tools, check = _messages(row), read_tools(row.get("tools")), _check(row.get("check"))
    return HeldOutPrompt(row["id"], row["domain"], messages, tools, check, row.get("corrected"))


def _messages(row: JSON) -> list[JSON]:
    """Return the messages of `prompt` or `messages`. Raises ValueError or Unreadable."""
    if ("prompt" in row) == ("messages" in row):
        raise ValueError("one of 'prompt' (text) and 'messages' is needed, and not both")
    if "prompt" in row:
        if isinstance(row["prompt"], list):
            raise ValueError("'prompt' is a text; a list of messages goes under 'messages'")
        if not isinstance(row["prompt"], str) or not row["prompt"].strip():
            raise ValueError("'prompt' must be a text that is not empty")
        return [message("user", row["prompt"])]
    if not isinstance(row["messages"], list) or not row["messages"]:
        raise ValueError("'messages' must be a list that is not empty")
    messages, _ = read_messages(row["messages"])
    if messages[-1]["role"] == "assistant":
        raise ValueError("the last message is the assistant's: there is nothing to reply to")
    return messages


def _check(check: Any) -> Patterns | Criterion:
    """Return the check of a row. Raises ValueError."""
    if not isinstance(check, dict) or not check:
        raise ValueError('\'check\' is needed: {"match": [...], "absent": [...]} or {"judge": "criterion"}')
    unknown = next((name for name in check if name not in _FIELDS), None)
    if unknown is not None:
        raise ValueError(f"'check' has no field {unknown!r}; {did_you_mean(unknown, _FIELDS)}")
    if "judge" in check:
        if len(check) > 1 or not isinstance(check["judge"], str) or not check["judge"].strip():
            raise ValueError("a 'judge' check is one criterion as text, and nothing beside it")
        return Criterion(check["judge"])
    if not isinstance(check.get("ignore_case", False), bool):
        raise ValueError("'ignore_case' must be true or false")
    flags = re.IGNORECASE if check.get("ignore_case") else re.NOFLAG
    compiled: dict[str, list[re.Pattern[str]]] = {"match": [], "absent": []}
    for name in compiled:
        patterns = check.get(name, [])
        if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
            raise ValueError(f"{name!r} must be a list of patterns")
        for pattern in patterns:
            try:
                compiled[name].append(re.compile(pattern, flags))
            except re.error as error:
                raise ValueError(f"{name!r} has an invalid regular expression: {pattern!r} ({error})") from error
    if not any(compiled.values()):
        raise ValueError("'check' has no pattern, so that every reply would pass")
    return Patterns(tuple(compiled["match"]), tuple(compiled["absent"]))


def verdict_of(scores: Sequence[int | None]) -> bool | None:
    """Return what the votes of a judge add up to; None where they tie, fail or cannot tell."""
    return {1: True, -1: False}.get(reward_of(scores).reward or 0)


# -- echoes of hints ---------------------------------------------------------------------------------------------

MIN_WORDS = 5  # a shorter hint ("Use Celsius.") may well be an ordinary sentence
Hints = Mapping[tuple[str, ...], list[tuple[str, ...]]]  # first MIN_WORDS words -> the words of the hints

# Emphasis and quotation marks say nothing here; typographic apostrophes are apostrophes.
_FOLDED = str.maketrans(dict.fromkeys('*`"“”„«»') | {"’": "'", "‘": "'"})
# Scripts that put no space between words: a character is a word.
_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:['-][^\W{_UNSPACED}]+)*")

_YOURS = r"(?:your|(?:the )?user's)(?: (?:earlier|previous|last|helpful))?"
_BY = r"(?:based on|as per|per|according to|following|considering|given|in line with|in accordance with|thanks to)"
_YOU_GAVE = r"(?: that| which)? you(?:'ve| have)?(?: just| already)? (?:gave|given|provided|shared|mentioned)"
_MARKER = re.compile(
    # The header's words, as folded text has them.
    rf"{re.escape(HINT_HEADER.casefold().strip('[]'))}"
    r"|\[ ?/?hint_(?:start|end) ?\]"
)
_HINT_PHRASES = re.compile(
    rf"\b{_BY} {_YOURS} hints?\b"  # based on your hint, following the user's hints
    r"|\bas per the (?:(?:given|provided) )?hints?\b"
    rf"|\b{_BY} the hints?{_YOU_GAVE}\b"  # following the hint you gave
    # In the first words of a reply or of its thinking; further on it may be part of a story or a riddle.
    r"|(?:^|</?think> ?)(?:\w+[,.!] )?(?:based on|according to) the (?:(?:given|provided) )?hints?\b"
    r"|\b(?:as|like) (?:you|the user)(?:'ve| have)?(?: just| already)? hinted\b"
    r"|\bas hinted by (?:you|the user)\b"
    r"|\bthank(?:s| you)(?: so much| very much| a lot)? for (?:your|the) hints?\b"
    rf"|\b{_YOURS} hint (?:says|said|suggests|suggested|asks|asked|tells|told|indicates|states|mentions)\b"
)
_INSTRUCTION_PHRASES = re.compile(rf"\b{_BY} the instructions?{_YOU_GAVE}\b")
# phrase -> the word in a prompt that gives a reason for it
_PHRASES = {_HINT_PHRASES: re.compile(r"\bhint(?:s|ed|ing)?\b"), _INSTRUCTION_PHRASES: re.compile(r"\binstructions?\b")}


def index_hints(hints: Iterable[str]) -> Hints:
    """Return the hints that `echo_of` looks for by their first words, so that a reply is read once for all of them."""
    index: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for words in sorted({_words(_fold(hint)) for hint in hints}):
        if len(words) >= MIN_WORDS:
            index.setdefault(words[:MIN_WORDS], []).append(words)
    return index


def echo_of(reply: str, prompt: str, hints: Hints) -> str | None:
    """Return the first thing in `reply` that echoes a hint, with case and white space folded; None without one.

    `reply` is the whole reply, thinking included; `prompt` is everything that the model had read.
    """
    folded = _fold(reply)
    words = _words(folded)
    markers = _MARKER.findall(folded)
    phrases = [(match[0].strip(), reason) for phrase, reason in _PHRASES.items() if (match := phrase.search(folded))]
    repeated = [
        hint
        for start in range(len(words) - MIN_WORDS + 1)
        for hint in hints.get(words[start : start + MIN_WORDS], ())
        if words[start : start + len(hint)] == hint
    ]
    if not (markers or phrases or repeated):  # prompts are long, and this is the rule
        return None
    asked = _fold(prompt)
    asked_words = f" {' '.join(_words(asked))} " if repeated else ""
    echoes = [
        *(marker for marker in markers if marker not in asked),
        *(phrase for phrase, reason in phrases if not reason.search(asked)),
        *(" ".join(hint) for hint in repeated if f" {' '.join(hint)} " not in asked_words),
    ]
    return echoes[0] if echoes else None


def _fold(text: str) -> str:
    """Return a text without emphasis, quotation marks, case, and differences in white space."""
    return " ".join(text.translate(_FOLDED).casefold().split())


def _words(folded: str) -> tuple[str, ...]:
    """Return the words without the punctuation around them: a hint with a comma for its full stop is the same hint."""
    return tuple(_WORDS.findall(folded))
