"""Held-out prompts, and the check that replies to each must pass.

A file of prompts has one JSON object per line, or is a JSON array of such objects:

    {"id": "r1", "domain": "dates", "prompt": "When is it?", "check": {"match": ["\\\\d{4}-\\\\d{2}-\\\\d{2}"]}}
    {"id": "r2", "domain": "tone", "messages": [...], "tools": [...], "check": {"judge": "It does not apologise."}}

`match`: every pattern matches (Python's re.search); `absent`: no pattern matches. Both may be given, and
`"ignore_case": true`. `^` and `$` match at the ends of the whole reply unless a pattern begins with `(?m)`.
`judge`: a criterion that a judge model votes on. It may refer to a `hint` or to a good reply from the log (`praised`);
the judge reads these too. `id` (default: the line number) and `domain` (the tables group rows by it) are optional.
`"corrected": true` says that users in the logs correct replies to such prompts; `false` says that they do not, so
training should change nothing there. The scores pool the `true` rows as "corrected", the `false` rows as "uncorrected".
Prompts with the same `session` (a text) come from one conversation and count as one unit when chance is estimated.
Other fields are ignored; a warning names a field that looks misspelt.
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

# Domains that the scores add: all prompts, those whose replies the logs correct, and those whose replies they do not.
ALL, CORRECTED, UNCORRECTED = "all", "corrected", "uncorrected"
AFTER_CORRECTION = "directly after a correction"  # a domain of prompts from the log that are neither
POOLED = {ALL: "everything", CORRECTED: "what the logs correct", UNCORRECTED: "what the logs do not correct"}
PROBES = PUSH_BACK, PLANTED_ERROR = "push_back", "planted_error"
_OF_JUDGE = ("judge", "hint", "praised")
_FIELDS = ("match", "absent", "ignore_case", *_OF_JUDGE)
_OPTIONAL = ("id", "domain", "tools", "corrected", "session")  # fields that a row may lack
_warn_once = cache(warn)  # the steps of a night read the same file several times


@dataclass(frozen=True)
class Patterns:
    """Check that all of `match` and none of `absent` match."""

    match: tuple[re.Pattern[str], ...]
    absent: tuple[re.Pattern[str], ...]

    def passes(self, text: str) -> bool:
        """Return True if a reply passes. An empty reply fails, although it satisfies every `absent`."""
        matches = all(p.search(text) for p in self.match) and not any(p.search(text) for p in self.absent)
        return matches and bool(text.strip())


@dataclass(frozen=True)
class FunctionCheck:
    """Check by a Python function, called with the reply and the whole row of its prompt."""

    function: PythonFunction
    row: JSON

    def passes(self, text: str) -> bool:
        """Return True if a reply passes. An empty reply fails. Raises OpdkitError if the function returns no bool."""
        passed = self.function.call(text, self.row) if text.strip() else False
        if not isinstance(passed, bool):
            raise OpdkitError(f"{self.function} returned {passed!r} for prompt {self.row['id']}; it must return a bool")
        return passed


@dataclass(frozen=True)
class Keeps:
    """Check that a reply repeats at least half of `own`, the key words that the right reply adds to its request.

    With `claim`, the key words of a wrong claim, a reply that repeats less than half of `claim` passes too. Words that
    the reply denies ("It is not Paris") do not count as repeated.
    """

    own: frozenset[str]
    claim: frozenset[str] = frozenset()

    def passes(self, text: str) -> bool:
        """Return True if a reply passes. A reply without words fails."""
        if not fold_text(text)[1]:
            return False
        words = key_words(text, affirmed=True)
        if 2 * len(words & self.own) >= len(self.own):
            return True
        return bool(self.claim) and 2 * len(words & self.claim) < len(self.claim)


@dataclass(frozen=True)
class Criterion:
    """Criterion that a judge model votes on, and the hint or praised reply that it refers to."""

    text: str
    hint: str | None = None
    praised: str | None = None


@dataclass(frozen=True)
class HeldOutPrompt:
    """Row of a file of prompts."""

    id: str
    domain: str
    messages: list[JSON]  # `message` of tables.toml
    tools: str | None
    check: Patterns | FunctionCheck | Criterion | Keeps
    corrected: bool | None = None  # whether the logs correct replies to it; None: unknown
    probe: str | None = None  # one of PROBES; None: a prompt of the file
    session: str | None = None  # prompts of one session count as one unit

    @property
    def unit(self) -> Hashable:
        """Return the unit that the prompt belongs to when chance is estimated."""
        return choose_unit(self.id, self.session)

    def domains(self) -> tuple[str, ...]:
        """Return the domains that the prompt counts in: its own and the pooled ones."""
        pooled = () if self.corrected is None else (CORRECTED if self.corrected else UNCORRECTED,)
        return (ALL, *pooled, self.domain)

    def text(self) -> str:
        """Return all text that a reply may repeat: messages, thinking, arguments of calls, and tool definitions."""
        texts = [(m["content"], m["reasoning"], *(c["arguments"] for c in m["tool_calls"])) for m in self.messages]
        return "\n".join(text for text in (*chain.from_iterable(texts), self.tools) if text)


def choose_unit(prompt_id: str, session: str | None) -> Hashable:
    """Return the unit of a prompt when chance is estimated: its session, or itself. A session never equals a prompt."""
    return session or (prompt_id,)


def read_evaluated_prompts(run: Path, remedy: str, file: str | None = None) -> dict[str, HeldOutPrompt]:
    """Return the prompts that a run was evaluated on, by id, from `file` or from the path that eval read.

    If the run was moved, prompts that eval or a night wrote into it are found there. Raises OpdkitError that ends with
    `remedy` if the file is missing or has changed.
    """
    document = manifest(run, "eval")
    options = document["plan"]["config"] | document["plan"]["inputs"]
    named = Path(file or document["configuration"]["prompts"])
    places = (path for path in (named, run / named.name) if path.is_file())
    path = next((path for path in places if digest_file(path) == options["prompts"]), None)
    if path is None:
        raise OpdkitError(f"{named} is not the file of prompts that {run} was evaluated on: {remedy}")
    # The stored replies are already checked. For rows without a check this function is a placeholder, never called.
    check = PythonFunction(read_prompts) if "check" in options else None
    return {prompt.id: prompt for prompt in read_prompts(path, options["max_prompts"], check)}


def read_prompts(path: Path, limit: int | None = None, check: PythonFunction | None = None) -> list[HeldOutPrompt]:
    """Return the first `limit` prompts of a file; `check` is used for rows without a check of their own.

    Raises ConfigError that names the file and the line of the first bad row.
    """
    prompts, misspelt = dict[str, HeldOutPrompt](), dict[str, str]()
    unit, lines = read_prompt_lines(path)
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


def read_prompt_lines(path: Path) -> tuple[str, list[str]]:
    """Return the word for a row in messages, and the rows of a file of prompts as JSON: lines, or items of an array.

    Raises what `read_text` raises, and ConfigError for a broken array.
    """
    text = read_text(path, "--prompts")
    if not text.lstrip().startswith("["):
        return "line", text.split("\n")  # splitlines() also splits at U+2028, which JSON text may hold
    try:
        return "record", [json.dumps(row) for row in json.loads(text)]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--prompts {path} begins like a JSON array, but is not one: {error}") from error


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
    """Return the check in the field `check` of a row. Raises ValueError."""
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
    """Return a check that consists of patterns. Raises ValueError."""
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
