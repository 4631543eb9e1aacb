"""Turns as rows: a table for a person, tab-separated values for a pipe, and JSON."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opdkit.commands.show.tokens import one_line
from opdkit.commands.turns.line import TurnLine, shorten, signed
from opdkit.config.fields import JSON
from opdkit.console import add_sign, is_screen, make_plain_table, print_tsv

COLUMNS = ("turn", "reward", "hint", "agreement (share)", "tokens", "advantage (nats)", "reply", "hint text")
_CHARS = 200  # of each text, at most
_NARROWEST = 12  # characters: a narrower column of text is not worth showing
_NUMBERS = ("reward", "agreement (share)", "tokens", "advantage (nats)")


def make_json_row(line: TurnLine) -> JSON:
    """Return a line as a row of `opdkit show --json`."""
    names = ("turn_id", "state", "skip_reason", "reward", "reward_status")
    return {name: getattr(line, name) for name in names} | {
        "agreement": line.reward_agreement,
        "hint_status": line.hint_status,
        "reviewed": line.review is not None,
        "tokens": line.tokens,
        "advantage": line.advantage,
        "request": shorten(line.request, _CHARS),
        "reply": shorten(line.reply, _CHARS),
        "hint": None if line.hint is None else shorten(" ".join(line.hint.split()), _CHARS),
    }


def print_list(lines: Sequence[TurnLine], console: Console) -> None:
    """Print a row per turn. The advantage is the sum over the reply's tokens; a star marks a turn that was reviewed."""
    rows = []
    for line in lines:
        row = make_json_row(line)
        reward = "-" if line.reward is None else signed(line.reward)
        if line.reward_status not in (None, "ok", "reviewed"):
            reward += f" {line.reward_status}"
        cells = (
            line.turn_id,
            (reward if line.reward_status else line.skip_reason or "") + ("*" if line.review else ""),
            line.hint_status or "",
            "" if line.reward_agreement is None else f"{line.reward_agreement:.2f}",
            "" if line.tokens is None else f"{line.tokens:,}",
            "" if line.advantage is None else add_sign(line.advantage, 2),
            row["reply"],
            row["hint"] or "",
        )
        rows.append([one_line(cell) for cell in cells])
    if is_screen(console):
        console.print(_make_table(rows, console.width))
    else:
        print_tsv(COLUMNS, rows)


def _make_table(rows: Sequence[Sequence[str]], width: int) -> Table:
    """Lay out a table: names and numbers, which a person copies or compares, are never cut; texts share the rest."""
    table = make_plain_table(gap=1)
    facts = COLUMNS[:-2]
    heads = [name.replace(" (", "\n(") for name in facts]  # units on a line of their own leave room for the texts
    widths = [max(map(cell_len, (*head.split("\n"), *(row[n] for row in rows)))) for n, head in enumerate(heads)]
    room = width - sum(widths) - len(COLUMNS)
    shown = COLUMNS if room >= 2 * _NARROWEST else COLUMNS[:-1] if room >= _NARROWEST else facts
    for name, head, least in zip(facts, heads, widths, strict=True):
        table.add_column(head, justify="right" if name in _NUMBERS else "left", no_wrap=True, min_width=least)
    for name in shown[len(facts) :]:
        table.add_column(name, no_wrap=True, width=room // (len(shown) - len(facts)))
    for row in rows:
        table.add_row(*map(Text, row[: len(shown)]))  # `Text`, so that text of a log cannot format the table
    return table
