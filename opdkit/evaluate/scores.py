"""Rows of the table `scores`, and their printed form: metrics before and after, for all prompts and for each domain."""

import html
import math
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from rich.markup import escape
from rich.text import Text

from opdkit.config.fields import JSON
from opdkit.console import add_sign, counted, format_markdown_table, make_plain_table, printable, stdout, warn
from opdkit.evaluate.bootstrap import FEWEST, compute_chance_of_rise, interval
from opdkit.evaluate.checks import ALL, POOLED, PROBES, HeldOutPrompt
from opdkit.evaluate.conclusion import DRIFT, conclude, print_conclusion
from opdkit.evaluate.probes import CONFIRMATION, QUESTION
from opdkit.evaluate.replies import Reply, choose_measured
from opdkit.store.reading import count_parts, read_part

if TYPE_CHECKING:
    from opdkit.model.comparison import Shift

T = TypeVar("T")

MODELS = ("before", "after")


class BeforeAfter(NamedTuple):
    """Values of a prompt, a turn or a passage under both models, each summed over `weight` tokens or replies."""

    unit: Hashable  # pairs of one unit, such as the prompts of one session, are resampled together
    weight: int
    before: float
    after: float


class Metric(NamedTuple):
    """Name of a metric in the tables, its unit, and which way is better."""

    words: str
    unit: str
    better: int = 0  # 1: more is better, -1: less is better, 0: a change is neither


METRICS = {
    "passed_sampled": Metric("right replies, sampled", "share", 1),
    "passed_greedy": Metric("right replies, greedy", "share", 1),
    "reply_tokens": Metric("reply length (tokens)", "tokens"),
    "cut_off": Metric("cut off by the limit", "share", -1),
    "hint_echo": Metric("hint echo", "share", -1),
    "kl_replies": Metric("drift, replies", "nats per token"),
    "kl_neutral": Metric("drift, neutral text", "nats per token"),
    "logprob_good": Metric("log-prob, +1 replies", "nats per token", 1),
    "logprob_bad": Metric("log-prob, -1 replies", "nats per token", -1),
    "logprob_neutral": Metric("log-prob, neutral text", "nats per token"),
    "question": Metric("nothing but questions", "share", -1),
    "confirmation": Metric("empty confirmations", "share", -1),
    "no_call": Metric("wrong, no tool call", "share"),
    "push_back": Metric("gives in to push-back", "share", -1),
    "planted_error": Metric("takes up a wrong claim", "share", -1),
    "hint_streak": Metric("sessions until 3 in a row follow the hint", "sessions", -1),
    "log_streak": Metric("sessions until 3 in a row are right, in the log", "sessions"),
}
# Metrics printed by domain; a dozen prompts are too few for the others. The table `scores` has all by domain.
BY_DOMAIN = ("passed_sampled", "reply_tokens", "kl_replies")
RARE = ("cut_off", "hint_echo")  # one printed line if they never happen
UNSEEN = ("question", "confirmation", *PROBES)  # not printed if they never happen
STREAKS = ("hint_streak", "log_streak")  # one printed line each


def make_reply_scores(replies: Sequence[Reply], seed: int) -> list[JSON]:
    """Return the scores that need only replies, by domain (`HeldOutPrompt.domains`); of probes, only for ALL."""
    rows = []
    for domain, in_domain in _group_by_domain([(r.prompt, r) for r in replies if r.prompt.probe is None]).items():
        sampled, greedy = [r for r in in_domain if r.sample], [r for r in in_domain if not r.sample]
        measured = choose_measured(in_domain)
        with_tools = [r for r in measured if None not in (r.called, r.passed)]  # and with a verdict
        for metric, scored, value in (
            ("passed_sampled", sampled, lambda r: r.passed),
            ("passed_greedy", greedy, lambda r: r.passed),
            ("reply_tokens", [r for r in measured if r.sequence], lambda r: len(r.sequence.response_ids)),
            ("cut_off", measured, lambda r: r.finish_reason == "length"),
            ("hint_echo", measured, lambda r: r.hint_echo is not None),
            ("question", measured, lambda r: r.hollow == QUESTION),
            ("confirmation", measured, lambda r: r.hollow == CONFIRMATION),
            ("no_call", with_tools, lambda r: not (r.called or r.passed)),
        ):
            if scored:
                rows.append(_make_score(metric, domain, _make_pairs(scored, value), seed))
    for probe in PROBES:
        if own := [r for r in replies if r.prompt.probe == probe and r.passed is not None]:
            rows.append(_make_score(probe, ALL, _make_pairs(own, lambda r: not r.passed), seed))
    return rows


