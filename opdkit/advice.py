"""Flags in the messages of a stage, as `opdkit run` takes them, which has few flags of its own."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opdkit.config import Field, fields_of
from opdkit.errors import OpdkitError

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_stage: ContextVar[str | None] = ContextVar("stage", default=None)  # the one that `opdkit run` is at


@contextmanager
def within_run(stage: str) -> Iterator[None]:
    """Where a stage is a step of `opdkit run`: its warnings and errors say how that is told what they advise."""
    before = _stage.set(stage)
    try:
        yield
    except OpdkitError as error:
        error.args = (for_run(str(error)),)
        raise
    finally:
        _stage.reset(before)


def for_run(message: str) -> str:
    """The message; where a step of `opdkit run` names flags that are not those of `run`, with what to write there."""
    stage = _stage.get()
    if stage is None:
        return message
    written = dict.fromkeys(filter(None, (_written(flag, stage) for flag in _FLAG.findall(message))))
    return f"{message} (with `opdkit run`: {' '.join(written)})" if written else message


def _written(flag: str, stage: str) -> str | None:
    """`--set STAGE.OPTION=VALUE` for a flag of `stage`, or else of another one; None for a flag of `run` itself."""
    from opdkit.stages import ORDER, STAGES, RunConfig  # imported here: they import what says their messages

    if any(field.flag == flag for field in fields_of(RunConfig)):
        return None
    for name in (stage, *ORDER):
        for field in fields_of(STAGES[name][0]):
            if field.flag == flag and not field.meta.positional:
                return f"--set {name}.{field.name}={_value(field)}"
    return None


def _value(field: Field) -> str:
    return {bool: "true", int: "N", float: "X"}.get(field.type, "VALUE")
