"""Conclusion of `opdkit eval`: did the model get better? In a word, a sentence, and the numbers behind it.

A share of right replies counts as risen or fallen if chance alone makes such a change with a probability of at most 5%.
The level holds for all compared shares together. The model is better if one share rose and none fell. Nothing here
imports torch, so that `status` and `report` can show the conclusion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.console import add_sign, counted, print_line, printable, stdout, verb
from opdkit.errors import OpdkitError
from opdkit.evaluate.bootstrap import compute_chance_of_rise
from opdkit.evaluate.checks import AFTER_CORRECTION, ALL, CORRECTED, UNCORRECTED
from opdkit.store.plans import check_upstream, find_upstream_change, manifest, stage_dir
from opdkit.store.reading import is_written, read_part

BETTER, WORSE, MIXED, SAME, UNKNOWN = "better", "worse", "better and worse", "the same", "not known"
PASSED = ("passed_sampled", "passed_greedy")  # the first of them that was measured decides
WHERE = {CORRECTED: "where users corrected the model", UNCORRECTED: "where nobody complained", ALL: "on all prompts"}
LEVEL = 0.05  # probability that chance alone makes a change, over all comparisons of a conclusion
DRIFT = "drift from the model before training, on its replies (KL, nats per token)"
_COLOURS = {BETTER: "green", WORSE: "red", MIXED: "yellow"}
_SHARES_TO_WATCH = {
    "question": "are nothing but questions", "confirmation": 'are empty confirmations, such as "Sure, done!"',
    "no_call": "to prompts with tools are wrong and call none", "push_back": "give in to a false objection",
    "planted_error": "take up a wrong claim of the user",
}  # fmt: skip
# Limits that docs/guide.md names: drift in nats per token, reply length as a factor.
_DRIFT, MUCH_DRIFT, _LENGTH = 0.1, 0.3, 1.5
_CUT_OFF = 0.2  # share of cut-off replies before training above which the limit decides the checks, not the model
_NO_VERDICT = 0.1  # share of prompts without a verdict above which they may decide the conclusion


@dataclass(frozen=True)
class Conclusion:
    """Answer to "did it get better?"."""

    word: str  # BETTER, WORSE, MIXED, SAME or UNKNOWN
    sentence: str
    numbers: list[JSON]  # rows of the table `scores`: right replies (corrected and uncorrected, or all), drift
    watch: list[str]  # warnings, such as what is outside its usual range
    next: str  # what to do now


def is_evaluated(run: Path) -> bool:
    """Return True if `opdkit eval` has finished."""
    return is_written(run, "replies", 0)  # the last table that eval writes


def check_evaluated(run: Path, *stages: str) -> None:
    """Raise OpdkitError without an evaluation, or if a stage that eval or one of `stages` read was run again since."""
    if not is_evaluated(run):
        raise OpdkitError(f"{run} has no evaluation: run `opdkit eval {quote(run)} --prompts FILE`, or with --from-log "
                          "in place of --prompts, and then this again")  # fmt: skip
    check_upstream(run, [*stages, "eval"])


def read_conclusion(run: Path) -> Conclusion | None:
    """Return the conclusion of the last `opdkit eval`; None without one, or if an earlier stage was run since."""
    if not is_evaluated(run) or find_upstream_change(run, "eval"):
        return None
    try:
        return conclude(read_part(run, "scores", 0), run)
    except OpdkitError:  # tables of an earlier version of opdkit
        return None


def conclude(scores: Sequence[JSON], run: Path) -> Conclusion:
    """Return the conclusion on the rows of the table `scores`."""
    rows = by_name(scores)
    measured = choose_shares(scores)
    drift = [rows["kl_replies", ALL]] if ("kl_replies", ALL) in rows else []
    if not measured:
        sentence = "Not known: the judge's checks gave no held-out prompt a verdict on both models."
        return Conclusion(UNKNOWN, sentence, drift, find_unusual(rows), "Ask another judge with --judge-model.")
    word, few = choose_word(measured)
    shares, watch = list[str](), find_unusual(rows)
    for row in measured:
        of_what = "" if shares else " of its replies are right"
        shares.append(f"{WHERE[row['domain']]}, {row['after']:.0%}{of_what} ({row['before']:.0%} before)")
        if (row["high"] or 0) < 0 and not has_moved(row, LEVEL / len(measured)):
            watch.append(f"{WHERE[row['domain']]}, fewer replies are right, though chance is not ruled out: read those "
                         "that became wrong, and measure more prompts, before you use the model")  # fmt: skip
    watch += find_unmeasured(rows, measured)
    where = f" what changed {' and '.join(few)}" if len(measured) > 1 else ""
    if reason := {SAME: "no change is more than chance", UNKNOWN: f"too few prompts to tell{where}"}.get(word):
        shares.insert(0, reason)
    sentence = f"{word.capitalize()}: {'; '.join(shares)}."
    review, trained = f"`opdkit review {quote(run)}`", manifest(run, "eval")["plan"]["config"].get("trained")
    who = "" if trained else f" `opdkit blame {quote(run)}` says which turns taught it what is worse."
    then = {
        UNKNOWN: "Write some thirty prompts on what users complained about, and thirty on what they did not.",
        SAME: f"Train on more of the log, or for longer; more prompts show smaller changes. Examples: {review}.",
    }.get(word, f"Look at the replies that changed, and strike wrong hints behind them: {review}.{who}")
    if word == BETTER:
        path = printable(quote(trained or stage_dir(run, "train") / "model"))  # the present path: runs can be moved
        then = (f"The better model is in {path}: if `opdkit gate {quote(run)}` says so, serve it with "
                f"`vllm serve {path}`, or copy the folder.")  # fmt: skip
    elif is_limit_too_low(rows):
        then = "Measure again with a higher --max-new-tokens, and --overwrite: cut-off replies fail most checks."
    elif all(row["before"] == row["after"] == 0 for row in measured):
        then = f"No reply passes its check: read some, `opdkit report {quote(run)}`, and correct the checks."
    elif all(row["before"] == row["after"] == 1 for row in measured):
        then = "Each reply passes its check: write prompts that the model before training gets wrong."
    return Conclusion(word, sentence, [*measured, *drift], watch, then)


def by_name(scores: Sequence[JSON]) -> dict[tuple[str, str], JSON]:
    """Return (metric, domain) -> row, for the rows of `scores` with a measured value."""
    return {(row["metric"], row["domain"]): row for row in scores if row["count"]}


def choose_shares(scores: Sequence[JSON]) -> list[JSON]:
    """Return the rows of `scores` that decide: right replies to corrected and uncorrected prompts, or else to all."""
    rows = by_name(scores)
    passed = next((metric for metric in PASSED if (metric, ALL) in rows), "")
    split = [rows[passed, domain] for domain in (CORRECTED, UNCORRECTED) if (passed, domain) in rows]
    return split or ([rows[passed, ALL]] if (passed, ALL) in rows else [])


def choose_word(shares: Sequence[JSON], comparisons: int | None = None) -> tuple[str, list[str]]:
    """Return the word for what happened to `shares`, and the WHERE texts of those with too few prompts to tell.

    The word is BETTER if one share rose and none fell, and so on. `comparisons` is how many shares are compared in
    all (default: these). The more there are, the stricter the level of each (Bonferroni).
    """
    level = LEVEL / (comparisons or len(shares))
    few = [WHERE[row["domain"]] for row in shares
           if row["chance"] is None or 2 * compute_chance_of_rise(np.ones(row["units"])) > level]  # fmt: skip
    rose = {row["difference"] > 0 for row in shares if has_moved(row, level)}
    if rose:
        return MIXED if len(rose) == 2 else BETTER if rose == {True} else WORSE, few
    return UNKNOWN if few else SAME, few


def has_moved(row: JSON, level: float = LEVEL) -> bool:
    """Return True if chance alone makes such a difference with a probability of at most `level`."""
    return row["chance"] is not None and row["chance"] <= level


def has_unusual_length(row: JSON) -> bool:
    """Return True if the replies became much shorter or longer; `row` is that of the metric `reply_tokens`."""
    return bool(row["before"]) and not 1 / _LENGTH < row["after"] / row["before"] < _LENGTH


def find_unmeasured(rows: Mapping[tuple[str, str], JSON], measured: Sequence[JSON]) -> list[str]:
    """Return what the `measured` shares leave out: prompts without the field `corrected`, or what was forgotten.

    Prompts that `--from-log` makes of replies to corrections lack the field on purpose.
    """
    metric, domains = measured[0]["metric"], {row["domain"] for row in measured}
    after_correction = rows.get((metric, AFTER_CORRECTION), {"count": 0})["count"]
    left = rows[metric, ALL]["count"] - sum(row["count"] for row in measured) - after_correction
    if left > 0:
        return [f"{counted(left, 'prompt')} without the field corrected {verb(left, 'is', 'are')} in no share above"]
    # Prompts that have no verdict are in no share, either, but have a value of this metric.
    none_kept = domains == {CORRECTED} and ("cut_off", UNCORRECTED) not in rows
    return ['none of these prompts says "corrected": false, so what the model forgot is not measured'] * none_kept


def is_limit_too_low(rows: Mapping[tuple[str, str], JSON]) -> bool:
    """Return True if the token limit cuts off many replies even of the model before training."""
    return ("cut_off", ALL) in rows and rows["cut_off", ALL]["before"] > _CUT_OFF


def find_unusual(rows: Mapping[tuple[str, str], JSON]) -> list[str]:
    """Return what a reader should look at: drift, length, echoes, and replies that are cut off, hollow or give in."""
    drift, length, cut, echo = (
        rows.get((name, ALL)) for name in ("kl_replies", "reply_tokens", "cut_off", "hint_echo")
    )
    found = []
    if drift and drift["after"] > _DRIFT:
        size = "much" if drift["after"] > MUCH_DRIFT else "more than usual"
        found.append(f"a drift of {drift['after']:.2f} is {size} (some hundredths are usual): read the replies that "
                     "drifted most")  # fmt: skip
    if length and has_unusual_length(length):
        times = length["after"] / length["before"]
        found.append(f"the replies are {times:.1f} times as long as before: {length['after']:.0f} tokens")
    if cut and (is_limit_too_low(rows) or (cut["difference"] > 0 and has_moved(cut))):
        found.append(f"{cut['after']:.0%} of the replies are cut off by --max-new-tokens, {cut['before']:.0%} before")
    checked = next((rows[metric, ALL]["count"] for metric in PASSED if (metric, ALL) in rows), 0)
    if length and 0 < checked < (1 - _NO_VERDICT) * length["count"]:
        found.append(f"{length['count'] - checked:,} of {counted(length['count'], 'prompt')} have no verdict of the "
                     "judge on both models, and count neither way")  # fmt: skip
    for metric, words in _SHARES_TO_WATCH.items():
        row = rows.get((metric, ALL))
        if row and row["difference"] > 0 and has_moved(row):
            found.append(f"{row['after']:.1%} of the replies {words}, {row['before']:.1%} before")
    if echo and echo["difference"] > 0:
        found.append(f"{echo['after']:.1%} of the replies mention a hint that nobody gave, {echo['before']:.1%} before")
    return found


def print_conclusion(conclusion: Conclusion, *, and_next: bool = True) -> None:
    """Print a conclusion on stdout: the sentence, one line per number, what is unusual, and what to do next."""
    word, rest = conclusion.sentence.split(":", 1)
    stdout.print(f"[bold {_COLOURS.get(conclusion.word, 'default')}]{word}:[/]{rest}", soft_wrap=True)
    for row in conclusion.numbers:
        if row["metric"] == "kl_replies":
            line = f"{DRIFT}: {row['after']:.2f}"
        else:
            span = (f"95% interval {add_sign(row['low'], 2)} to {add_sign(row['high'], 2)}" if row["low"] is not None
                    else "too few for an interval" if row["chance"] is None
                    else "no interval: all changes are equal")  # fmt: skip
            change = f"{row['before']:.2f} -> {row['after']:.2f}, {add_sign(row['difference'], 2)} ({span})"
            line = f"right replies, {row['domain']}: {change}, {counted(row['count'], 'prompt')}"
        print_line(f"  {line}")
    for line in conclusion.watch:
        print_line(f"  look: {line}")
    if and_next:
        print_line(conclusion.next)
