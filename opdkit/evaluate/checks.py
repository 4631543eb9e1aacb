"""Held-out prompts and what a reply to each must satisfy.

A file of prompts has one JSON object a line:

    {"id": "r1", "domain": "dates", "prompt": "When is it?", "check": {"match": ["\\\\d{4}-\\\\d{2}-\\\\d{2}"]}}
    {"id": "r2", "domain": "tone", "messages": [...], "tools": [...], "check": {"judge": "It does not apologise."}}

`match`: every pattern is found (Python's re.search); `absent`: none of them is; both may be given, and
`"ignore_case": true`. `^` and `$` stand for the ends of the whole reply unless a pattern begins with `(?m)`.
`judge`: a criterion that a judge model votes on. `id` (default: the line) and `domain` (the rows that the tables put
together) may be left out. `"corrected": true` says that the logs correct replies like this one, `false` that they do
not, so that whatever changes there was not asked for; where rows have it, the scores also put all `true` rows together
as "corrected" and all `false` ones as "uncorrected". Other fields of a row are left alone.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from opdkit.chat.conversation import Unreadable
from opdkit.chat.messages import message, read_messages, read_tools
from opdkit.config.fields import JSON, did_you_mean
from opdkit.errors import ConfigError
from opdkit.judge.votes import reward_of

# Domains that the scores make themselves: everything, and what the logs correct or do not.
ALL, CORRECTED, UNCORRECTED = "all", "corrected", "uncorrected"
POOLED = {ALL: "everything", CORRECTED: "what the logs correct", UNCORRECTED: "what the logs do not correct"}
_FIELDS = ("match", "absent", "ignore_case", "judge")


@dataclass(frozen=True)
class Patterns:
    """All of `match` and none of `absent`."""

    match: tuple[re.Pattern[str], ...]
    absent: tuple[re.Pattern[str], ...]

    def passes(self, text: str) -> bool:
        """An empty reply passes nothing, or saying nothing would satisfy every `absent`."""
        found = all(p.search(text) for p in self.match) and not any(p.search(text) for p in self.absent)
        return bool(text.strip()) and found


@dataclass(frozen=True)
class Criterion:
    """What a judge model is asked about the reply."""

    text: str


@dataclass(frozen=True)
class HeldOutPrompt:
    """One row of the file."""

    id: str
    domain: str
    messages: list[JSON]  # tables.MESSAGE
    tools: str | None
    check: Patterns | Criterion
    corrected: bool | None = None  # whether the logs correct such replies; None: the row does not say

    def domains(self) -> tuple[str, ...]:
        """The domains that it counts in: its own, and those that put several together."""
        pooled = () if self.corrected is None else (CORRECTED if self.corrected else UNCORRECTED,)
        return (ALL, *pooled, self.domain)

    def text(self) -> str:
        """All that a reply may take up from it: what was said, called and thought, and the tool definitions."""
        said = [(m["content"], m["reasoning"], *(c["arguments"] for c in m["tool_calls"])) for m in self.messages]
        return "\n".join(text for text in (*chain.from_iterable(said), self.tools) if text)


def read_prompts(path: Path, limit: int | None = None) -> list[HeldOutPrompt]:
    """The prompts of a file (its first `limit`). Raises ConfigError, with file and line, at the first bad row."""
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
    patterns = Patterns(*(_patterns(name, check.get(name, []), flags) for name in ("match", "absent")))
    if not patterns.match and not patterns.absent:
        raise ValueError("'check' has no pattern, so that every reply would pass")
    return patterns


def _patterns(name: str, patterns: Any, flags: re.RegexFlag) -> tuple[re.Pattern[str], ...]:
    if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
        raise ValueError(f"{name!r} must be a list of patterns")
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern, flags))
        except re.error as error:
            raise ValueError(f"{name!r} has a pattern that is no regular expression: {pattern!r} ({error})") from error
    return tuple(compiled)


# -- what the votes say ----------------------------------------------------------------------------------------------


def verdict(scores: Sequence[int | None]) -> bool | None:
    """What the votes of a judge add up to: null where they cannot tell, tie, or fail."""
    return {1: True, -1: False}.get(reward_of(scores).reward or 0)
