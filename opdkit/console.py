"""What a person sees while a stage runs: messages and progress, all on stderr, so that stdout stays data."""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

stderr = Console(stderr=True, highlight=False)
stdout = Console(highlight=False)


def is_main_process() -> bool:
    """True in the one process of a launcher's group that should speak for all."""
    return os.environ.get("RANK", "0") == "0"


def printable(text: str) -> str:
    """`text` without control characters: a log must not be able to drive the reader's terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def with_sign(value: float, digits: int) -> str:
    """ "+0.12", "-0.12", and no sign before what rounds to nothing."""
    text = f"{value:+z.{digits}f}"
    return text if text.strip("+0.") else text[1:]


def say(message: str) -> None:
    """One message on stderr. Plain text: markup in it is shown, not interpreted."""
    if is_main_process():
        stderr.print(escape(printable(message)), soft_wrap=True)


def warn(message: str) -> None:
    """One warning on stderr."""
    if is_main_process():
        stderr.print(f"[yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)


_shown: list["Progress"] = []  # the bars on the screen; a bar within a bar is one more line of it


def progress(items: Iterable[T], what: str, total: int, unit: str = "") -> Iterator[T]:
    """Yield `items` behind a progress bar, which a pipe or a batch job does not see."""
    if not (stderr.is_terminal and is_main_process()):
        yield from items
        return
    if _shown:
        yield from _tracked(_shown[0], items, what, total, unit)
        return
    # imported here: --help shows no bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as bar:
        _shown.append(bar)
        try:
            yield from _tracked(bar, items, what, total, unit)
        finally:
            _shown.remove(bar)


def _tracked(bar: "Progress", items: Iterable[T], what: str, total: int, unit: str) -> Iterator[T]:
    line = bar.add_task(what, total=total, unit=unit)
    try:
        for item in items:
            yield item
            bar.advance(line)
    finally:
        bar.remove_task(line)
