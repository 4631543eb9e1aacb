"""Flags in the messages of a stage, as a command takes them that has few flags of its own (`opdkit run`)."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from opdkit.errors import OpdkitError

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_written: ContextVar[Mapping[str, str]] = ContextVar("written", default=_NOTHING)


@contextmanager
def written_as(flags: Mapping[str, str]) -> Iterator[None]:
    """In the block, warnings and errors that name one of these flags say how `opdkit run` is told the same."""
    before = _written.set(flags)
    try:
        yield
    except OpdkitError as error:
        error.args = (for_run(str(error)),)
        raise
    finally:
        _written.reset(before)


def for_run(message: str) -> str:
    """The message; where it names flags that `opdkit run` has not, with what to write there."""
    flags = _written.get()
    written = dict.fromkeys(flags[flag] for flag in _FLAG.findall(message) if flag in flags)
    return f"{message} (with `opdkit run`: {' '.join(written)})" if written else message
