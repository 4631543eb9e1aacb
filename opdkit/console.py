"""What a person sees while a stage runs: messages and progress, all on stderr, so that stdout stays data."""

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

T = TypeVar("T")

stderr = Console(stderr=True, highlight=False)
stdout = Console(highlight=False)


def is_main_process() -> bool:
    """True in the one process of a launcher's group that should speak for all."""
    return os.environ.get("RANK", "0") == "0"


def printable(text: str) -> str:
    """`text` without control characters: a log must not be able to drive the reader's terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def say(message: str) -> None:
    """One message on stderr. Plain text: markup in it is shown, not interpreted."""
    if is_main_process():
        stderr.print(escape(printable(message)), soft_wrap=True)


def warn(message: str) -> None:
    """One warning on stderr."""
    if is_main_process():
        stderr.print(f"[yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)


def progress(items: Iterable[T], what: str, total: int, unit: str = "") -> Iterator[T]:
    """Yield `items` behind a progress bar, which a pipe or a batch job does not see."""
    # imported here: --help shows no bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    quiet = not (stderr.is_terminal and is_main_process())
    with Progress(*columns, console=stderr, transient=True, disable=quiet) as bar:
        yield from bar.track(items, total=total, description=what)
