"""What a person sees while a stage runs: messages and progress, all on stderr, so that stdout stays data."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
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


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return "1 turn", "2 turns", "1,024 replies". `plural` is given where it is neither -s nor -ies."""
    if number == 1:
        return f"1 {noun}"
    ending_in_y = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number:,} {plural or (noun[:-1] + 'ies' if ending_in_y else noun + 's')}"


def verb(number: int, singular: str, plural: str) -> str:
    """Return the form of a verb that agrees with `number`."""
    return singular if number == 1 else plural


def say(message: str) -> None:
    """One message on stderr. Plain text: markup in it is shown, not interpreted."""
    if is_main_process():
        stderr.print(escape(printable(message)), soft_wrap=True)


def warn(message: str) -> None:
    """Print one warning on stderr."""
    if is_main_process():
        stderr.print(f"[yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)


_shown: list["Progress"] = []  # the bars on the screen; a bar within a bar is one more line of it
_EVERY = 60.0  # seconds between two lines of progress where there is no screen
_spoken = [-_EVERY]


def progress(items: Iterable[T], what: str, total: int, unit: str = "") -> Iterator[T]:
    """Yield `items` behind a progress bar; see `tally`."""
    with tally(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)


@contextlib.contextmanager
def tally(what: str, total: int, unit: str = "") -> Iterator[Callable[[int], None]]:
    """A progress bar that the block moves by so many `unit` of `total`. A pipe or a batch job gets a line a minute."""
    if not (stderr.is_terminal and is_main_process()):
        yield _by_the_minute(what, total, unit)
        return
    with contextlib.ExitStack() as stack:
        bar = _shown[0] if _shown else stack.enter_context(_bars())
        line = bar.add_task(what, total=total, unit=unit)
        stack.callback(bar.remove_task, line)
        yield lambda count: bar.advance(line, count)


def _by_the_minute(what: str, total: int, unit: str) -> Callable[[int], None]:
    done, began = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done
        done += count
        now = time.monotonic()
        if now - max(began, _spoken[0]) >= _EVERY and done < total:
            _spoken[0] = now
            say(f"{what}: {done:,} of {total:,} {unit}".rstrip())

    return advance


@contextlib.contextmanager
def _bars() -> Iterator["Progress"]:
    # imported here: --help shows no bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as bars:
        _shown.append(bars)
        try:
            yield bars
        finally:
            _shown.remove(bars)
