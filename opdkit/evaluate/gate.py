"""Decision whether the trained model may replace the model before it. Pure: from rows that `opdkit eval` stored.

Shares of right or faulty replies are compared unit by unit. A unit is one prompt, or all prompts of one session of the
log, since training changes their replies together. The fall d of a unit is the sum over its prompts of the share before
minus the share after. The model is worse if

    z = (sum d - s) / sqrt(max(sum d^2, noise)), with s = sum d^2 / sum |d|,

reaches a limit; see `bootstrap.score_rise`. The noise is the variance of sum d between two evaluations of the model
before training. It is the sum over the prompts of 2 p (1 - p) / (k - 1), where p is the share among k sampled replies.

The limit is a quantile of the standard normal distribution, corrected by Bonferroni. Over all comparisons together, a
model that is nowhere worse is stopped by chance with a probability of at most FALSE_STOPS.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from opdkit.chat.markup import has_broken_call, visible
from opdkit.config.fields import JSON
from opdkit.config.gate import CHECKS
from opdkit.console import add_sign, counted, escape_markdown, format_markdown_table
from opdkit.evaluate.bootstrap import FEWEST, score_rise
from opdkit.evaluate.checks import ALL, UNCORRECTED, choose_unit
from opdkit.evaluate.conclusion import MUCH_DRIFT, PASSED, by_name, has_moved, has_unusual_length
from opdkit.evaluate.probes import CONFIRMATION, QUESTION
from opdkit.judge.flags import loops

Shares = NDArray[np.float64]  # [N, 4]: per prompt the share before, the share after, the noise, and its unit's index
Sums = NDArray[np.float64]  # [U, 4]: per unit the sums of the first three over its prompts, and the number of prompts

FALSE_STOPS, POWER = 0.025, 0.95
# In the first sentence, or the one after an apology. If the sentence goes on with an answer, it is no refusal.
_REFUSAL = re.compile(
    r"\s*(?:[^.!?\n]*\b(?:sorry|apologi[sz]e)\b[^.!?\n]*[.!]\s+)?[^.!?\n]*?"
    r"(?<!\bas )(?<!\bif )(?<!\bsince )(?<!\bwhile )(?<!\bthough )\b(?:i|we)(?:(?: am| are|['’](?:m|re))? "
    r"(?:can(?:['’]t| ?not)(?: and will not)?|(?:won['’]t|will not)(?: be able to)?"
    r"|(?:not able|unable|not allowed|not going) to) (?:\w+ )?"
    r"(?:help(?! but)|assist|do (?:that|this)|provide|answer|comply|share|discuss|fulfill?|create|generate|write"
    r"|give(?! up)|engage)|(?: will|['’]ll)? (?:must|have to|need to) (?:\w+ )?decline)\b"
    r"(?![^.!?\n]*(?:: *\S|:$|\bhere(?: is| are|['’]s)\b|,? so (?:i|we)\b))",
    re.IGNORECASE,
)
_FIRST_CHARS = 200  # characters at the start of a reply that are searched for a refusal


@dataclass(frozen=True)
class Decision:
    """Answer to "may the model be shipped?", with the numbers behind it."""

    ship: bool
    sentence: str
    reasons: list[str]  # why not to ship; empty: ship
    domains: list[JSON]  # shares of right replies: all prompts, uncorrected prompts, then each domain
    checks: list[JSON]  # of CHECKS: drift and length if measured, and faults that occurred
    comparisons: int

    def markdown(self) -> str:
        """Return the decision as Markdown, for a pull request."""
        marks = {True: "**worse**", False: "not worse", None: "too few prompts"}
        rows = [["domain", "prompts", "before", "after", "change", "95% interval", "noise", "would find", ""]]
        checks = [["check", "before", "after", ""]]
        for row in (*self.domains, *self.checks):
            before, after, noise, finds = (
                "-" if row.get(name) is None else f"{row[name]:.3f}" for name in ("before", "after", "noise", "finds")
            )
            if "check" in row:
                checks.append([CHECKS[row["check"]], before, after, "**failed**" if row["worse"] else "passed"])
                continue
            span = "-" if row["low"] is None else f"{add_sign(row['low'], 3)} to {add_sign(row['high'], 3)}"
            change = "-" if row["difference"] is None else add_sign(row["difference"], 3)
            rows.append([escape_markdown(row["domain"]), f"{row['prompts']:,}", before, after, change, span, noise,
                         finds, marks[row["worse"]]])  # fmt: skip
        notes = (
            f"worse: by more than chance. At most {FALSE_STOPS:.1%} of the models that are no worse are stopped, "
            f"counting all {counted(self.comparisons, 'comparison')}. noise: 95 of 100 times, two evaluations of the "
            "model before training differ by less. would find: the smallest loss that is found 95 of 100 times."
        )
        word, rest = self.sentence.split(":", 1)
        return "\n\n".join([f"**{word}:**{escape_markdown(rest)}", *map(format_markdown_table, (rows, checks)), notes])


def decide(
    replies: pa.Table, scores: Sequence[JSON], max_loss: float | None = None, allowed: Sequence[str] = ()
) -> Decision:
    """Return the decision on the table `replies` and the rows of `scores`.

    `max_loss`: do not ship if a domain could hide a loss of this size. `allowed`: the CHECKS that may fail.
    """
    domain_N, measures = measure_shares(replies)
    passed = measures.pop("passed")
    known, names = ~np.isnan(passed).any(1), np.unique(domain_N).tolist()
    shares = {ALL: sum_units(passed[known])} if len(names) > 1 else {}  # a single domain is everything
    shares |= {domain: sum_units(passed[known & (domain_N == domain)]) for domain in names}
    faults = {name: sums for name, rows in measures.items()
              if len(sums := sum_units(rows)) >= FEWEST and sums[:, :2].any()}  # fmt: skip
    rows = by_name(scores)
    metric = next((metric for metric in PASSED if (metric, ALL) in rows), "")
    uncorrected = next((row for row in scores if (row["metric"], row["domain"]) == (metric, UNCORRECTED)), None)
    # Pooled, they show a loss that several small domains share. A row with all values of another would count twice.
    if any(row | {"domain": UNCORRECTED} == uncorrected for row in scores if row["domain"] in shares):
        uncorrected = None
    is_compared = uncorrected is not None and uncorrected["chance"] is not None
    comparisons = sum(len(sums) >= FEWEST for sums in shares.values()) + is_compared + len(faults)
    level = FALSE_STOPS / max(1, comparisons)
    limit = NormalDist().inv_cdf(1 - level)
    domains: list[JSON] = []
    for domain, sums in shares.items():
        stored = rows.get((metric, domain), {})
        domains.append({"domain": domain, **compare_shares(sums, limit),
                        "low": stored.get("low"), "high": stored.get("high")})  # fmt: skip
    if uncorrected is not None:
        worse = has_moved(uncorrected, 2 * level) and uncorrected["difference"] < 0 if is_compared else None
        domains.insert(1, uncorrected | {"prompts": uncorrected["count"], "noise": None, "finds": None, "worse": worse})
    checks = compare_drift_and_length(scores)
    checks += [{"check": name} | compare_shares(sums, limit, better=-1) for name, sums in faults.items()]
    return conclude_gate(domains, checks, comparisons, max_loss, allowed)


def compare_drift_and_length(scores: Sequence[JSON]) -> list[JSON]:
    """Return the checks of drift and length, if measured: on the uncorrected prompts, or on all if there are none.

    On corrected prompts the replies are meant to change.
    """
    rows, checks = by_name(scores), list[JSON]()
    where = UNCORRECTED if ("kl_replies", UNCORRECTED) in rows else ALL
    if any((row["metric"], row["domain"]) == ("kl_replies", where) for row in scores):
        drift = rows.get(("kl_replies", where), {}).get("after")  # None: no value is finite
        checks.append({"check": "drift", "before": None, "after": drift, "worse": drift is None or drift > MUCH_DRIFT})
    if length := rows.get(("reply_tokens", where)):
        changed = has_unusual_length(length) and has_moved(length)
        checks.append({"check": "length", "before": length["before"], "after": length["after"], "worse": changed})
    return checks


def conclude_gate(
    domains: list[JSON], checks: list[JSON], comparisons: int, max_loss: float | None, allowed: Sequence[str]
) -> Decision:
    """Return the decision that follows from all comparisons: the sentence, and each reason not to ship."""
    own = [row for row in domains if row["domain"] not in (ALL, UNCORRECTED)] or domains
    reasons = [f"in {row['domain']}, right replies fell from {row['before']:.1%} to {row['after']:.1%}"
               for row in domains if row["worse"]]  # fmt: skip
    if all(row["worse"] is None for row in domains):
        reasons.append("right replies cannot be compared: too few prompts have a verdict on both models")
    elif not any(row["before"] or row["after"] for row in domains):
        reasons.append("right replies cannot be compared: no reply of either model is right")
    elif max_loss is not None:
        reasons += [f"in {row['domain']}, a loss of {max_loss:g} could go unseen: {counted(row['prompts'], 'prompt')}"
                    for row in own if (row["finds"] or 2) > max_loss and has_room_to_fall(row, max_loss)]  # fmt: skip
    for row in checks:
        if row["worse"] and row["check"] not in allowed:
            before = "" if row["before"] is None else f", {row['before']:.3g} before"
            after = "not finite" if row["after"] is None else f"{row['after']:.3g}"
            reasons.append(f"{CHECKS[row['check']]}: {after}{before}")
    if reasons:
        return Decision(False, f"Do not ship: {'; '.join(reasons)}.", reasons, domains, checks, comparisons)
    can_fall = [row for row in own if has_room_to_fall(row, row["finds"] or 1)] or own
    least_known = max(can_fall, key=lambda row: row["finds"] or 2)
    failed = ", ".join(CHECKS[row["check"]] for row in checks if row["worse"])
    others = f"failed, but allowed: {failed}" if failed else "no other check failed"
    prompts = counted(least_known["prompts"], "prompt")
    found = (f"{prompts} with a verdict, too few to find any loss" if least_known["finds"] is None else
             f"its {prompts} would show a loss of {least_known['finds']:.3f} or more")  # fmt: skip
    weakest = f"The weakest evidence is for {least_known['domain']}: {found}."
    fallen = [row for row in domains if "chance" in row and has_moved(row) and row["difference"] < 0]
    alone = [f"Taken alone, the fall where nobody complained is beyond chance ({row['before']:.1%} to "
             f"{row['after']:.1%}), and `opdkit eval` reports it." for row in fallen]  # fmt: skip
    sentence = " ".join([f"Ship: no domain was found to be worse; {others}.", weakest, *alone])
    return Decision(True, sentence, reasons, domains, checks, comparisons)


def has_room_to_fall(row: JSON, loss: float) -> bool:
    """Return True if the share before was at least `loss`, so that it can fall by it, or if nothing is known of it."""
    return row["worse"] is None or row["before"] >= loss


def choose_measured_rows(replies: pa.Table) -> pa.Table:
    """Return the sampled replies of a table, or the greedy ones if there are no others, without replies to probes.

    Probes are made from prompts that the model before got right, which was partly luck.
    """
    replies = replies.filter(pc.is_null(replies["probe"]))
    is_sampled = pc.greater(replies["sample"], 0)
    return replies.filter(is_sampled) if pc.any(is_sampled).as_py() else replies


def measure_shares(replies: pa.Table) -> tuple[NDArray[np.str_], dict[str, Shares]]:
    """Return the domain of each prompt, and the Shares by name: "passed" (NaN without a verdict) and each fault.

    They are shares of the replies of `choose_measured_rows`. Those of a fault leave out prompts without a value: for
    `no_call`, those without tools or without a verdict. A right reply without a call is no fault.
    """
    measured = choose_measured_rows(replies)
    texts = measured["reply"].combine_chunks().dictionary_encode()
    shown = [find_faults(text) for text in texts.dictionary.to_pylist()]
    columns = {"passed": measured["passed"], "cut_off": pc.equal(measured["finish_reason"], "length"),
               "hint_echo": pc.is_valid(measured["hint_echo"]),
               "no_call": pc.and_(pc.invert(measured["called"]), pc.invert(measured["passed"]))}  # fmt: skip
    columns |= {kind: pc.equal(pc.fill_null(measured["hollow"], ""), kind) for kind in (QUESTION, CONFIRMATION)}
    columns |= {name: pa.array([name in faults for faults in shown], pa.bool_()).take(texts.indices)
                for name in ("refusal", "loop", "broken_call")}  # fmt: skip
    keys = ["domain", "prompt_id", "session", "model"]
    table = pa.table({key: measured[key] for key in keys} | columns).group_by(keys, use_threads=False)
    means = table.aggregate([(name, how) for name in columns for how in ("mean", "count")])
    sides: dict[str, dict[str, JSON]] = {}
    for row in means.to_pylist():
        sides.setdefault(row["prompt_id"], {})[row["model"]] = row
    before, after = zip(*((both["before"], both["after"]) for both in sides.values() if len(both) == 2), strict=True)
    numbers: dict[Hashable, int] = {}
    unit_N = [numbers.setdefault(choose_unit(row["prompt_id"], row["session"]), len(numbers)) for row in before]
    shares = dict[str, Shares]()
    for name in columns:
        read = ((before, f"{name}_mean"), (after, f"{name}_mean"), (before, f"{name}_count"))
        old, new, draws = (np.array([row[column] for row in side], np.float64) for side, column in read)
        rows = np.stack([old, new, 2 * old * (1 - old) / np.maximum(1, draws - 1), unit_N], 1)
        shares[name] = rows if name == "passed" else rows[~np.isnan(rows).any(1)]
    return np.array([row["domain"] for row in before]), shares


def sum_units(shares_N4: Shares) -> Sums:
    """Return, for each unit, the sums over its prompts and the number of its prompts."""
    *shares, unit_N = shares_N4.T
    unit_N = np.unique(unit_N, return_inverse=True)[1]
    return np.stack([np.bincount(unit_N, one_N) for one_N in (*shares, np.ones(len(unit_N)))], 1)


def compare_shares(sums_U4: Sums, limit: float, better: int = 1) -> JSON:
    """Return the row of a comparison. `noise`, `finds` and `worse` are null for fewer than FEWEST units.

    `prompts`: number of prompts with a value. `before`, `after`, `difference`: means over the prompts. `worse`: z of a
    fall (with `better` -1, of a rise) reaches `limit`. `noise`: 95% of the differences between two evaluations of the
    model before are smaller; null if its replies to a prompt never differ or are not sampled. `finds`: the value of
    `find_least_loss`.
    """
    before_U, after_U, noise_U, prompts_U = sums_U4.T
    count = int(prompts_U.sum())
    row: JSON = {"prompts": count} | dict.fromkeys(("before", "after", "difference", "noise", "finds", "worse"))
    if not count:
        return row
    before, after, noise, unit_size = ((x.sum() / count).item() for x in (before_U, after_U, noise_U, prompts_U**2))
    row |= {"before": before, "after": after, "difference": after - before}
    if len(sums_U4) < FEWEST:
        return row
    variance = max(((after_U - before_U - prompts_U * (after - before)) ** 2).sum() / count, noise)
    return row | {"noise": 1.96 * (noise / count) ** 0.5 or None,
                  "finds": find_least_loss(count, unit_size, variance, limit),
                  "worse": score_rise(better * (before_U - after_U), noise_U.sum()) >= limit}  # fmt: skip


def find_least_loss(count: int, unit_size: float, variance: float, limit: float) -> float | None:
    """Return the smallest loss of a share whose z reaches `limit` with probability POWER; None without one.

    It assumes the kind of loss that is hardest to find: with probability `loss`, all replies to a unit fail. `count`:
    prompts. `unit_size`: number of prompts in the unit of a prompt, in the mean over prompts. `variance`: measured
    variance of sum d, per prompt; the failures add unit_size * loss * (1 - loss) to it.
    """
    losses = np.arange(0.005, 1.0001, 0.005)
    deviations = np.sqrt((variance + unit_size * losses * (1 - losses)) / count)
    # With probability POWER, a loss of at least `measured` is seen. Then sum d = count * measured, sum d^2 = count *
    # (variance + unit_size * measured), and s = unit_size.
    measured = losses - NormalDist().inv_cdf(POWER) * deviations
    z = (count * measured - unit_size) / np.sqrt(count * (variance + unit_size * measured.clip(1e-9)))
    found = losses[z >= limit]
    return float(found[0]) if len(found) else None


def find_faults(text: str) -> set[str]:
    """Return which of refusal, loop and broken_call a reply shows. Refusals are found in English only."""
    answer = visible(text, thinking=False)
    signs = {"refusal": bool(_REFUSAL.match(answer[:_FIRST_CHARS])), "loop": loops(text),
             "broken_call": has_broken_call(answer)}  # fmt: skip
    return {name for name, shown in signs.items() if shown}
