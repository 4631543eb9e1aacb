"""What worker processes do in tests: in a module that they can import."""

import os
import signal
import time
from pathlib import Path

from opdkit.errors import ConfigError


def prepare() -> None:
    """Import nothing."""


def touch(folder: Path, part: int) -> None:
    """Write a file per part with the process in it."""
    (folder / str(part)).write_text(str(os.getpid()))


def meet(folder: Path, part: int) -> None:
    """Write a file per part with the process in it, and wait until another process has written one."""
    touch(folder, part)
    while len({path.read_text() for path in folder.iterdir()} - {""}) < 2:
        time.sleep(0.01)


def fail(folder: Path, how: str, part: int) -> None:
    """Fail at part 2."""
    if part != 2:
        touch(folder, part)
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "said":
        raise ConfigError("part 2 is wrong")
    elif how == "not to be pickled":
        raise type("Odd", (Exception,), {})("part 2 is odd")


def dawdle(folder: Path, part: int) -> None:
    """Hold a half-written file for a minute."""
    half = folder / f"{part}.{os.getpid()}"
    half.touch()
    try:
        time.sleep(60)
    finally:
        half.unlink()


def read_chat(record: dict) -> dict:
    """Read a record with the chat in a field of its own."""
    return record["chat"] | {"stars": record["stars"]}
