"""`--map FILE.toml`: where a log has its fields, for log formats that no reader knows.

    messages = "chat.turns"     # one conversation per line: the list of its messages
    role = "speaker"            # in each message
    content = "text"
    model = "meta.model"        # in each line
    [roles]
    customer = "user"
    agent = "assistant"

A log has one of three shapes: `messages`; `session`, if each line is one message of that session, in the order of
`order` or of the file; `prompt` and `reply`, with `next` for the next state, and `link = true` if each prompt repeats
the conversation so far. A path consists of names with dots between them (a name with a dot in quotes) and of indices
into lists: `data."llm.input"[0].text`, `choices[-1]`.
"""

import re
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from opdkit.config.fields import did_you_mean, read_toml
from opdkit.errors import ConfigError

_STEP = re.compile(r'(?:^|\.)(?:([^.\[\]"\s]+)|"([^"]+)")|\[(-?\d{1,6})\]')
_PATH = re.compile(rf"(?:{_STEP.pattern})+")
_TARGETS = ("system", "user", "assistant", "tool", "drop")

Steps = tuple[str | int, ...]


@dataclass(frozen=True)
class FieldMap:
    """Paths to the fields of a log; None for a field that the log does not have."""

    # Where the conversation is: one of the three shapes.
    messages: Steps | None = None
    session: Steps | None = None
    prompt: Steps | None = None
    reply: Steps | None = None
    next: Steps | None = None
    order: Steps | None = None
    link: bool = False
    next_role: str = "user"
    # Of each message.
    role: Steps = ("role",)
    content: Steps = ("content",)
    reasoning: Steps | None = None
    name: Steps | None = None
    tool_calls: Steps | None = ("tool_calls",)
    tool_call_id: Steps | None = ("tool_call_id",)
    finish_reason: Steps | None = None
    # Of each message; with `prompt` and `reply`, of each line.
    rating: Steps | None = None
    comment: Steps | None = None
    edited: Steps | None = None
    # Of each line.
    system: Steps | None = None
    tools: Steps | None = None
    model: Steps | None = None
    time: Steps | None = None
    language: Steps | None = None
    metadata: tuple[tuple[str, Steps], ...] | None = None  # (name, path); None: every field that is not in `used`
    roles: tuple[tuple[str, str], ...] = ()
    tool_call: tuple[tuple[str, Steps], ...] = ()  # id, name, arguments of each call, if named otherwise

    @cached_property
    def used(self) -> frozenset[str | int]:
        """Fields of a line that metadata leaves out: those of the conversation, and those stored whole in a column."""
        whole = [self.messages, self.prompt, self.reply, self.next, self.tools, self.system]
        short = [self.session, self.model, self.time, self.language]
        if self.messages is None:
            short += [self.rating, self.comment, self.edited]
        if self.messages is None and self.prompt is None:  # one message per line: its fields are the line's
            whole += [self.role, self.content, self.tool_calls]
            short += [self.order, self.reasoning, self.name, self.tool_call_id, self.finish_reason]
        return frozenset([path[0] for path in whole if path] + [p[0] for p in short if p and len(p) == 1])


def load(path: str) -> FieldMap:
    """Read the mapping in a TOML file. Raises ConfigError, naming the file and the field, if it is wrong."""
    document, where = read_toml(Path(path), "--map"), f"--map {path}"
    known = [f.name for f in fields(FieldMap)]
    values: dict[str, Any] = {}
    for key, value in document.items():
        if key not in known:
            raise ConfigError(f"{where}: there is no field {key!r}; {did_you_mean(key, known)}")
        at = f"{where}: {key}"
        if key == "link":
            if not isinstance(value, bool):
                raise ConfigError(f"{at} must be true or false")
        elif key == "next_role":
            _check_choice(value, ("user", "tool"), at)
        elif key == "metadata":
            if isinstance(value, list) and all(isinstance(inner, str) for inner in value):
                value = {inner: inner for inner in value}
            if not isinstance(value, dict):
                raise ConfigError(f"{at} is a list of paths, or a table of names and paths")
            value = tuple((name, parse_path(inner, at)) for name, inner in value.items())
        elif key not in ("roles", "tool_call"):
            value = parse_path(value, at)
        elif not isinstance(value, dict):
            raise ConfigError(f"{at} must be a table, written [{key}]")
        elif key == "roles":
            for name, role in value.items():
                _check_choice(role, _TARGETS, f"{where}: the role of {name!r}")
            value = tuple(value.items())
        else:
            for name in value:
                _check_choice(name, ("id", "name", "arguments"), f"{where}: a field of [tool_call]")
            value = tuple((name, parse_path(inner, f"{at}.{name}")) for name, inner in value.items())
        values[key] = value
    field_map = FieldMap(**values)
    _check_shape(field_map, where)
    return field_map


def _check_choice(value: Any, choices: tuple[str, ...], where: str) -> None:
    """Raise ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{where} is {value!r}; {did_you_mean(str(value), choices)}")


def _check_shape(log: FieldMap, where: str) -> None:
    """Raise ConfigError unless the fields in the mapping make exactly one of the three shapes of a log."""
    shapes = [name for name in ("messages", "prompt") if getattr(log, name) is not None]
    if log.session is not None and not shapes:
        shapes.append("session")
    if len(shapes) != 1:
        raise ConfigError(f"{where}: say where the conversation is, by one of `messages`, `session` (one message per "
                          f"line) and `prompt` with `reply`; {' and '.join(shapes) or 'none'} is there")  # fmt: skip
    if (log.prompt is None) != (log.reply is None):
        raise ConfigError(f"{where}: `prompt` and `reply` belong together")
    if log.next is not None and log.prompt is None:
        raise ConfigError(f"{where}: `next` is for `prompt` and `reply`; in a list of messages the next one is known")
    if log.order is not None and shapes != ["session"]:
        raise ConfigError(f"{where}: `order` is for a log with one message per line, which `session` names")
    if log.link and log.prompt is None:
        raise ConfigError(f"{where}: `link` is for `prompt` and `reply`")
    if log.session is not None and shapes != ["session"] and not log.link:
        raise ConfigError(f"{where}: with {shapes[0]} a line is a session; `session` needs link = true")


def parse_path(text: Any, where: str) -> Steps:
    """Parse a path: 'a."b.c"[0]' -> ("a", "b.c", 0). Raises ConfigError."""
    if not isinstance(text, str) or not _PATH.fullmatch(text):
        raise ConfigError(f'{where} is {text!r}; a path is written like meta.model, choices[0].text or "a.b".c')
    return tuple(int(index) if index else name or quoted for name, quoted, index in _STEP.findall(text))


def value_at(value: Any, steps: Steps | None) -> Any:
    """Return the value at a path; None if there is none."""
    for step in steps or ():
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
    return value if steps else None
