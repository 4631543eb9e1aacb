"""Output: messages and progress on stderr, so that stdout holds only data; and helpers to format and print data."""

import contextlib
import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

T = TypeVar("T")

# A word, or text to copy that must stay whole: code in backquotes, a command up to the end of its line.
_WORD = re.compile(r"`[^`]*`\S*|(?:(?<=^)|(?<=  )|(?<=: ))opdkit [a-z]+ [^`;]*|\S+")


class WordConsole(Console):
    """Console whose soft wrap breaks lines only between words; a terminal would break them anywhere.

    In a pipe, whose reader may search it, lines and rows of tables stay whole, unless COLUMNS sets a width.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, but wrap strings and Texts as described above if `soft_wrap` is set."""
        has_width = is_screen(self) or "COLUMNS" in os.environ
        if options.get("soft_wrap") and has_width:
            markup = options.get("markup")
            texts = (self.render_str(one, markup=markup) if isinstance(one, str) else one for one in objects)
            objects = tuple(wrap_words(one, self.width) if isinstance(one, Text) else one for one in texts)
        if has_width or self.is_jupyter or all(isinstance(one, str | Text) for one in objects):
            super().print(*objects, **options)
            return
        width, self.width = self.width, 10_000  # wider than any table
        try:
            super().print(*objects, **options)
        finally:
            self.width = width


def is_screen(console: Console) -> bool:
    """Return True if a console writes to a terminal. FORCE_COLOR asks for colours in a pipe, not for tables."""
    return console.is_terminal and ("FORCE_COLOR" not in os.environ or console.file.isatty())


def wrap_words(text: Text, width: int) -> Text:
    """Return a text with line breaks only between words, for `width` columns. Continued lines keep the indentation."""
    lines = []
    for line in text.split("\n", allow_blank=True):
        plain = line.plain
        indent = " " * (len(plain) - len(plain.lstrip(" ")))
        breaks, start, room = list[int](), 0, width
        for word in _WORD.finditer(plain):
            if cell_len(plain[start : word.end()].rstrip()) > room and plain[start : word.start()].strip():
                breaks.append(word.start())
                start, room = word.start(), width - len(indent)
        pieces = line.divide(breaks)
        for piece in pieces:
            piece.rstrip()
        lines.append(Text("\n" + indent).join(pieces))
    return Text("\n").join(lines)


if not os.environ.get("COLUMNS", "").lstrip("0").isdigit():  # rich would print nothing with COLUMNS=0
    os.environ.pop("COLUMNS", None)
stderr = WordConsole(stderr=True, highlight=False)
stdout = WordConsole(highlight=False)


def is_main_process() -> bool:
    """Return True in the process of a launcher's group that writes messages for all of them (rank 0)."""
    return os.environ.get("RANK", "0") == "0"


def printable(text: str) -> str:
    """Return `text` without control characters: a log must not control the reader's terminal.

    Wide, narrow and no-break spaces become plain ones. The joiners that some scripts and emoji need are kept.
    """
    return "".join(c if c.isprintable() or c in "\n\u200c\u200d" else " " if unicodedata.category(c) == "Zs"
                   else "\N{REPLACEMENT CHARACTER}" for c in text)  # fmt: skip


def escape_markdown(text: str) -> str:
    """Return a text escaped for a line of Markdown: nothing in it is markup, and no @name is notified."""
    text = re.sub(r"[\\`*\[\]<>|~]|\b_|_\b", r"\\\g<0>", printable(text).replace("\n", " "))
    return text.replace("@", "@<!-- -->")  # a backslash does not keep GitHub from notifying @name


def format_markdown_table(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of Markdown cells, the head first, as a table. All columns but the first are right-aligned."""
    head, *body = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---", *["--:"] * (len(head) - 1)], *body))


def make_plain_table(*headers: str, gap: int = 2, **options: Any) -> "Table":
    """Return a rich table without rules, with `gap` spaces between columns."""
    from rich.table import Table  # imported here: --help needs no table

    return Table(*headers, box=None, padding=(0, gap, 0, 0), pad_edge=False, **options)


def add_sign(value: float, digits: int) -> str:
    """Return "+0.12" or "-0.12"; a value that rounds to zero has no sign."""
    text = f"{value:+z.{digits}f}"
    return text if text.strip("+0.") else text[1:]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return "1 turn", "2 turns", "1,024 replies". Pass `plural` if it ends neither in -s nor in -ies."""
    if number == 1:
        return f"1 {noun}"
    ending_in_y = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number:,} {plural or (noun[:-1] + 'ies' if ending_in_y else noun + 's')}"


def duration(seconds: float) -> str:
    """Return "12 s" for 12.3, "2 h 1 min" for 7260."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def verb(number: int, singular: str, plural: str) -> str:
    """Return the form of a verb that agrees with `number`."""
    return singular if number == 1 else plural


def say(message: str) -> None:
    """Print a message on stderr, in the main process only. Markup in it is shown, not interpreted."""
    if is_main_process():
        stderr.print(escape(printable(message)), soft_wrap=True)


def warn(*messages: str) -> None:
    """Print warnings on stderr, in the main process only."""
    for message in messages if is_main_process() else ():
        stderr.print(f"[yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)


def print_line(text: str) -> None:
    """Print text on stdout. Markup in it is shown, not interpreted, and no control character reaches the terminal."""
    stdout.print(printable(text), markup=False, soft_wrap=True)


def print_tsv(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows on stdout as tab-separated values, for a pipe. The first line has the names of the columns."""
    print("\n".join("\t".join(row) for row in (columns, *rows)))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print (name, value) pairs on stdout, in two columns."""
    for name, value in facts:
        print_line(f"{name:<32} {value}")


_LINE_EVERY = 60.0  # seconds between two lines of progress in a pipe or a batch job


@dataclass
class _Screen:
    """Progress display of this process. rich allows one live display at a time, so nested bars are lines of it."""

    bars: "Progress | None" = None
    last_line: float = -_LINE_EVERY  # time of the last progress line (time.monotonic)


_screen = _Screen()


def progress(items: Iterable[T], what: str, total: int, unit: str = "") -> Iterator[T]:
    """Yield `items`, with a progress bar; see `tally`."""
    with tally(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)


@contextlib.contextmanager
def tally(what: str, total: int, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Show a progress bar, and yield a function that advances it by a number. In a pipe, write one line per minute."""
    if stderr.is_terminal and is_main_process():
        with _open_bars() as bars:
            line = bars.add_task(what, total=total, unit=unit)
            try:
                yield partial(bars.advance, line)
            finally:
                bars.remove_task(line)
        return
    done, began = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done
        done += count
        now = time.monotonic()
        if now - max(began, _screen.last_line) >= _LINE_EVERY and done < total:
            _screen.last_line = now
            say(f"{what}: {done:,} of {total:,} {unit}".rstrip())

    yield advance


@contextlib.contextmanager
def _open_bars() -> Iterator["Progress"]:
    """Yield the live display of progress bars, opened if it is not open yet."""
    if _screen.bars is not None:
        yield _screen.bars
        return
    # imported here: --help needs no bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    unit = TextColumn("{task.fields[unit]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), unit, TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bars:
        _screen.bars = bars
        try:
            yield bars
        finally:
            _screen.bars = None
