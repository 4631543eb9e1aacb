"""Held-out prompts, and the checks that a reply to each must pass.

A file of prompts has one JSON object per line, or is a JSON array of such objects:

    {"id": "r1", "domain": "dates", "prompt": "When is it?", "check": {"match": ["\\\\d{4}-\\\\d{2}-\\\\d{2}"]}}
    {"id": "r2", "domain": "tone", "messages": [...], "tools": [...], "check": {"judge": "It does not apologise."}}

`match`: every pattern matches (Python's re.search); `absent`: no pattern matches. Both may be given, and
`"ignore_case": true`. `^` and `$` match at the ends of the whole reply unless a pattern begins with `(?m)`.
`judge`: a criterion that a judge model votes on; it may mention a `hint`, or the good reply of a log (`praised`), which
the judge then reads, too. `id` (default: the line) and `domain` (the tables group rows by it) may be left out.
`"corrected": true` says that the logs correct replies like this one, `false` that they do not, so that training should
change nothing there. The scores group all `true` rows as "corrected" and all `false` rows as "uncorrected". Prompts
with the same `session` (a text) count as one where chance is estimated: they are from one conversation. Other fields of
a row are ignored; a warning names one that looks like a misspelt field.
"""

import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from opdkit.chat.conversation import Unreadable
from opdkit.chat.messages import message, read_messages, read_tools
from opdkit.config.fields import JSON, PythonFunction, did_you_mean, read_text
from opdkit.console import warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.key_words import fold_text, key_words
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line
from opdkit.store.digests import digest_file
from opdkit.store.plans import manifest

# Domains that the scores add: everything, and what the logs correct or do not.
ALL, CORRECTED, UNCORRECTED = "all", "corrected", "uncorrected"
AFTER_CORRECTION = "directly after a correction"  # a domain of prompts from the log, which are neither
POOLED = {ALL: "everything", CORRECTED: "what the logs correct", UNCORRECTED: "what the logs do not correct"}
PROBES = PUSH_BACK, PLANTED_ERROR = "push_back", "planted_error"
_OF_JUDGE = ("judge", "hint", "praised")
_FIELDS = ("match", "absent", "ignore_case", *_OF_JUDGE)
_OPTIONAL = ("id", "domain", "tools", "corrected", "session")  # fields of a row that nobody misses
_warn_once = cache(warn)  # the steps of a night read the same file several times


@dataclass(frozen=True)
class Patterns:
    """Check that all of `match` and none of `absent` match."""

    match: tuple[re.Pattern[str], ...]
    absent: tuple[re.Pattern[str], ...]

    def passes(self, text: str) -> bool:
        """Return True for a reply that passes. An empty reply fails: it would satisfy every `absent`."""
        matches = all(p.search(text) for p in self.match) and not any(p.search(text) for p in self.absent)
        return matches and bool(text.strip())


@dataclass(frozen=True)
class FunctionCheck:
    """Check by a Python function of the reply and the row of its prompt, with all of its fields."""

    function: PythonFunction
    row: JSON

    def passes(self, text: str) -> bool:
        """Return True for a reply that passes. An empty one fails. Raises OpdkitError if the answer is not a bool."""
        passed = self.function.call(text, self.row) if text.strip() else False
        if not isinstance(passed, bool):
            raise OpdkitError(f"{self.function} returned {passed!r} for prompt {self.row['id']}; it must return a bool")
        return passed


@dataclass(frozen=True)
class Keeps:
    """Pass a reply that repeats at least half of `own`, the key words of the right reply.

    With `claim`, the key words of a wrong claim, also pass one that repeats less than half of `claim`. What a reply
    denies ("It is not Paris") it does not repeat.
    """

    own: frozenset[str]
    claim: frozenset[str] = frozenset()

    def passes(self, text: str) -> bool:
        """Return True for a reply that passes. One without a word fails."""
        if not fold_text(text)[1]:
            return False
        words = key_words(text, affirmed=True)
        if 2 * len(words & self.own) >= len(self.own):
            return True
        return bool(self.claim) and 2 * len(words & self.claim) < len(self.claim)


@dataclass(frozen=True)
class Criterion:
    """Criterion that a judge model votes on, and the hint or the praised reply that it mentions."""

    text: str
    hint: str | None = None
    praised: str | None = None


@dataclass(frozen=True)
class HeldOutPrompt:
    """Row of the file of prompts."""

    id: str
    domain: str
    messages: list[JSON]  # `message` of tables.toml
    tools: str | None
    check: Patterns | FunctionCheck | Criterion | Keeps
    corrected: bool | None = None  # the logs correct such replies; None: unknown
    probe: str | None = None  # what it probes, of PROBES; None: a prompt of the file
    session: str | None = None  # the prompts of one session count as one where chance is estimated

    @property
    def unit(self) -> Hashable:
        """Return what the prompt counts as where chance is estimated."""
        return choose_unit(self.id, self.session)

    def domains(self) -> tuple[str, ...]:
        """Return the domains that the prompt counts in: its own, and those that group several."""
        pooled = () if self.corrected is None else (CORRECTED if self.corrected else UNCORRECTED,)
        return (ALL, *pooled, self.domain)

    def text(self) -> str:
        """Return all text that a reply may repeat: messages, calls, thinking, and the tool definitions."""
        texts = [(m["content"], m["reasoning"], *(c["arguments"] for c in m["tool_calls"])) for m in self.messages]
        return "\n".join(text for text in (*chain.from_iterable(texts), self.tools) if text)


def choose_unit(prompt_id: str, session: str | None) -> Hashable:
    """Return what a prompt counts as where chance is estimated: its session, or itself. The two are never equal."""
    return session or (prompt_id,)


