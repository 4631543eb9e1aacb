"""The rows of `scores`: a metric before and after training, in all prompts and in each domain. Numbers in, rows out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from opdkit.config.fields import JSON
from opdkit.console import warn
from opdkit.evaluate.bootstrap import interval
from opdkit.evaluate.checks import ALL, POOLED, HeldOutPrompt
from opdkit.evaluate.drift import Shift
from opdkit.evaluate.replies import Reply, measured

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
# 1: more is better, -1: less is. The others say how much changed, which is neither.
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


def reply_scores(replies: Sequence[Reply], seed: int) -> list[JSON]:
    """What the replies alone tell, for each domain of `HeldOutPrompt.domains`."""
    rows = []
    for domain, mine in _by_domain([(r.prompt, r) for r in replies]).items():
        sampled, greedy = [r for r in mine if r.sample], [r for r in mine if not r.sample]
        for metric, some, value in (
            ("passed_sampled", sampled, lambda r: r.passed),
            ("passed_greedy", greedy, lambda r: r.passed),
            ("reply_tokens", measured(mine), lambda r: r.tokens),
            ("cut_off", measured(mine), lambda r: r.finish_reason == "length"),
            ("hint_echo", measured(mine), lambda r: r.hint_echo is not None),
        ):
            if some:
                rows.append(_comparison(metric, domain, _per_prompt(some, value), seed))
    return rows


def reply_kl_scores(replies: Sequence[Reply], shifts: Sequence[Shift], seed: int) -> list[JSON]:
    """Forgetting: KL(before || after) on replies of the model before, a mean over their tokens (nats), by domain.

    `shifts` are those of the replies, in their order. Whole prompts are drawn for the interval.
    """
    prompts: dict[str, tuple[HeldOutPrompt, list[Shift]]] = {}
    for reply, shift in zip(replies, shifts, strict=True):
        prompts.setdefault(reply.prompt.id, (reply.prompt, []))[1].append(shift)
    sums = [(prompt, _sum(some)) for prompt, some in prompts.values()]
    finite = [(prompt, shift) for prompt, shift in sums if math.isfinite(shift.kl)]
    _warn_of_the_rest("kl_replies", len(finite), len(sums))
    domains = _by_domain(sums)
    known = _by_domain(finite)
    return [_kl_score("kl_replies", domain, known.get(domain, []), seed) for domain in domains]


def _by_domain(items: Sequence[tuple[HeldOutPrompt, T]]) -> dict[str, list[T]]:
    """What belongs to the prompts of each domain: first everything, then what pools several, then each by its name."""
    found: dict[str, list[T]] = {}
    for prompt, item in items:
        for domain in prompt.domains():
            found.setdefault(domain, []).append(item)
    return {domain: found[domain] for domain in (*POOLED, *sorted(found.keys() - POOLED.keys())) if domain in found}


def _per_prompt(replies: Sequence[Reply], value: Callable[[Reply], Any]) -> list[tuple[float, float]]:
    """(before, after) of each prompt: means over its replies with a value. Prompts that lack one side are left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for reply in replies:
        sides = found.setdefault(reply.prompt.id, {model: [] for model in MODELS})
        if value(reply) is not None:
            sides[reply.model].append(float(value(reply)))
    return [(_mean(s["before"]), _mean(s["after"])) for s in found.values() if s["before"] and s["after"]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _comparison(metric: str, domain: str, pairs: Sequence[tuple[float, float]], seed: int) -> JSON:
    if not pairs:
        return _score(metric, domain, None, None, None, 0)
    before, after = _mean([b for b, _ in pairs]), _mean([a for _, a in pairs])
    return _score(metric, domain, before, after, interval([a - b for b, a in pairs], seed=seed), len(pairs))


# -- log-probs and KL -----------------------------------------------------------------------------------------------


def logprob_score(metric: str, shifts: Sequence[Shift], seed: int) -> JSON:
    """Mean log-prob a token; turns are drawn as wholes for the interval, as their tokens move together."""
    finite = [s for s in shifts if s.finite]
    _warn_of_the_rest(metric, len(finite), len(shifts))
    if not finite:
        return _score(metric, ALL, None, None, None, 0)
    tokens = [s.tokens for s in finite]
    bounds = interval([(s.after - s.before) / s.tokens for s in finite], tokens, seed=seed)
    before, after = sum(s.before for s in finite) / sum(tokens), sum(s.after for s in finite) / sum(tokens)
    return _score(metric, ALL, before, after, bounds, len(finite))


def neutral_kl_score(shifts: Sequence[Shift], seed: int) -> JSON:
    """KL(before || after) on neutral text, a mean over its tokens (nats). Whole passages are drawn."""
    finite = [s for s in shifts if math.isfinite(s.kl)]
    _warn_of_the_rest("kl_neutral", len(finite), len(shifts))
    return _kl_score("kl_neutral", ALL, finite, seed)


def _kl_score(metric: str, domain: str, shifts: Sequence[Shift], seed: int) -> JSON:
    if not shifts:
        return _score(metric, domain, None, None, None, 0)
    tokens = [s.tokens for s in shifts]
    bounds = interval([s.kl / s.tokens for s in shifts], tokens, seed=seed)
    kl = sum(s.kl for s in shifts) / sum(tokens)
    return _score(metric, domain, 0.0, kl, bounds, len(shifts))  # 0: a model does not differ from itself


def _sum(shifts: Sequence[Shift]) -> Shift:
    return Shift(*(sum(getattr(s, f.name) for s in shifts) for f in fields(Shift)))


def _warn_of_the_rest(metric: str, kept: int, of: int) -> None:
    if kept < of:
        warn(f"{METRICS[metric]}: {of - kept} of {of} are not finite and left out")


def _score(
    metric: str,
    domain: str,
    before: float | None,
    after: float | None,
    bounds: tuple[float, float] | None,
    count: int,
) -> JSON:
    low, high = bounds or (None, None)
    difference = None if before is None or after is None else after - before
    return {"metric": metric, "domain": domain, "before": before, "after": after, "difference": difference,
            "low": low, "high": high, "count": count}  # fmt: skip
