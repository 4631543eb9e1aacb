"""What the processes of test_workers.py do: in a module that they can import."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from opdkit.errors import ConfigError


@contextlib.contextmanager
def _touching(folder: Path) -> Iterator:
    """A part is a file with the process in it."""
    yield lambda part: (folder / str(part)).write_text(str(os.getpid()))


@contextlib.contextmanager
def _failing(folder: Path, how: str) -> Iterator:
    def compute(part: int) -> None:
        if part != 2:
            (folder / str(part)).touch()
        elif how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "said":
            raise ConfigError("part 2 is wrong")
        elif how == "not to be pickled":
            raise type("Odd", (Exception,), {})("part 2 is odd")

    yield compute


@contextlib.contextmanager
def _slow(folder: Path) -> Iterator:
    def compute(part: int) -> None:
        half = folder / f"{part}.{os.getpid()}"
        half.touch()
        try:
            time.sleep(60)
        finally:
            half.unlink()

    yield compute


def touching():
    return _touching


def failing(how: str):
    return partial(_failing, how=how)


def slow():
    return _slow
