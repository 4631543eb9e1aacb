"""Declares an option once, as a field of a frozen dataclass. Flag, TOML key, docs and manifest derive from it.

    votes: int = option(5, "votes per question", "local and endpoint judges", unit="votes", low=1, panel=HOW)

`low`, `high` and `choices` are checked when the object is made, so a configuration that exists is valid. `check_inputs`
compares it with the disk and the environment before the command begins.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from opdkit.config.renamed import RENAMED
from opdkit.config.shard import check_shard
from opdkit.errors import ConfigError

C = TypeVar("C", bound="CommandConfig")
JSON = dict[str, Any]


# Panels of `-h` that several commands have.
WHAT, HOW, SPEED, MEMORY, WHERE = "What", "How", "How fast", "Memory", "Where"


@dataclass(frozen=True)
class Meta:
    """Declaration of one field, besides its name, type and default."""

    help: str  # a few words, shown by -h
    more: str = ""  # details, shown in docs/commands.md and by `opdkit init`
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    positional: bool = False
    required: bool = False
    plan: bool = True  # False: the option changes how fast or where a stage runs, never its rows
    panel: str = "Options"  # the heading under which -h shows it
    expert: bool = False  # -h leaves it out
    check: Callable[[Any, str], object] | None = None  # raises ConfigError for a wrong (value, flag)


def option(
    default: Any,
    help: str,  # noqa: A002 - the word that every command-line library uses
    more: str = "",
    **details: Any,  # of Meta
) -> Any:
    """Declare a field that is a flag. `default=...` (Ellipsis) makes it required."""
    meta = Meta(help, more, required=default is ..., **details)
    return dataclasses.field(default=None if default is ... else default, metadata={"opdkit": meta})


expert = partial(option, expert=True)  # a flag that -h leaves out


def argument(help: str, more: str = "", *, default: Any = ..., plan: bool = True) -> Any:  # noqa: A002
    """Declare a positional field, required unless it has a default."""
    meta = Meta(help, more, positional=True, required=default is ..., plan=plan, panel="Arguments")
    return dataclasses.field(default=dataclasses.MISSING if default is ... else default, metadata={"opdkit": meta})


@dataclass(frozen=True)
class Field:
    """Option as the command line, the TOML reader and the docs see it."""

    name: str
    flag: str
    type: Any  # without the `| None`
    is_list: bool
    type_name: str  # the word that help and errors show
    default: Any
    description: str  # the words of -h, and the details
    meta: Meta


def fields_of(cls: type["CommandConfig"]) -> list[Field]:
    """Return the options of a configuration class, positional ones first."""
    hints = get_type_hints(cls)
    words = {int: "integer", float: "number", bool: "true/false", Path: "path", str: "text"}
    options = []
    for field in dataclasses.fields(cls):
        kind, meta = hints[field.name], field.metadata["opdkit"]
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(arg for arg in get_args(kind) if arg is not type(None))
        is_list = get_origin(kind) is tuple
        default = None if field.default is dataclasses.MISSING else field.default
        flag = "--" + field.name.replace("_", "-")
        type_name = "list of text" if is_list else words[kind]
        description = f"{meta.help}; {meta.more}" if meta.more else meta.help
        options.append(Field(field.name, flag, kind, is_list, type_name, default, description, meta))
    return sorted(options, key=lambda f: not f.meta.positional)


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """Configuration of one command."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            check(field, getattr(self, field.name))

    def check_inputs(self) -> None:
        """Raise ConfigError for a path, package or environment that does not fit. Called before the command begins."""
        for field in fields_of(type(self)):
            if field.name == "run" and field.meta.positional:
                check_not_file("RUN", getattr(self, field.name))

    def effective(self) -> JSON:
        """Return every field but the run directory itself, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields_of(type(self)) if field.name != "run"}
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


@dataclass(frozen=True, kw_only=True)
class StageConfig(CommandConfig):
    """Configuration of a stage: the fields that every stage has."""

    run: Path = argument("the run directory", plan=False)
    shard: str = option(
        "auto",
        "which parts to do, as I/N",
        "the parts k with k mod N = I; auto takes the Slurm array's task and the launcher's rank",
        plan=False,
        panel=WHERE,
        check=check_shard,
    )
    overwrite: bool = option(False, "discard what was written with other options", plan=False, panel=WHERE)

    def plan(self) -> JSON:
        """Return the fields that decide the rows, as JSON values."""
        decisive = {field.name for field in fields_of(type(self)) if field.meta.plan}
        return {name: value for name, value in self.effective().items() if name in decisive}


def check(field: Field, value: Any) -> None:
    """Raise ConfigError unless `value` fits `field`. The message names option, value, allowed range and remedy."""
    meta = field.meta
    name = field.name.upper() if meta.positional else field.flag
    if value is None:
        if meta.required:
            raise ConfigError(f"{name} is missing: {meta.help}")
        return
    if meta.choices and value not in meta.choices:
        raise ConfigError(f"{name} is {value!r}; {did_you_mean(str(value), meta.choices)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} is {value}; it must be a finite number")
    if meta.low is not None and value < meta.low:
        raise ConfigError(f"{name} is {value}; it must be at least {meta.low:g}")
    if meta.high is not None and value > meta.high:
        raise ConfigError(f"{name} is {value}; it must be at most {meta.high:g}")
    if meta.check is not None:
        meta.check(value, name)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return "did you mean 'opd'? it must be one of: opd, binary, combine" for an unknown word."""
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"it must be one of: {', '.join(known)}"