def read_evaluated_prompts(run: Path, remedy: str, file: str | None = None) -> dict[str, HeldOutPrompt]:
    """Return the prompts that a run was evaluated on, by id, from `file` or from where eval read them.

    Raises OpdkitError, which ends with `remedy`, where the file is gone or another one.
    """
    document = manifest(run, "eval")
    options = document["plan"]["config"] | document["plan"]["inputs"]
    path = Path(file or document["configuration"]["prompts"])
    if not path.is_file() or digest_file(path) != options["prompts"]:
        raise OpdkitError(f"{path} is not the file of prompts that {run} was evaluated on: {remedy}")
    # The replies were checked: a function only stands for the checks that the rows lack.
    check = PythonFunction(read_prompts) if "check" in options else None
    return {prompt.id: prompt for prompt in read_prompts(path, options["max_prompts"], check)}


def read_prompts(path: Path, limit: int | None = None, check: PythonFunction | None = None) -> list[HeldOutPrompt]:
    """Return the first `limit` prompts of a file; `check` is for those without a check of their own.

    Raises ConfigError, with file and line, at the first bad row.
    """
    prompts, misspelt = dict[str, HeldOutPrompt](), dict[str, str]()
    text, unit = read_text(path, "--prompts"), "line"
    lines = text.split("\n")  # splitlines() would break JSON
    if text.lstrip().startswith("["):
        try:
            unit, lines = "record", [json.dumps(row) for row in json.loads(text)]
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--prompts {path} begins like a JSON array, but is not one: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse(Line(str(path), number, f"{line}\n".encode()))
            prompt = _parse_prompt(row, number, check)
            if prompt.id in prompts:
                raise ValueError(f"the id {prompt.id!r} appears twice")
        except (ValueError, Unreadable) as error:
            detail = ": ".join(filter(None, error.args)) if isinstance(error, Unreadable) else str(error)
            raise ConfigError(f"--prompts {path}, {unit} {number}: {detail}") from error
        prompts[prompt.id] = prompt
        missing = [name for name in _OPTIONAL if name not in row]
        for name in row.keys() - _OPTIONAL:
            if near := get_close_matches(name.casefold(), missing, 1, 0.8):
                misspelt.setdefault(name, f"--prompts {path}, {unit} {number}: the field {name!r} is not read; did you "
                                          f"mean {near[0]!r}?")  # fmt: skip
    for text in sorted(misspelt.values()):
        _warn_once(text)
    if not prompts:
        raise ConfigError(f"--prompts {path} holds no prompts")
    return list(prompts.values())[:limit]


def _parse_prompt(row: JSON, line: int, function: PythonFunction | None) -> HeldOutPrompt:
    """Return one row as a prompt. Raises ValueError or Unreadable."""
    row = JSON(id=f"line-{line}", domain="prompts") | row
    for name in ("id", "domain", "session"):
        if name in row and not (isinstance(row[name], str) and row[name]):
            raise ValueError(f"{name!r} must be a text that is not empty")
    if row["domain"] in POOLED:
        raise ValueError(f"the domain {row['domain']!r} means {POOLED[row['domain']]} in the tables; use another name")
    corrected = row.get("corrected", False)
    if not isinstance(corrected, bool):
        raise ValueError("'corrected' must be true or false")
    messages, tools = _parse_messages(row), read_tools(row.get("tools"))
    check = FunctionCheck(function, row) if function and row.get("check") is None else _check(row.get("check"))
    session = row.get("session")
    return HeldOutPrompt(row["id"], row["domain"], messages, tools, check, row.get("corrected"), session=session)


def _parse_messages(row: JSON) -> list[JSON]:
    """Return the messages of `prompt` or `messages`. Raises ValueError or Unreadable."""
    if ("prompt" in row) == ("messages" in row):
        raise ValueError("exactly one of 'prompt' (text) and 'messages' is needed")
    if "prompt" in row:
        if isinstance(row["prompt"], list):
            raise ValueError("'prompt' must be a text; a list of messages goes into 'messages'")
        if not isinstance(row["prompt"], str) or not row["prompt"].strip():
            raise ValueError("'prompt' must be a text that is not empty")
        return [message("user", row["prompt"])]
    if not isinstance(row["messages"], list) or not row["messages"]:
        raise ValueError("'messages' must be a list that is not empty")
    messages, _ = read_messages(row["messages"])
    if messages[-1]["role"] == "assistant":
        raise ValueError("the last message is from the assistant: there is nothing to reply to")
    return messages


def _check(check: Any) -> Patterns | Criterion:
    """Return the check of a row. Raises ValueError."""
    if not isinstance(check, dict) or not check:
        raise ValueError('\'check\' is needed: {"match": [...], "absent": [...]} or {"judge": "criterion"}')
    unknown = next((name for name in check if name not in _FIELDS), None)
    if unknown is not None:
        raise ValueError(f"'check' has no field {unknown!r}; {did_you_mean(unknown, _FIELDS)}")
    if not check.keys().isdisjoint(_OF_JUDGE):
        are_texts = all(isinstance(text, str) and text.strip() for text in check.values())
        if "judge" not in check or not check.keys() <= set(_OF_JUDGE) or not are_texts:
            raise ValueError("a 'judge' check has one criterion as text, a 'hint' or a 'praised' reply as text if the "
                             "criterion mentions it, and no other field")  # fmt: skip
        return Criterion(check["judge"], check.get("hint"), check.get("praised"))
    return read_patterns(check)


def read_patterns(check: JSON) -> Patterns:
    """Return the check of a row that has patterns. Raises ValueError."""
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
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"{name!r} has an invalid regular expression: {pattern!r} ({error})") from error
    if not any(compiled.values()):
        raise ValueError("'check' has no pattern: every reply would pass")
    return Patterns(tuple(compiled["match"]), tuple(compiled["absent"]))
