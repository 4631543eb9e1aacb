"""Declare each option once, as a field of a frozen dataclass. Flag, TOML key, docs and manifest derive from it.

    votes: int = HOW.option(5, "per question and turn; rules always give one", unit="votes", low=1)

HOW is the panel (heading) of `-h` that lists the option. `low`, `high` and `choices` are checked when the object is
created, so a configuration that exists is valid. `check_inputs` checks it against the disk and the environment before
the command begins.
"""

import dataclasses
import difflib
import hashlib
import inspect
import json
import math
import textwrap
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from opdkit.config.renamed import RENAMED
from opdkit.config.shard import check_shard
from opdkit.errors import ConfigError

JSON = dict[str, Any]


class PythonFunction(str):
    """Name of a function in a plan, "python:DIGEST:MODULE.NAME", and the function itself as `call`.

    The digest covers the function's source, not what it calls or reads, so a changed function makes another plan.
    Raises ConfigError for a callable without source: a built-in, a `functools.partial`, an object.
    """

    call: Callable[..., Any]

    def __new__(cls, function: Callable[..., Any]) -> "PythonFunction":
        try:
            digest = hashlib.sha256(textwrap.dedent(inspect.getsource(function)).encode()).hexdigest()[:16]
        except (OSError, TypeError) as error:
            raise ConfigError(f"{function!r} has no source that a plan could name; write a function with `def`, in a "
                              "file or a notebook") from error  # fmt: skip
        name = super().__new__(cls, f"python:{digest}:{function.__module__}.{function.__qualname__}")
        name.call = function
        return name

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return the argument that `pickle` passes to `__new__`, so that worker processes import the function."""
        return (self.call,)


class Panel(str):
    """Heading in `-h`. Its methods declare the options listed under it."""

    def option(self, default: Any, text: str, **details: Any) -> Any:
        """Declare a flag. `details` are fields of Field. `default=...` (Ellipsis) makes it required.

        `-h` shows the text up to the first semicolon; docs/commands.md and `opdkit init` show all of it.
        """
        metadata = {"text": text, "panel": self, "required": default is ..., **details}
        return dataclasses.field(default=None if default is ... else default, metadata=metadata)

    expert = partialmethod(option, expert=True)  # a flag that `-h` leaves out


OPTIONS = Panel("Options")
# Panels that several commands have. -h shows a command's own panels first.
WHAT, HOW, SPEED, MEMORY, WHERE = map(Panel, ("What", "How", "How fast", "Memory", "Where"))
option = OPTIONS.option
argument = partial(Panel("Arguments").option, positional=True)  # declares a positional argument


@dataclass(frozen=True, kw_only=True)
class Field:
    """Option as the command line, the TOML reader and the docs see it."""

    name: str
    flag: str  # as in messages: --votes, or LOGS for a positional argument
    type: Any  # without `| None`; for a list, the type of its elements
    is_list: bool
    type_name: str  # as in help and errors
    kind: str  # the choices, or type_name and unit
    default: Any
    text: str
    help: str  # the text up to the first semicolon
    panel: str
    required: bool
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    function: str = ""  # the Python interface also takes a function, of this type in options.pyi
    positional: bool = False
    needs: str = ""  # name of another option, without which this one has no meaning
    plan: bool = True  # False: the option only changes how fast or where a stage runs, not its rows
    expert: bool = False  # -h leaves it out
    check: Callable[[Any, str], object] | None = None  # raises ConfigError for a wrong (value, flag)


def fields_of(cls: type["CommandConfig"]) -> list[Field]:
    """Return the options of a configuration class, positional ones first."""
    hints, options = get_type_hints(cls), []
    words = {int: "integer", float: "number", bool: "true/false", Path: "path", str: "text"}
    for field in dataclasses.fields(cls):
        meta, type_ = field.metadata, hints[field.name]
        if get_origin(type_) in (Union, types.UnionType):
            type_ = next(arg for arg in get_args(type_) if arg is not type(None))
        is_list = get_origin(type_) is tuple
        type_ = str if is_list else type_
        # `in_`: a field whose option is a Python keyword has a trailing underscore.
        flag = field.name.upper() if "positional" in meta else "--" + field.name.rstrip("_").replace("_", "-")
        name = "list of text" if is_list else words[type_]
        kind = " | ".join(meta.get("choices", ())) or name + (f", {meta['unit']}" if "unit" in meta else "")
        options.append(Field(name=field.name, flag=flag, type=type_, is_list=is_list, type_name=name, kind=kind,
                             default=field.default, help=meta["text"].partition("; ")[0], **meta))  # fmt: skip
    return sorted(options, key=lambda f: not f.positional)


@dataclass(frozen=True, kw_only=True)
class CommandConfig:
    """Configuration of one command. The docstring of a command's subclass is its help."""

    def __post_init__(self) -> None:
        """Raise ConfigError, with the option, its value and what is allowed, unless every value is valid."""
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            if value in (None, ()):
                if field.required:
                    raise ConfigError(f"{field.flag} is missing: {field.help}")
                continue
            if field.choices and value not in field.choices and not isinstance(value, PythonFunction):
                raise ConfigError(f"{field.flag} is {value!r}; {did_you_mean(str(value), field.choices)}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{field.flag} is {value}; it must be a finite number")
            if field.low is not None and value < field.low:
                raise ConfigError(f"{field.flag} is {value}; it must be at least {field.low:g}")
            if field.high is not None and value > field.high:
                raise ConfigError(f"{field.flag} is {value}; it must be at most {field.high:g}")
            if value and field.needs and not getattr(self, field.needs):
                raise ConfigError(f"{field.flag} needs --{field.needs.replace('_', '-')}")
            if field.check is not None:
                field.check(value, field.flag)

    def check_inputs(self) -> None:
        """Raise ConfigError for an unusable path, package or environment. Called before the command begins."""
        for field in fields_of(type(self)):
            if field.flag in ("RUN", "HOME"):
                check_not_file(field.flag, vars(self)[field.name])

    def effective(self) -> JSON:
        """Return every field except the run directory, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields_of(type(self)) if field.name != "run"}
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


@dataclass(frozen=True, kw_only=True)
class StageConfig(CommandConfig):
    """Options that every stage has."""

    run: Path = argument(..., "the run directory", plan=False)
    shard: str = WHERE.option(
        "auto",
        "which parts to do, as I/N; the parts k with k mod N = I; auto takes the Slurm array's task and the "
        "launcher's rank",
        plan=False,
        check=check_shard,
    )
    overwrite: bool = WHERE.option(False, "first discard what the stage has written", plan=False)

    @property
    def is_dry_run(self) -> bool:
        """True with `--dry-run`: nothing may be written."""
        return bool(vars(self).get("dry_run"))

    def plan(self) -> JSON:
        """Return the fields that decide the rows, as JSON values."""
        decisive = {field.name for field in fields_of(type(self)) if field.plan}
        return {name: value for name, value in self.effective().items() if name in decisive}


Config = TypeVar("Config", bound=CommandConfig)


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return "did you mean 'opd'? it must be one of: opd, binary, combine" for an unknown word."""
    near = difflib.get_close_matches(word, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"it must be one of: {', '.join(known)}"


def find_option(command: str, name: str, known: Sequence[Field], where: str) -> Field:
    """Return the option of a command with this name, in hyphens or underscores.

    Raises ConfigError that begins with `where` and names the closest option, or the new name of a renamed option.
    """
    key = name.replace("-", "_")
    for field in known:
        if field.name.rstrip("_") == key.rstrip("_"):
            return field
    if new := RENAMED.get(command, {}).get(key.rstrip("_")):
        raise ConfigError(f"{where} has no option {name!r} any more; it is now {new!r}")
    raise ConfigError(f"{where} has no option {name!r}; {did_you_mean(key, [field.name for field in known])}")


def convert(field: Field, value: Any, where: str) -> Any:
    """Return `value` (from TOML, Python, or text from `--set`) as the field's type. Raises ConfigError with `where`."""
    accepted: Any = {float: (int, float), Path: str}.get(field.type, field.type)
    values = value if field.is_list and isinstance(value, list | tuple) else [value]
    if not all(isinstance(v, accepted) and isinstance(v, bool) == (field.type is bool) for v in values):
        raise ConfigError(f"{where} = {value!r}: a value of type {field.type_name} is needed")
    if "" in values and not field.default:  # where there is a default, "" may mean "none", such as no key for a server
        raise ConfigError(f"{where} is empty; write something, or leave it out")
    return tuple(values) if field.is_list else field.type(value)


def from_saved(cls: type[Config], saved: Mapping[str, Any], **fixed: Any) -> Config:
    """Return the configuration whose `effective()` was saved, with the values in `fixed` instead of saved ones.

    Options that this version of opdkit does not know are left out.
    """
    known = [field for field in fields_of(cls) if saved.get(field.name) is not None]
    return cls(**{field.name: convert(field, saved[field.name], field.flag) for field in known} | fixed)


def read_text(path: Path, flag: str) -> str:
    """Return the text of the file that `flag` names. Raises ConfigError when it cannot be read, or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path} is not UTF-8 text: {error}") from error


def read_toml(path: Path, flag: str) -> JSON:
    """Return the document in a TOML file. Raises what `read_text` raises, and ConfigError if it is not TOML."""
    try:
        return tomllib.loads(read_text(path, flag))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{flag} {path} is not TOML: {error}") from error


def check_not_file(name: str, folder: Path) -> None:
    """Raise ConfigError if `folder`, such as a run directory, is in or is a file, is not UTF-8, or begins with ~."""
    if not str(folder).isascii() and any("\ud800" <= c <= "\udfff" for c in str(folder)):
        raise ConfigError(f"{name} is {str(folder)!r}, whose name is not UTF-8; name a folder whose name is")
    if str(folder).startswith("~"):
        raise ConfigError(f"{name} is {str(folder)!r}: write the folder's full name; the shell expands ~ only at the "
                          "beginning of a word")  # fmt: skip
    there = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"{name} is {str(folder)!r}, and {there} is a file; name a folder, existing or new")


def parse_pairs(pairs: Sequence[str], flag: str) -> JSON:
    """Return {"a": 1, "b": "text"} for ["a=1", "b=text"]. Values that parse as JSON are JSON, others text."""
    parsed: JSON = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} {pair!r}: write it as {'STAGE.OPTION' if flag == '--set' else 'NAME'}=VALUE")
        try:
            parsed[key] = json.loads(text)
        except (ValueError, RecursionError):  # not JSON, or too long a number or too deep a nesting for Python
            parsed[key] = text
    return parsed
