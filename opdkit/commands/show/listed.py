"""Turns a line each: a table for a person, tab-separated values for a pipe."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opdkit.commands.show.choose import ListedTurn
from opdkit.commands.show.tokens import signed
from opdkit.console import printable, with_sign

COLUMNS = ("turn", "reward", "hint", "agreement (share)", "tokens", "advantage (nats)", "reply", "hint text")
_NARROWEST = 12  # characters of a text that are worth showing
_NUMBERS = ("reward", "agreement (share)", "tokens", "advantage (nats)")


def print_list(turns: Sequence[ListedTurn], console: Console) -> None:
    """The advantage is the sum over the reply's tokens; a turn that a person has reviewed has a star."""
    rows = [[printable(" ".join(cell.split())) for cell in _cells(turn)] for turn in turns]
    if not console.is_terminal:
        print("\t".join(COLUMNS))
        for row in rows:
            print("\t".join(row))
        return
    console.print(_table(rows, console.width))


def _table(rows: Sequence[Sequence[str]], width: int) -> Table:
    """What a person copies or compares is never cut; the texts share the room that is left."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    facts = COLUMNS[:-2]
    heads = [name.replace(" (", "\n(") for name in facts]  # units on a line of their own leave room for the texts
    widths = [max(map(cell_len, (*head.split("\n"), *(row[n] for row in rows)))) for n, head in enumerate(heads)]
    room = width - sum(widths) - len(COLUMNS)
    shown = COLUMNS if room >= 2 * _NARROWEST else COLUMNS[:-1] if room >= _NARROWEST else facts
    for name, head, most in zip(facts, heads, widths, strict=True):
        table.add_column(head, justify="right" if name in _NUMBERS else "left", no_wrap=True, min_width=most)
    for name in shown[len(facts) :]:
        table.add_column(name, no_wrap=True, width=room // (len(shown) - len(facts)))
    for row in rows:
        table.add_row(*map(Text, row[: len(shown)]))  # a log must not be able to format our table
    return table


def _cells(turn: ListedTurn) -> tuple[str, ...]:
    star = "*" if turn.reviewed else ""
    reward = "-" if turn.reward is None else signed(turn.reward)
    if turn.reward_status not in (None, "ok", "reviewed"):
        reward += f" {turn.reward_status}"
    return (
        turn.turn_id,
        (reward if turn.reward_status else turn.skip_reason or "") + star,
        turn.hint_status or "",
        "" if turn.agreement is None else f"{turn.agreement:.2f}",
        "" if turn.tokens is None else f"{turn.tokens:,}",
        "" if turn.advantage is None else with_sign(turn.advantage, 2),
        turn.reply,
        turn.hint or "",
    )
