"""A reply's tokens, each by its advantage: in colours on a terminal that has them, between marks anywhere else.

Blue is what the teacher would rather have had said, orange what it would rather not: told apart by who sees no red and
green. Never by colour alone: what is negative is also underlined, what is positive is bold. Without colours:

    {+more likely+}   {++far more likely++}   [-less likely-]   [--far less likely--]
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from opdkit.config.fields import JSON
from opdkit.console import printable, with_sign

STEPS = (0.1, 0.5, 1.5)  # nats: weakly, clearly, strongly; the report's too
_STYLES = {
    1: "bold #000000 on #c6dbef", 2: "bold #ffffff on #2171b5", 3: "bold #ffffff on #08306b",
    -1: "underline #000000 on #fdd0a2", -2: "underline #000000 on #f18f43", -3: "underline #ffffff on #a63603",
}  # fmt: skip
_MARKS = {2: ("{+", "+}"), 3: ("{++", "++}"), -2: ("[-", "-]"), -3: ("[--", "--]")}


def level(advantage: float | None) -> int:
    """-3 to 3: how strongly a token is marked; 0 below the first step, and where there is no advantage."""
    if advantage is None:
        return 0
    steps = sum(abs(advantage) >= step for step in STEPS)
    return steps if advantage > 0 else -steps


def in_colour(console: Console) -> bool:
    """Whether colours reach whoever reads."""
    return console.is_terminal and not console.no_color and console.color_system is not None


def reply_text(tokens: Sequence[JSON], *, colour: bool) -> Text:
    """The tokens of a target one after the other. What was not sampled, and so is not trained, is dim."""
    found = Text("  ")
    for token in tokens:
        text, strength = _visible(token["text"]), level(token["advantage"]) if token["trained"] else 0
        if not colour:
            opening, closing = _MARKS.get(strength, ("", ""))
            found.append(opening + text + closing)
        else:
            found.append(text, style=_STYLES.get(strength, "" if token["trained"] else "dim"))
    return found


def legend(*, colour: bool) -> Text:
    """What the colours or marks mean."""
    found = Text("  the teacher would say it ")
    words = {3: "far more", 2: "more", 1: "a little more", -1: "a little less", -2: "less", -3: "far less"}
    shown = [strength for strength in words if colour or strength in _MARKS]
    for n, strength in enumerate(shown):
        opening, closing = ("", "") if colour else _MARKS[strength]
        found.append(" " if n else "").append(opening + words[strength] + closing, _STYLES[strength] if colour else "")
    bounds = STEPS if colour else STEPS[1:]
    return found.append(f"   (from {', '.join(f'{step:g}' for step in bounds)} nats)")


def logprob_table(tokens: Sequence[JSON], console: Console) -> Table | str:
    """Each token with its log-probs (nats); tab-separated values for a pipe."""
    columns = ("#", "token", "id", "old", "teacher", "advantage", "")
    rows = [
        (str(n), _visible(token["text"]).replace("\n  ", ""), str(token["id"]), _number(token["old"]),
         _number(token["teacher"]), "" if token["advantage"] is None else with_sign(token["advantage"], 4),
         "" if token["trained"] else "not sampled")
        for n, token in enumerate(tokens)
    ]  # fmt: skip
    if not console.is_terminal:
        return "\n".join("\t".join(row) for row in (columns, *rows))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("token", "") else "right", no_wrap=True)
    colour = in_colour(console)
    for token, row in zip(tokens, rows, strict=True):
        style = _STYLES.get(level(token["advantage"]) if token["trained"] and colour else 0, "")
        table.add_row(*(Text(cell, style=style if n == 1 else "") for n, cell in enumerate(row)))
    return table


def signed(reward: int) -> str:
    """ "+1", "0" or "-1"."""
    return f"{reward:+d}" if reward else "0"


def _visible(text: str) -> str:
    """Line ends and tabs as signs, so that they can be seen to be tokens; nothing that drives a terminal."""
    return printable(text.replace("\r", "␍").replace("\t", "␉")).replace("\n", "↵\n  ")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:z.4f}"
