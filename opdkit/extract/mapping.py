"""`--map FILE.toml`: where a log has its fields, for logs that no reader knows.

    messages = "chat.turns"     # a conversation a line: the list of its messages
    role = "speaker"            # in each message
    content = "text"
    model = "meta.model"        # in each line
    [roles]
    customer = "user"
    agent = "assistant"

Three shapes: `messages`; `session`, where each line is one message of that session, in the order of `order` or of the
file; `prompt` and `reply`, with `next` for what came of it, and `link = true` where each prompt repeats the
conversation so far. A path is names with dots between them, in quotes where a name has a dot, and places in a list:
`data."llm.input"[0].text`, `choices[-1]`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from opdkit.config.fields import did_you_mean, read_toml
from opdkit.errors import ConfigError

_STEP = re.compile(r'(?:^|\.)(?:([^.\[\]"\s]+)|"([^"]+)")|\[(-?\d{1,6})\]')
_TARGETS = ("system", "user", "assistant", "tool", "drop")

Steps = tuple[str | int, ...]


def _path(default: str | None = None) -> Any:
    return field(default=None if default is None else (default,), metadata={"path": True})


@dataclass(frozen=True)
class FieldMap:
    """The fields of a log. What is None is not there."""

    # Where the conversation is: one of these.
    messages: Steps | None = _path()
    session: Steps | None = _path()
    prompt: Steps | None = _path()
    reply: Steps | None = _path()
    next: Steps | None = _path()
    order: Steps | None = _path()
    link: bool = False
    next_role: str = "user"
    # Of each message.
    role: Steps = _path("role")
    content: Steps = _path("content")
    reasoning: Steps | None = _path()
    name: Steps | None = _path()
    tool_calls: Steps | None = _path("tool_calls")
    tool_call_id: Steps | None = _path("tool_call_id")
    finish_reason: Steps | None = _path()
    # Of each line.
    system: Steps | None = _path()
    tools: Steps | None = _path()
    model: Steps | None = _path()
    time: Steps | None = _path()
    language: Steps | None = _path()
    metadata: tuple[tuple[str, Steps], ...] | None = None  # (name, path); None keeps every field that no path begins in
    roles: tuple[tuple[str, str], ...] = ()
    tool_call: tuple[tuple[str, Steps], ...] = ()  # of each call: id, name, arguments, where they are called otherwise

    @property
    def used(self) -> frozenset[str | int]:
        """The fields of a line that need not be kept: those of the conversation, and those that are columns whole."""
        whole = [self.messages, self.prompt, self.reply, self.next, self.tools, self.system]
        short = [self.session, self.model, self.time, self.language]
        if self.messages is None and self.prompt is None:  # a message a line: its fields are the line's
            whole += [self.role, self.content, self.tool_calls]
            short += [self.order, self.reasoning, self.name, self.tool_call_id, self.finish_reason]
        return frozenset([path[0] for path in whole if path] + [p[0] for p in short if p and len(p) == 1])


def load(path: str) -> FieldMap:
    """Read the mapping in a TOML file. Raises ConfigError that says what is wrong in it."""
    return _field_map(read_toml(Path(path), "--map"), f"--map {path}")


def _field_map(document: Mapping[str, Any], where: str) -> FieldMap:
    known = {f.name: f for f in fields(FieldMap)}
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key not in known:
            raise ConfigError(f"{where}: there is no field {key!r}; {did_you_mean(key, list(known))}")
        if known[key].metadata.get("path"):
            found[key] = parse_path(value, f"{where}: {key}")
        elif key == "link":
            found[key] = _checked(value, bool, f"{where}: link must be true or false")
        elif key == "next_role":
            found[key] = _one_of(value, ("user", "tool"), f"{where}: next_role")
        elif key == "metadata":
            found[key] = _kept(value, where)
        else:
            table = _checked(value, dict, f"{where}: {key} must be a table, written [{key}]")
            found[key] = _roles(table, where) if key == "roles" else _call_fields(table, where)
    told = FieldMap(**found)
    _check_shape(told, where)
    return told


def _checked(value: Any, kind: type, problem: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(problem)
    return value


def _one_of(value: Any, choices: tuple[str, ...], where: str) -> str:
    if value not in choices:
        raise ConfigError(f"{where} is {value!r}; {did_you_mean(str(value), choices)}")
    return str(value)


def _kept(value: Any, where: str) -> tuple[tuple[str, Steps], ...]:
    if isinstance(value, list):
        value = {path: path for path in value if isinstance(path, str)} if all(isinstance(p, str) for p in value) else 0
    table = _checked(value, dict, f"{where}: metadata is a list of paths, or a table of names and paths")
    return tuple((name, parse_path(path, f"{where}: metadata")) for name, path in table.items())


def _roles(table: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, _one_of(role, _TARGETS, f"{where}: the role of {name!r}")) for name, role in table.items())


def _call_fields(table: Mapping[str, Any], where: str) -> tuple[tuple[str, Steps], ...]:
    for key in table:
        _one_of(key, ("id", "name", "arguments"), f"{where}: a field of [tool_call]")
    return tuple((key, parse_path(path, f"{where}: tool_call.{key}")) for key, path in table.items())


def _check_shape(told: FieldMap, where: str) -> None:
    shapes = [name for name in ("messages", "prompt") if getattr(told, name) is not None]
    if told.session is not None and not shapes:
        shapes.append("session")
    if len(shapes) != 1:
        raise ConfigError(f"{where}: say where the conversation is, by one of `messages`, `session` (a message a line) "
                          f"and `prompt` with `reply`; {' and '.join(shapes) or 'none'} is there")  # fmt: skip
    if (told.prompt is None) != (told.reply is None):
        raise ConfigError(f"{where}: `prompt` and `reply` belong together")
    if told.next is not None and told.prompt is None:
        raise ConfigError(f"{where}: `next` is for `prompt` and `reply`; messages say themselves what comes next")
    if told.order is not None and shapes != ["session"]:
        raise ConfigError(f"{where}: `order` is for a log with a message a line, which `session` names")
    if told.link and told.prompt is None:
        raise ConfigError(f"{where}: `link` is for `prompt` and `reply`")
    if told.session is not None and shapes != ["session"] and not told.link:
        raise ConfigError(f"{where}: with {shapes[0]} a line is a session; `session` needs link = true")


def parse_path(text: Any, where: str) -> Steps:
    """'a."b.c"[0]' -> ("a", "b.c", 0). Raises ConfigError."""
    steps: list[str | int] = []
    at = 0
    while isinstance(text, str) and at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            break
        steps.append(int(match[3]) if match[3] is not None else match[1] or match[2])
        at = match.end()
    if not isinstance(text, str) or not steps or at < len(text):
        raise ConfigError(f'{where} is {text!r}; a path is written like meta.model, choices[0].text or "a.b".c')
    return tuple(steps)


def value_at(value: Any, steps: Steps | None) -> Any:
    """What a path leads to; None where it leads nowhere."""
    for step in steps or ():
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
    return value if steps else None