def find_option(command: str, name: str, known: Sequence[Field], where: str) -> Field:
    """Return the option of a command with this name, in hyphens or underscores.

    Raises ConfigError that begins with `where` and names the closest option, or the new name of one that was renamed.
    """
    key = name.replace("-", "_")
    for field in known:
        if field.name == key:
            return field
    if new := RENAMED.get(command, {}).get(key.rstrip("_")):
        raise ConfigError(f"{where} has no option {name!r} any more; it is now {new!r}")
    raise ConfigError(f"{where} has no option {name!r}; {did_you_mean(key, [field.name for field in known])}")


def build(cls: type[C], flags: Mapping[str, Any], file: Path | None, section: str, sections: Sequence[str]) -> C:
    """Return a configuration from flags (None = not given), over the table `section` of a TOML file, over the defaults.

    `sections` are all tables that the file may have. Raises ConfigError.
    """
    fields = fields_of(cls)
    options = [field for field in fields if field.name != "run"]
    document = {} if file is None else read_toml(file, "--config")
    for name in document:
        if name not in sections:
            raise ConfigError(f"--config {file}: unknown table [{name}]; {did_you_mean(name, sections)}")
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"--config {file}: {section} must be a table, written [{section}]")
    values: JSON = {}
    for key, value in table.items():
        field = find_option(section, key, options, f"--config {file}: [{section}]")
        values[field.name] = convert(field, value, f"--config {file}: [{section}] {key}")
    values |= {name: value for name, value in flags.items() if value is not None and value != ()}
    for field in fields:
        if field.meta.positional and field.meta.required and field.name not in values:
            check(field, None)
    return cls(**values)


def read_toml(path: Path, flag: str) -> JSON:
    """Return the document in a TOML file. Raises ConfigError, naming `flag` and the path."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path} is not TOML: {error}") from error


def convert(field: Field, value: Any, where: str) -> Any:
    """Return `value` (from TOML, or text from `--set`) as the field's type. Raises ConfigError with `where`."""
    kind = field.type
    if field.is_list and isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if field.is_list and isinstance(value, str):
        return (value,)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (Path, str) and isinstance(value, str):
        return kind(value)
    if kind in (int, float, bool) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where} = {value!r}: a value of type {field.type_name} is needed")


def check_not_file(name: str, folder: Path) -> None:
    """Raise ConfigError when `folder`, such as a run directory, or one of its parents is a file."""
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"{name} is {str(folder)!r}, and {there} is a file; name a folder, existing or new")


def parse_pairs(pairs: Sequence[str], flag: str) -> JSON:
    """Return {"a": 1, "b": "text"} for ["a=1", "b=text"]. Values are JSON where they parse as JSON, text otherwise."""
    parsed: JSON = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {pair!r}: write it as NAME=VALUE")
        try:
            parsed[key] = json.loads(text)
        except json.JSONDecodeError:
            parsed[key] = text
    return parsed
