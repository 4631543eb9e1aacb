"""Rows of `scores`: a metric before and after training, for all prompts and for each domain. And their table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from rich.markup import escape
from rich.table import Table as RichTable

from opdkit.config.fields import JSON
from opdkit.console import counted, printable, stdout, warn, with_sign
from opdkit.evaluate.bootstrap import FEWEST, Interval, interval
from opdkit.evaluate.checks import ALL, POOLED, HeldOutPrompt
from opdkit.evaluate.drift import Shift
from opdkit.evaluate.replies import Reply, sampled_replies

T = TypeVar("T")

MODELS = ("before", "after")
METRICS = {
    "passed_sampled": "share passed, sampled",
    "passed_greedy": "share passed, greedy",
    "reply_tokens": "reply length (tokens)",
    "cut_off": "cut off by the limit",
    "hint_echo": "hint echo",
    "kl_replies": "KL, replies",
    "kl_neutral": "KL, neutral text",
    "logprob_good": "log-prob, +1 replies",
    "logprob_bad": "log-prob, -1 replies",
    "logprob_neutral": "log-prob, neutral text",
}
# 1: more is better, -1: less is better. The others say how much changed, which is neither.
BETTER = {"passed_sampled": 1, "passed_greedy": 1, "cut_off": -1, "hint_echo": -1, "logprob_good": 1, "logprob_bad": -1}
SHARE, NATS = "share", "nats a token"
UNITS = {
    "passed_sampled": SHARE,
    "passed_greedy": SHARE,
    "reply_tokens": "tokens",
    "cut_off": SHARE,
    "hint_echo": SHARE,
    "kl_replies": NATS,
    "kl_neutral": NATS,
    "logprob_good": NATS,
    "logprob_bad": NATS,
    "logprob_neutral": NATS,
}
# Metrics that are printed for each domain: of the others a dozen prompts say too little. The table `scores` has all.
BY_DOMAIN = ("passed_sampled", "reply_tokens", "kl_replies")
RARE = ("cut_off", "hint_echo")  # one line where they never happen


def reply_scores(replies: Sequence[Reply], seed: int) -> list[JSON]:
    """Return the scores of replies alone, for each domain of `HeldOutPrompt.domains`."""
    rows = []
    for domain, of_domain in _by_domain([(r.prompt, r) for r in replies]).items():
        sampled, greedy = [r for r in of_domain if r.sample], [r for r in of_domain if not r.sample]
        measured = sampled_replies(of_domain)
        for metric, counted_replies, value in (
            ("passed_sampled", sampled, lambda r: r.passed),
            ("passed_greedy", greedy, lambda r: r.passed),
            ("reply_tokens", measured, lambda r: len(r.sequence.response_ids)),
            ("cut_off", measured, lambda r: r.finish_reason == "length"),
            ("hint_echo", measured, lambda r: r.hint_echo is not None),
        ):
            if counted_replies:
                rows.append(_comparison(metric, domain, _per_prompt(counted_replies, value), seed))
    return rows


def reply_kl_scores(replies: Sequence[Reply], shifts: Sequence[Shift], seed: int) -> list[JSON]:
    """Return KL(before || after) on replies of the model before, a mean over their tokens (nats), by domain.

    `shifts` are those of the replies, in their order. Whole prompts are drawn for the interval.
    """
    prompts: dict[str, tuple[HeldOutPrompt, list[Shift]]] = {}
    for reply, shift in zip(replies, shifts, strict=True):
        prompts.setdefault(reply.prompt.id, (reply.prompt, []))[1].append(shift)
    sums = [
        (prompt, Shift(*(sum(getattr(s, f.name) for s in of_prompt) for f in fields(Shift))))
        for prompt, of_prompt in prompts.values()
    ]
    finite = [(prompt, shift) for prompt, shift in sums if math.isfinite(shift.kl)]
    _warn_of_dropped("kl_replies", len(finite), len(sums))
    by_domain = _by_domain(finite)
    return [_kl_score("kl_replies", domain, by_domain.get(domain, []), seed) for domain in _by_domain(sums)]


def _by_domain(items: Sequence[tuple[HeldOutPrompt, T]]) -> dict[str, list[T]]:
    """Return the items by the domains of their prompts: first all, then groups of domains, then each by its name."""
    domains: dict[str, list[T]] = {}
    for prompt, item in items:
        for domain in prompt.domains():
            domains.setdefault(domain, []).append(item)
    order = (*POOLED, *sorted(domains.keys() - POOLED.keys()))
    return {domain: domains[domain] for domain in order if domain in domains}


def _per_prompt(replies: Sequence[Reply], value: Callable[[Reply], Any]) -> list[tuple[float, float]]:
    """Return (before, after) of each prompt: means over its replies with a value. Drop prompts that lack one side."""
    prompts: dict[str, dict[str, list[float]]] = {}
    for reply in replies:
        sides = prompts.setdefault(reply.prompt.id, {model: [] for model in MODELS})
        if value(reply) is not None:
            sides[reply.model].append(float(value(reply)))
    return [(_mean(s["before"]), _mean(s["after"])) for s in prompts.values() if s["before"] and s["after"]]


def _mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def _comparison(metric: str, domain: str, pairs: Sequence[tuple[float, float]], seed: int) -> JSON:
    """Return the score of (before, after) pairs."""
    if not pairs:
        return _score(metric, domain, None, None, None, 0)
    before, after = _mean([b for b, _ in pairs]), _mean([a for _, a in pairs])
    return _score(metric, domain, before, after, interval([a - b for b, a in pairs], seed=seed), len(pairs))


# -- log-probs and KL -----------------------------------------------------------------------------------------------


def logprob_score(metric: str, shifts: Sequence[Shift], seed: int) -> JSON:
    """Return the mean log-prob per token; turns are drawn whole for the interval, as their tokens move together."""
    finite = [s for s in shifts if math.isfinite(s.before) and math.isfinite(s.after)]
    _warn_of_dropped(metric, len(finite), len(shifts))
    if not finite:
        return _score(metric, ALL, None, None, None, 0)
    tokens = [s.tokens for s in finite]
    bounds = interval([(s.after - s.before) / s.tokens for s in finite], tokens, seed=seed)
    before, after = sum(s.before for s in finite) / sum(tokens), sum(s.after for s in finite) / sum(tokens)
    return _score(metric, ALL, before, after, bounds, len(finite))


def neutral_kl_score(shifts: Sequence[Shift], seed: int) -> JSON:
    """Return KL(before || after) on neutral text, a mean over its tokens (nats). Whole passages are drawn."""
    finite = [s for s in shifts if math.isfinite(s.kl)]
    _warn_of_dropped("kl_neutral", len(finite), len(shifts))
    return _kl_score("kl_neutral", ALL, finite, seed)


def _kl_score(metric: str, domain: str, shifts: Sequence[Shift], seed: int) -> JSON:
    """Return the mean KL per token. Before training it is 0: a model does not differ from itself."""
    if not shifts:
        return _score(metric, domain, None, None, None, 0)
    tokens = [s.tokens for s in shifts]
    bounds = interval([s.kl / s.tokens for s in shifts], tokens, seed=seed)
    return _score(metric, domain, 0.0, sum(s.kl for s in shifts) / sum(tokens), bounds, len(shifts))


def _warn_of_dropped(metric: str, kept: int, total: int) -> None:
    """Warn of values that are not finite."""
    if kept < total:
        warn(f"{METRICS[metric]}: {total - kept} of {total} are not finite and left out")


def _score(metric: str, domain: str, before: float | None, after: float | None, bounds: Interval, count: int) -> JSON:
    """Return one row of tables.SCORES."""
    low, high = bounds or (None, None)
    difference = None if before is None or after is None else after - before
    return {"metric": metric, "domain": domain, "before": before, "after": after, "difference": difference,
            "low": low, "high": high, "count": count}  # fmt: skip


# -- table -----------------------------------------------------------------------------------------------------------


def print_scores(scores: Sequence[JSON], replies: Sequence[JSON]) -> None:
    """Print rows of `scores` and `replies` on stdout: a table of 80 columns, and a line for what never happens."""
    never = [
        metric for metric in RARE if not any(row["before"] or row["after"] for row in scores if row["metric"] == metric)
    ]
    table = RichTable(title="Before and after training, on held-out prompts", title_justify="left", box=None,
                      padding=(0, 1, 0, 0), pad_edge=False)  # fmt: skip
    table.add_column("", no_wrap=True)
    table.add_column("domain", overflow="fold")
    for name in ("before", "after", "change", "95% interval", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = {metric: _shown_rows(metric, scores) for metric in METRICS if metric not in never}
    for metric, rows in shown.items():
        for n, row in enumerate(rows):
            table.add_row("" if n else f"[bold]{METRICS[metric]}[/]", *_cells(row))
    stdout.print(table)
    for metric in never:
        samples = {model: [r["sample"] for r in replies if r["model"] == model] for model in MODELS}
        # The sampled replies, or the greedy ones if there are no others.
        before, after = (len([k for k in samples[model] if k] or samples[model]) for model in MODELS)
        stdout.print(f"{METRICS[metric]}: 0 of {counted(after, 'reply')}, before 0 of {before:,}")
    stdout.print("KL(before || after), log-probs: nats per token. n: prompts, turns or passages.")
    if any(0 < row["count"] < FEWEST for rows in shown.values() for row in rows):
        stdout.print(f"n under {FEWEST}: too few for an interval, and for a difference to be more than chance.")


def _shown_rows(metric: str, scores: Sequence[JSON]) -> list[JSON]:
    """Return the rows of a metric that the table shows."""
    rows = [row for row in scores if row["metric"] == metric]
    domains = [row for row in rows if row["domain"] not in POOLED]
    by_domain = metric in BY_DOMAIN and len(domains) > 1  # a single domain is everything
    return [row for row in rows if row["domain"] in POOLED or by_domain]


def _cells(row: JSON) -> tuple[str, ...]:
    """Return the cells of a row, behind its metric."""
    digits = 1 if row["metric"] == "reply_tokens" else 3
    bounds = "-" if row["low"] is None else f"{with_sign(row['low'], digits)} to {with_sign(row['high'], digits)}"
    change = "-" if row["difference"] is None else with_sign(row["difference"], digits)
    numbers = ("-" if row[side] is None else f"{row[side]:z.{digits}f}" for side in MODELS)
    return (escape(printable(row["domain"])), *numbers, change, bounds, f"{row['count']:,}")