def make_kl_scores(replies: Sequence[Reply], shifts: "Sequence[Shift]", seed: int) -> list[JSON]:
    """Return KL(before || after) on replies of the model before, per token (nats), by domain.

    `shifts` are those of `replies`, in the same order. Replies to one prompt, or to the prompts of one session, are
    resampled together.
    """
    prompts: dict[str, tuple[HeldOutPrompt, list[Shift]]] = {}
    for reply, shift in zip(replies, shifts, strict=True):
        prompts.setdefault(reply.prompt.id, (reply.prompt, []))[1].append(shift)
    pairs = [(prompt, BeforeAfter(prompt.unit, sum(s.tokens for s in own), 0.0, sum(s.kl for s in own)))
             for prompt, own in prompts.values()]  # fmt: skip
    finite = [(prompt, pair) for prompt, pair in pairs if math.isfinite(pair.after)]
    _warn_of_dropped("kl_replies", len(finite), len(pairs))
    by_domain = _group_by_domain(finite)
    return [_make_score("kl_replies", domain, by_domain.get(domain, []), seed) for domain in _group_by_domain(pairs)]


def score_shifts(metric: str, shifts: "Sequence[Shift]", seed: int, units: Sequence[Hashable] | None = None) -> JSON:
    """Return the row of `metric`: log-probs per token (nats), or for `kl_neutral` the KL(before || after) per token.

    Shifts of one of the `units`, such as a conversation, are resampled together.
    """
    pairs = [BeforeAfter(unit, s.tokens, *((0.0, s.kl) if metric == "kl_neutral" else (s.before, s.after)))
             for unit, s in zip(range(len(shifts)) if units is None else units, shifts, strict=True)]  # fmt: skip
    finite = [pair for pair in pairs if math.isfinite(pair.before) and math.isfinite(pair.after)]
    _warn_of_dropped(metric, len(finite), len(pairs))
    return _make_score(metric, ALL, finite, seed)


def _group_by_domain(items: Sequence[tuple[HeldOutPrompt, T]]) -> dict[str, list[T]]:
    """Return the items by the domains of their prompts: first the pooled domains, then the others sorted by name."""
    domains: dict[str, list[T]] = {}
    for prompt, item in items:
        for domain in prompt.domains():
            domains.setdefault(domain, []).append(item)
    order = (*POOLED, *sorted(domains.keys() - POOLED.keys()))
    return {domain: domains[domain] for domain in order if domain in domains}


def _make_pairs(replies: Sequence[Reply], value: Callable[[Reply], Any]) -> list[BeforeAfter]:
    """Return a pair per prompt: the means of its values before and after. Drop prompts without values on one side."""
    prompts: dict[str, dict[str, list[float]]] = {}
    for reply in replies:
        sides = prompts.setdefault(reply.prompt.id, {model: [] for model in MODELS})
        if value(reply) is not None:
            sides[reply.model].append(float(value(reply)))
    units = {r.prompt.id: r.prompt.unit for r in replies}
    both = [(units[name], s["before"], s["after"]) for name, s in prompts.items() if s["before"] and s["after"]]
    return [BeforeAfter(unit, 1, sum(before) / len(before), sum(after) / len(after)) for unit, before, after in both]


def _warn_of_dropped(metric: str, kept: int, total: int) -> None:
    """Warn if values were dropped because they are not finite."""
    if kept < total:
        warn(f"{METRICS[metric].words}: {total - kept} of {total} are not finite and were dropped")


def _make_score(metric: str, domain: str, pairs: Sequence[BeforeAfter], seed: int) -> JSON:
    """Return one row of tables.SCORES: weighted means over the pairs; nulls without pairs.

    The interval resamples whole units, since the tokens of a unit move together, and so do the prompts of a session.
    For a KL, `before` is 0: a model does not differ from itself.
    """
    before = after = difference = low = high = chance = None
    units: dict[Hashable, list[float]] = {}  # unit -> the sums of weight, before and after
    for unit, *sums in pairs:
        units[unit] = list(map(sum, zip(units.get(unit, (0, 0, 0)), sums, strict=True)))
    if pairs:
        weights, befores, afters = zip(*units.values(), strict=True)
        before, after = sum(befores) / sum(weights), sum(afters) / sum(weights)
        difference, changes = after - before, np.subtract(afters, befores)
        low, high = interval((changes / weights).tolist(), weights, seed=seed) or (None, None)
        if len(units) >= FEWEST:  # two-sided
            chance = min(1.0, 2 * min(compute_chance_of_rise(changes), compute_chance_of_rise(-changes)))
    return {"metric": metric, "domain": domain, "before": before, "after": after, "difference": difference,
            "low": low, "high": high, "chance": chance, "count": len(pairs), "units": len(units)}  # fmt: skip


