"""Words and numbers of docs/learning.md."""

from collections.abc import Iterable, Sequence
from math import isnan
from textwrap import fill

from ..learning.cells import Cell
from . import WORLDS
from .findings import OURS, Results, Shares, Training, mean, mean_shares
from .ways import REACTION

TITLES = {
    OURS: "opdkit's default", "everything": "SFT on all replies", "praised": "SFT on praised replies", "kto": "KTO",
    "dpo": "DPO", REACTION: "raw reactions as hints", "rules": "hints as rules in the prompt",
}  # fmt: skip
NOTHING = "Nothing of this is measured yet."


def text(*sentences: str) -> str:
    """Return a paragraph; empty sentences are left out."""
    words = " ".join(filter(None, sentences))
    return fill(words, 120, break_long_words=False, break_on_hyphens=False)


def number(value: float | None) -> str:
    """Return a number with two decimals; a dash if it is not known."""
    return "-" if value is None or isnan(value) else f"{value:.2f}".replace("-0.00", "0.00")


def pair(shares: Shares) -> str:
    return f"{number(shares.corrected)} / {number(shares.uncorrected)}"


def spread(values: Sequence[float]) -> str:
    """Return the mean and, if there are several values, the lowest and the highest."""
    ends = f" ({number(min(values))}-{number(max(values))})" if len(values) > 1 else ""
    return f"{number(mean(values))}{ends}"


def whole(tokens: float) -> str:
    return "-" if isnan(tokens) else f"{tokens:,.0f}"


def thousands(tokens: float) -> str:
    return "-" if isnan(tokens) else f"{tokens / 1000:,.0f}k"


def title(world: str) -> str:
    """Return a world's name, with a mark if it was kept aside, and its share of irrelevant reactions."""
    name, _, share = world.partition("-")
    return f"{name}{'†' if WORLDS[name].aside else ''}" + (f", {float(share):.0%} irrelevant" if share else "")


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(fill(f"- {line}", 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


def count(some: int, of: int, what: str) -> str:
    return f"{some} of {of} {what}"


def given(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:g}"


def section(heading: str, results: Results, cells: Iterable[Cell], *parts: str) -> str:
    """Return a section of an answer, tables and a picture, with the number of its cells that are measured."""
    measured, of = results.count(cells)
    return "\n\n".join(filter(None, [f"## {heading}", *parts, f"*Cells measured: {measured} of {of}.*"]))


def judgement(is_yes: bool | None, no: str = "Not everywhere") -> str:
    return "" if is_yes is None else f"**{'Yes' if is_yes else no}.**"


def outcome(rows: Sequence[Training], objective: str, rate: float | None) -> str:
    """Return the result of an objective at a rate (None: no rate was given)."""
    several = [row for row in rows if (row.objective, row.rate) == (objective, rate)]
    if not several:
        return "-"
    refused, shares = sum(row.refused for row in several), pair(mean_shares(row.change.after for row in several))
    shares = f"**{shares}**" if any(row.is_worse for row in several) else shares
    return shares + (f" ({refused})" if refused else "")
