"""One declaration per option: a field of a frozen dataclass, from which flag, TOML key, docs and manifest derive.

    votes: int = option(5, "votes per question", unit="votes", low=1)

`low`, `high` and `choices` are checked when the object is made, so a configuration that exists is a valid one.
"""

import dataclasses
import difflib
import json
import math
import os
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from opdkit.errors import ConfigError, OpdkitError

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
    def key(self) -> str:
        """The option's name outside Python, where `from_` may be called `from`."""
        return self.name.rstrip("_")

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

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

    def effective(self) -> JSON:
        """Every field but the run directory itself, as JSON values."""
        return {f.key: _jsonable(getattr(self, f.name)) for f in fields_of(type(self)) if f.name != "run"}


@dataclass(frozen=True, kw_only=True)
class StageConfig(CommandConfig):
    """The fields that every stage has."""

    run: Path = argument("the run directory", plan=False)
    limit: int | None = option(None, "only the first N sessions, for a cheap trial", unit="sessions", low=1)
    shard: str = option("auto", "do the parts k with k mod N = I, as I/N; auto takes the Slurm array's or the "
                        "launcher's rank and size", plan=False)  # fmt: skip
    overwrite: bool = option(False, "throw away what this stage has written under another plan", plan=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_shard(self.shard)

    def refuse_missing(self) -> None:
        """Raise ConfigError when a file or package is missing that the options need. Asked before a model is loaded."""

    def plan(self) -> JSON:
        """The fields that decide the rows, as JSON values."""
        return {f.key: _jsonable(getattr(self, f.name)) for f in fields_of(type(self)) if f.meta.plan}


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
    if name == "RUN":
        refuse_file(name, Path(value))
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
    known = {f.key: f for f in fields_of(cls)}
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
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} is not TOML: {error}") from error
    for name in document:
        if name not in sections:
            raise ConfigError(f"--config {file}: unknown table [{name}]; {did_you_mean(name, sections)}")
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"--config {file}: {section} must be a table, written [{section}]")
    return table


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


def refuse_file(name: str, run: Path) -> None:
    """Raise ConfigError when a run directory, or what it would lie in, is a file."""
    there = next((path for path in (run, *run.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"{name} is {str(run)!r}, and {there} is a file; name a folder: that of a run, or a new one")


def refuse_missing_folder(model: str) -> None:
    """Raise OpdkitError for a model that is no folder and does not look like a name on the hub either."""
    if not Path(model).is_dir() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise OpdkitError(f"{model} is not there; a model is a folder in Hugging Face format or a name on the hub")


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


def parse_shard(text: str) -> tuple[int, int]:
    """ "I/N" -> (I, N); "auto" reads the Slurm array's task and the launcher's rank; without either (0, 1)."""
    if text == "auto":
        return _ambient_shard()
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ConfigError(f"--shard is {text!r}; write it as I/N with 0 <= I < N, for example 0/4")
    return int(index), int(count)


def _ambient_shard() -> tuple[int, int]:
    """The task of the Slurm array, and within it the launcher's rank: 4 tasks of 8 processes are 32 shards."""
    (task, tasks), (rank, size) = _array_task(), _launcher_rank()
    return task * size + rank, tasks * size


def array_shard() -> str:
    """The shard of the Slurm array's task as I/N, whatever a launcher has started within it."""
    task, tasks = _array_task()
    return f"{task}/{tasks}"


def _array_task() -> tuple[int, int]:
    env = os.environ
    if not ("SLURM_ARRAY_TASK_ID" in env and "SLURM_ARRAY_TASK_COUNT" in env):
        return 0, 1
    index, count = _env_int("SLURM_ARRAY_TASK_ID"), _env_int("SLURM_ARRAY_TASK_COUNT")
    # An array may start anywhere and have steps: --array=10-40:10. One with odd gaps (1,3,7) cannot be numbered.
    low, high = _env_int("SLURM_ARRAY_TASK_MIN", 0), _env_int("SLURM_ARRAY_TASK_MAX", index)
    step = max(1, (high - low) // max(1, count - 1))
    index, gap = divmod(index - low, step)
    if gap or not 0 <= index < count:
        raise ConfigError(
            f"SLURM_ARRAY_TASK_ID={env['SLURM_ARRAY_TASK_ID']} is no regular step of the array of {count} tasks "
            f"from {low} to {high}; pass --shard I/N"
        )
    return index, count


def _launcher_rank() -> tuple[int, int]:
    if not ("RANK" in os.environ and "WORLD_SIZE" in os.environ):
        return 0, 1
    index, count = _env_int("RANK"), _env_int("WORLD_SIZE")
    if not 0 <= index < count:
        raise ConfigError(f"RANK={index} does not fit WORLD_SIZE={count}; pass --shard I/N")
    return index, count


def _env_int(name: str, default: int = 0) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}, not a number; pass --shard I/N") from None
