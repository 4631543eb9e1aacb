"""The scores for people: one table that fits 80 columns, and a line for what never happens."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table as RichTable

from opdkit.config.fields import JSON
from opdkit.console import counted, printable, stdout, with_sign
from opdkit.evaluate.bootstrap import FEWEST
from opdkit.evaluate.checks import POOLED
from opdkit.evaluate.scores import METRICS, MODELS

# In one domain of a dozen prompts the others are too few to say anything; all rows are in the table `scores`.
BY_DOMAIN = ("passed_sampled", "reply_tokens", "kl_replies")
RARE = ("cut_off", "hint_echo")


def show(scores: Sequence[JSON], replies: Sequence[JSON]) -> None:
    """Rows of `scores` and `replies`, on stdout."""
    never = [metric for metric in RARE if not any(_happens(row) for row in scores if row["metric"] == metric)]
    table = RichTable(title="Before and after training, on held-out prompts", title_justify="left", box=None,
                      padding=(0, 1, 0, 0), pad_edge=False)  # fmt: skip
    table.add_column("", no_wrap=True)
    table.add_column("domain", overflow="fold")
    for name in ("before", "after", "change", "95% interval", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    some = {metric: _shown(metric, scores) for metric in METRICS if metric not in never}
    for metric, rows in some.items():
        for n, row in enumerate(rows):
            table.add_row("" if n else f"[bold]{METRICS[metric]}[/]", *_cells(row))
    stdout.print(table)
    for metric in never:
        stdout.print(_never(metric, replies))
    stdout.print("KL(before || after), log-probs: nats a token. n: prompts, turns or passages.")
    if any(0 < row["count"] < FEWEST for rows in some.values() for row in rows):
        stdout.print(f"n under {FEWEST}: too few for an interval, and for a difference to be more than chance.")


def _happens(row: JSON) -> bool:
    return bool(row["before"] or row["after"])


def _shown(metric: str, scores: Sequence[JSON]) -> list[JSON]:
    rows = [row for row in scores if row["metric"] == metric]
    others = [row for row in rows if row["domain"] not in POOLED]
    by_domain = metric in BY_DOMAIN and len(others) > 1  # one domain is everything
    return [row for row in rows if row["domain"] in POOLED or by_domain]


def _cells(row: JSON) -> tuple[str, ...]:
    digits = 1 if row["metric"] == "reply_tokens" else 3
    bounds = "-" if row["low"] is None else f"{with_sign(row['low'], digits)} to {with_sign(row['high'], digits)}"
    change = "-" if row["difference"] is None else with_sign(row["difference"], digits)
    numbers = ("-" if row[side] is None else f"{row[side]:z.{digits}f}" for side in MODELS)
    return (escape(printable(row["domain"])), *numbers, change, bounds, f"{row['count']:,}")


def _never(metric: str, replies: Sequence[JSON]) -> str:
    """ "hint echo: 0 of 288 replies, before 0 of 288"."""
    sides = ([r["sample"] for r in replies if r["model"] == model] for model in MODELS)
    before, after = (
        len([k for k in samples if k] or samples) for samples in sides
    )  # the greedy ones if there are no others
    return f"{METRICS[metric]}: 0 of {counted(after, 'reply')}, before 0 of {before:,}"
