"""One declaration per option: a field of a frozen dataclass, from which flag, TOML key, docs and manifest derive.

    votes: int = option(5, "votes per question", unit="votes", low=1)

`low`, `high` and `choices` are checked when the object is made, so a configuration that exists is a valid one.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from opdkit.config.shard import check_shard
from opdkit.errors import ConfigError

C = TypeVar("C", bound="CommandConfig")
JSON = dict[str, Any]


@dataclass(frozen=True)
class Meta:
    """What is known about one field beside its name, type and default."""

    help: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    positional: bool = False
    required: bool = False
    # False: it changes how fast or where a stage runs, never its rows, so it is no part of the plan.
    plan: bool = True


def option(
    default: Any,
    help: str,  # noqa: A002 - the word that every command-line library uses
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    plan: bool = True,
) -> Any:
    """A field that is a flag. `default=...` (Ellipsis) makes it required."""
    meta = Meta(help, unit, low, high, tuple(choices), required=default is ..., plan=plan)
    return dataclasses.field(default=None if default is ... else default, metadata={"opdkit": meta})


def argument(help: str, default: Any = ..., *, plan: bool = True) -> Any:  # noqa: A002
    """A positional field, required unless it has a default."""
    meta = Meta(help, positional=True, required=default is ..., plan=plan)
    return dataclasses.field(default=dataclasses.MISSING if default is ... else default, metadata={"opdkit": meta})


@dataclass(frozen=True)
class Field:
    """One option as the command line, the TOML reader and the docs see it."""

    name: str
    type: Any  # without the `| None`
    optional: bool
    default: Any
    meta: Meta

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) is tuple


def fields_of(cls: type["CommandConfig"]) -> list[Field]:
    """The options of a configuration class, positional ones first."""
    hints = get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        kind, optional = _strip_optional(hints[field.name])
        default = None if field.default is dataclasses.MISSING else field.default
        found.append(Field(field.name, kind, optional, default, field.metadata["opdkit"]))
    return sorted(found, key=lambda f: not f.meta.positional)


def _strip_optional(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in get_args(hint) if a is not type(None)]
        return rest[0], True
    return hint, False


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """The configuration of one command: what is made is valid."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            check(field, getattr(self, field.name))

    def check_inputs(self) -> None:
        """Raise ConfigError for a path, package or environment that does not fit. Called before the command begins."""
        for field in fields_of(type(self)):
            if field.name == "run" and field.meta.positional:
                check_not_file("RUN", getattr(self, field.name))

    def effective(self) -> JSON:
        """Every field but the run directory itself, as JSON values."""
        return {f.name: _jsonable(getattr(self, f.name)) for f in fields_of(type(self)) if f.name != "run"}


@dataclass(frozen=True, kw_only=True)
class StageConfig(CommandConfig):
    """The fields that every stage has."""

    run: Path = argument("the run directory", plan=False)
    shard: str = option("auto", "do the parts k with k mod N = I, as I/N; auto takes the Slurm array's or the "
                        "launcher's rank and size", plan=False)  # fmt: skip
    overwrite: bool = option(False, "throw away what this stage has written under another plan", plan=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shard(self.shard)

    def plan(self) -> JSON:
        """The fields that decide the rows, as JSON values."""
        return {f.name: _jsonable(getattr(self, f.name)) for f in fields_of(type(self)) if f.meta.plan}


def _jsonable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def check(field: Field, value: Any) -> None:
    """Raise ConfigError, naming option, value, what is allowed and the remedy, unless `value` fits `field`."""
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


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """ "did you mean 'opd'? (opd, binary, combine)" for an unknown word."""
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"it must be one of: {', '.join(known)}"


def build(cls: type[C], flags: Mapping[str, Any], file: Path | None, section: str, sections: Sequence[str]) -> C:
    """A configuration from flags (None = not given), over the table `section` of a TOML file, over the defaults.

    `sections` are all tables that the file may have. Raises ConfigError.
    """
    known = {f.name: f for f in fields_of(cls)}
    values: JSON = {}
    for written, value in _table(file, section, sections).items():
        field = _named(known, written, section, file)
        values[field.name] = convert(field, value, f"--config {file}: [{section}] {written}")
    values |= {name: value for name, value in flags.items() if value is not None and value != ()}
    missing = [f for f in known.values() if f.meta.positional and f.meta.required and f.name not in values]
    for field in missing:
        check(field, None)
    return cls(**values)


def _table(file: Path | None, section: str, sections: Sequence[str]) -> JSON:
    if file is None:
        return {}
    document = read_toml(file, "--config")
    for name in document:
        if name not in sections:
            raise ConfigError(f"--config {file}: unknown table [{name}]; {did_you_mean(name, sections)}")
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"--config {file}: {section} must be a table, written [{section}]")
    return table


def read_toml(path: Path, flag: str) -> JSON:
    """Return the document in a TOML file. Raises ConfigError, naming `flag` and the path."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path} is not TOML: {error}") from error


def _named(known: Mapping[str, Field], written: str, section: str, file: Path | None) -> Field:
    """The option that a key of a TOML table, with hyphens or underscores, stands for."""
    key = written.replace("-", "_")
    if key not in known or key == "run":
        options = [k for k in known if k != "run"]
        raise ConfigError(f"--config {file}: [{section}] has no option {written!r}; {did_you_mean(key, options)}")
    return known[key]


def convert(field: Field, value: Any, where: str) -> Any:
    """`value` (from TOML, or text from `--set`) as the field's type; ConfigError with `where` if it is not one."""
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
    raise ConfigError(f"{where} = {value!r}: a value of type {type_name(field)} is needed")


def type_name(field: Field) -> str:
    """The word for the field's type that help and errors show."""
    if field.is_list:
        return "list of text"
    return {int: "integer", float: "number", bool: "true/false", Path: "path", str: "text"}[field.type]


def check_not_file(name: str, run: Path) -> None:
    """Raise ConfigError when a run directory, or what it would lie in, is a file."""
    there = next((path for path in (run, *run.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"{name} is {str(run)!r}, and {there} is a file; name a folder: that of a run, or a new one")


def parse_pairs(pairs: Sequence[str], flag: str) -> JSON:
    """["a=1", "b=text"] -> {"a": 1, "b": "text"}: values are JSON where they parse as JSON, text otherwise."""
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