def print_scores(scores: Sequence[JSON], replies: Sequence[JSON], names: Sequence[str] = MODELS) -> None:
    """Print rows of `scores` and `replies` on stdout: a table 80 columns wide, and a line per RARE metric that is 0.

    `names`: column heads of the two sides. Two trainings (not MODELS) have only the scores of `make_reply_scores`.
    """
    title = "Before and after training" if names is MODELS else printable(" and ".join(names))
    seen = {row["metric"] for row in scores if row["before"] or row["after"]}
    never = [metric for metric in RARE if metric not in seen and replies]
    left_out = {*never, *STREAKS, *(metric for metric in UNSEEN if metric not in seen)}
    table = make_plain_table(gap=1, title=escape(f"{title}, on held-out prompts"), title_justify="left")
    # Domains go beside the metric if they fit (the other columns take 65), else below it.
    is_beside = max((len(row["domain"]) for row in scores), default=0) <= stdout.width - 65
    if is_beside:
        table.add_column("", no_wrap=True)
    table.add_column("domain", overflow="fold", min_width=len("uncorrected"))
    for name in (*names, "change", "95% interval", "n"):
        table.add_column(escape(printable(name)), justify="right", no_wrap=name not in names, overflow="fold")
    shown: list[JSON] = []
    for metric in (metric for metric in METRICS if metric not in left_out):
        rows = [row for row in scores if row["metric"] == metric]
        if metric not in BY_DOMAIN or sum(row["domain"] not in POOLED for row in rows) == 1:
            rows = [row for row in rows if row["domain"] in POOLED]  # a single domain equals ALL
        for n, row in enumerate(rows):
            head = "" if n else f"[bold]{METRICS[metric].words}[/]"
            if head and not is_beside:
                table.add_row(head)
            table.add_row(*([head] if is_beside else []), *map(escape, _format_cells(row)))
        shown += rows
    stdout.print(table)
    for metric in never:
        sides = ([r["sample"] > 0 for r in replies if r["model"] == model and not r["probe"]] for model in MODELS)
        before, after = (sum(sampled) or len(sampled) for sampled in sides)  # as in `choose_measured`
        stdout.print(f"{METRICS[metric].words}: 0 of {counted(after, 'reply')}, before 0 of {before:,}", soft_wrap=True)
    for row in (row for row in scores if row["metric"] in STREAKS):
        _, old, new, *_ = _format_cells(row)
        both = old if new == "-" else f"{new}, before {old}"
        stdout.print(f"{METRICS[row['metric']].words}: {both}, of {counted(row['count'], 'session')}", soft_wrap=True)
    if names is MODELS:
        stdout.print("drift, log-probs: nats per token. n: prompts, turns or passages.", soft_wrap=True)
    if any(row["count"] and row["low"] is None for row in shown):
        stdout.print(f"no interval: n under {FEWEST} (a session counts once), or all changes are equal.",
                     soft_wrap=True)  # fmt: skip


def format_scores(scores: Sequence[JSON]) -> str:
    """Return the scores over all prompts as a Markdown table, for the model card."""
    (head, *rows) = score_rows([row for row in scores if row["domain"] == ALL])
    table = format_markdown_table([[row[0], *row[2:]] for row in (head, *rows)])
    return f"Measured by `opdkit eval`, with the {DRIFT}:\n\n{table}\n"


def score_rows(scores: Sequence[JSON], names: Sequence[str] = MODELS) -> list[list[str]]:
    """Return the scores as rows of text, the head first. `names`: column heads of the two sides."""
    ordered = sorted(scores, key=lambda row: list(METRICS).index(row["metric"]))
    rows = [[METRICS[row["metric"]].words, *_format_cells(row)] for row in ordered]
    return [["metric", "domain", *names, "change", "95% interval", "n"], *rows]


def _format_cells(row: JSON) -> tuple[str, ...]:
    """Return the cells of a row after its metric. A streak that never came, equal to the count, is shown as "never"."""
    digits = {"reply_tokens": 1, **dict.fromkeys(STREAKS, 0)}.get(row["metric"], 3)
    bounds = "-" if row["low"] is None else f"{add_sign(row['low'], digits)} to {add_sign(row['high'], digits)}"
    change = "-" if row["difference"] is None else add_sign(row["difference"], digits)
    numbers = ["-" if row[side] is None else f"{row[side]:z.{digits}f}" for side in MODELS]
    if row["metric"] in STREAKS:
        numbers = ["never" if row[side] == row["count"] else n for side, n in zip(MODELS, numbers, strict=True)]
    return (printable(row["domain"]), *numbers, change, bounds, f"{row['count']:,}")


class Scores(list[JSON]):
    """Rows of the table `scores` and their conclusion. Its `repr` is what `opdkit eval` prints.

    Raises OpdkitError if `opdkit eval` has not finished.
    """

    def __init__(self, run: Path) -> None:
        count_parts(run, "eval")
        super().__init__(read_part(run, "scores", 0))
        self.conclusion = conclude(self, run)
        self._replies = read_part(run, "replies", 0)

    def find(self, metric: str, domain: str = ALL) -> JSON:
        """Return the row of a metric. Raises KeyError if there is none."""
        return {(row["metric"], row["domain"]): row for row in self}[metric, domain]

    def __repr__(self) -> str:
        with stdout.capture() as printed:
            print_conclusion(self.conclusion)
            print_scores(self, self._replies)
        return Text.from_ansi(printed.get()).plain

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"
