"""Tokens of a reply, marked by their advantages: in colours on a terminal that has them, with brackets elsewhere.

Blue marks tokens that the teacher makes more likely, orange those that it makes less likely: people who confuse red and
green can tell these apart. Colour is never the only sign: negative is underlined, positive is bold. Without colours:

    {+more likely+}   {++far more likely++}   [-less likely-]   [--far less likely--]
"""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from opdkit.commands.turns.view import STEPS
from opdkit.config.fields import JSON
from opdkit.console import add_sign, is_screen, make_plain_table, print_tsv, printable

_STYLES = {
    1: "bold #000000 on #c6dbef", 2: "bold #ffffff on #2171b5", 3: "bold #ffffff on #08306b",
    -1: "underline #000000 on #fdd0a2", -2: "underline #000000 on #f18f43", -3: "underline #ffffff on #a63603",
}  # fmt: skip
_MARKS = {2: ("{+", "+}"), 3: ("{++", "++}"), -2: ("[-", "-]"), -3: ("[--", "--]")}
_MOST_LIKELY = 8  # positions of a reply at which the likeliest tokens are shown, at most
_WORDS = {3: "far more", 2: "more", 1: "a little more", -1: "a little less", -2: "less", -3: "far less"}


def one_line(text: str) -> str:
    """Return `text` as one line without control characters."""
    return printable(" ".join(text.split()))


def level(token: JSON) -> int:
    """Return how strongly to mark a token, from -3 to 3; 0 if not sampled, or if the advantage is small or missing."""
    advantage = token["advantage"]
    if advantage is None or not token["trained"]:
        return 0
    steps = sum(abs(advantage) >= step for step in STEPS)
    return steps if advantage > 0 else -steps


def reply_text(tokens: Sequence[JSON], *, colour: bool) -> Text:
    """Return the tokens of a target one after the other. Tokens that were not sampled, and so not trained, are dim."""
    line = Text("  ")
    for token in tokens:
        opening, closing = ("", "") if colour else _MARKS.get(level(token), ("", ""))
        style = _STYLES.get(level(token), "" if token["trained"] else "dim") if colour else ""
        line.append(opening + _make_visible(token["text"]) + closing, style=style)
    return line


def print_likely(tokens: Sequence[JSON], console: Console) -> None:
    """Print the likeliest tokens of both models at the positions with the largest advantages, in reply order."""
    clear = [n for n, token in enumerate(tokens) if token["likely"] and abs(level(token)) > 1]
    for n in sorted(sorted(clear, key=lambda n: -abs(tokens[n]["advantage"]))[:_MOST_LIKELY]):
        said = {model: ", ".join(f'"{text}" {math.exp(logprob):.2f}' for text, logprob in likely)
                for model, likely in tokens[n]["likely"].items()}  # fmt: skip
        line = f'at "{tokens[n]["text"]}" the teacher would say {said["teacher"]}; the student {said["student"]}'
        console.print(Text("  " + _make_visible(line).replace("\n  ", "")), soft_wrap=True)


def legend(*, colour: bool) -> Text:
    """Return the meaning of the colours or marks."""
    line = Text("  to the teacher a token is ")
    for n, strength in enumerate(strength for strength in _WORDS if colour or strength in _MARKS):
        opening, closing = ("", "") if colour else _MARKS[strength]
        line.append(" " if n else "").append(opening + _WORDS[strength] + closing, _STYLES[strength] if colour else "")
    bounds = STEPS if colour else STEPS[1:]
    return line.append(f" likely (by {', '.join(f'{step:g}' for step in bounds)} nats or more)")


def print_logprobs(tokens: Sequence[JSON], console: Console, *, colour: bool) -> None:
    """Print each token with its log-probs (nats): a table, or tab-separated values for a pipe."""
    columns = ("#", "token", "id", "old", "teacher", "advantage", "")
    table = make_plain_table()
    for name in columns:
        table.add_column(name, justify="left" if name in ("token", "") else "right", no_wrap=True)
    rows = []
    for n, token in enumerate(tokens):
        numbers = ["" if token[name] is None else f"{token[name]:z.4f}" for name in ("old", "teacher")]
        advantage = "" if token["advantage"] is None else add_sign(token["advantage"], 4)
        row = [str(n), _make_visible(token["text"]).replace("\n  ", ""), str(token["id"]), *numbers, advantage,
               "" if token["trained"] else "not sampled"]  # fmt: skip
        style = _STYLES.get(level(token), "") if colour else ""
        table.add_row(*(Text(cell, style=style if k == 1 else "") for k, cell in enumerate(row)))
        rows.append(row)
    if is_screen(console):
        console.print(table)
    else:
        print_tsv(columns, rows)


def _make_visible(text: str) -> str:
    """Return the text with visible signs for line ends and tabs, and without characters that control a terminal."""
    return printable(text.replace("\r", "␍").replace("\t", "␉")).replace("\n", "↵\n  ")
