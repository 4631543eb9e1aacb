"""Comparison of trainings: which one replies better to the same held-out prompts, by how much, and what each cost.

The scores come from what `opdkit eval` stored. Differences between two trainings are paired: they are taken prompt by
prompt, and the interval resamples the prompts, as eval does for before and after.
"""

import difflib
import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.markup import escape
from rich.text import Text

from opdkit.config.fields import JSON
from opdkit.console import counted, make_plain_table, printable, stdout
from opdkit.evaluate.checks import ALL, HeldOutPrompt
from opdkit.evaluate.conclusion import (
    BETTER,
    DRIFT,
    MIXED,
    SAME,
    UNKNOWN,
    WHERE,
    WORSE,
    by_name,
    choose_shares,
    choose_word,
    find_unusual,
)
from opdkit.evaluate.replies import Reply
from opdkit.evaluate.scores import MODELS, RARE, UNSEEN, make_reply_scores, print_scores
from opdkit.store.plans import manifest
from opdkit.store.reading import is_written, read_part
from opdkit.train.best_state import find_best

_REVERSED = {BETTER: WORSE, WORSE: BETTER}
_WORDS = {BETTER: "better than", MIXED: "better in one respect and worse in another than", WORSE: "worse than",
          SAME: "measurably no different from", UNKNOWN: "compared on too few prompts with"}  # fmt: skip
# Fact about a training -> its label in the printed table, and the format of its number.
_FACTS = {
    "steps": ("optimizer steps", ","), "tokens_read": ("tokens read", ","), "seconds": ("seconds", ",.1f"),
    "first_loss": ("loss, first step", ".3f"), "least_loss": ("loss, least", ".3f"), "last_loss": ("loss, last", ".3f"),
    "first_score": ("validation score before", ".2f"), "best_score": ("validation score, best", ".2f"),
    "best_step": ("  after step", ","), "last_score": ("validation score, last", ".2f"),
    "drift": (DRIFT, ".2f"), "reply_tokens": ("reply length (tokens)", ".1f"),
}  # fmt: skip


class Side(NamedTuple):
    """Training in a comparison: its name, its run, and the replies of its model to the held-out prompts."""

    name: str
    run: Path
    replies: list[Reply]


@dataclass(frozen=True)
class Comparison:
    """Answer to "which training is better?"; printed, what `opdkit compare` prints."""

    sentence: str
    scores: dict[str, list[JSON]]  # per training but the first: rows as in `scores`, the first training as "before"
    trainings: list[JSON]  # per training: the options that differ, and _FACTS
    replies: list[JSON]  # per prompt with different greedy replies: the replies of all trainings
    watch: list[str]  # what is unusual about each training, beside the model before it

    def __repr__(self) -> str:
        with stdout.capture() as printed:
            print_comparison(self)
        return Text.from_ansi(printed.get()).plain

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def compare_trainings(runs: Mapping[str, Path], prompts: Mapping[str, HeldOutPrompt], seed: int) -> Comparison:
    """Compare two or more trainings (name -> run). Differences are relative to the first.

    `prompts` (by id) are the prompts that all of them were evaluated on.
    """
    stored = ("model", "sample", "finish_reason", "passed", "hint_echo", "hollow", "called")
    sides = [
        Side(name, run, [
            Reply(prompts[row["prompt_id"]], text=row["reply"], seen=row["reply"], sequence=None,
                  **{column: row[column] for column in stored})
            for row in read_part(run, "replies", 0) if row["model"] == "after" and not row["probe"]
        ]) for name, run in runs.items()
    ]  # fmt: skip
    pairs = {(a.name, b.name): score_pair(a, b, seed) for a, b in combinations(sides, 2)}
    first, *others = runs
    trainings = [describe_training(side) for side in sides]
    if len({one.pop("validated", None) for one in trainings} - {None}) > 1:  # scores on other prompts say nothing
        trainings = [one | {name: None for name in one if name.endswith("_score")} for one in trainings]
    known = [own for training in trainings if (own := training["options"])]
    differing = [name for name in known[0] if any(own.get(name) != known[0][name] for own in known)] if known else []
    for training in trainings:
        training["options"] = {name: training["options"].get(name) for name in differing}
    scores = {name: pairs[first, name] for name in others}
    unusual = {name: find_unusual(by_name(read_part(run, "scores", 0))) for name, run in runs.items()}
    watch = [f"{name}: {line}" for name, lines in unusual.items() for line in lines]
    return Comparison(conclude_pairs(list(runs), pairs), scores, trainings, find_replies(sides), watch)


def score_pair(first: Side, other: Side, seed: int) -> list[JSON]:
    """Return rows like those of `scores`, with `first` as "before" and `other` as "after".

    They lack the reply length, since token ids are not stored, and the RARE and UNSEEN metrics that never happened.
    """
    sides = zip(MODELS, (first, other), strict=True)
    replies = [replace(reply, model=model) for model, side in sides for reply in side.replies]
    scores = make_reply_scores(replies, seed)
    happens = {row["metric"] for row in scores if row["before"] or row["after"]}
    return [row for row in scores if row["metric"] in happens or row["metric"] not in (*RARE, *UNSEEN)]


def conclude_pairs(names: Sequence[str], pairs: Mapping[tuple[str, str], Sequence[JSON]]) -> str:
    """Return one sentence: which training is better than which, and their shares of right replies.

    `pairs` holds the scores of every pair, in the order of `names`. The training that is better than the most others
    comes first; ties go to the training with more right replies.
    """
    shares: dict[str, dict[str, float]] = {name: {} for name in names}  # training -> domain -> share of right replies
    words: dict[tuple[str, str], str] = {}
    deciding = {pair: choose_shares(scores) for pair, scores in pairs.items()}
    comparisons = sum(map(len, deciding.values()))
    for (a, b), rows in deciding.items():
        if not rows:
            return f"Not known: the judge's checks gave no held-out prompt a verdict on both {a} and {b}."
        words[b, a], _ = choose_word(rows, comparisons)
        words[a, b] = _REVERSED.get(words[b, a], words[b, a])
        for name, side in ((a, "before"), (b, "after")):
            shares[name] |= {row["domain"]: row[side] for row in rows}
    wins = {name: sum(words[name, other] == BETTER for other in names if other != name) for name in names}
    leader, *others = sorted(names, key=lambda name: (-wins[name], -fmean(shares[name].values())))
    kinds = {word: found for word in _WORDS if (found := [name for name in others if words[leader, name] == word])}
    answer = f"{leader} is " + ", ".join(f"{_WORDS[word]} {' and '.join(found)}" for word, found in kinds.items())
    if list(kinds) == [SAME]:
        answer = f"No measurable difference between {' and '.join([leader, *others])}"
    elif list(kinds) == [UNKNOWN]:
        answer = "Not known which is better, there are too few prompts to tell"
    texts: list[str] = []
    for domain in shares[leader]:
        verb, unit = ("in", "") if texts else ("is right in", " of its replies")
        values = [f"{name} in {shares[name][domain]:.0%}" for name in others if domain in shares[name]]
        texts.append(", ".join([f"{WHERE[domain]}, {leader} {verb} {shares[leader][domain]:.0%}{unit}", *values]))
    return f"{answer}: {'; '.join(texts)}."


def describe_training(side: Side) -> JSON:
    """Return the options of a training, its _FACTS, and under `validated` the turns with a hint that it validated on.

    If `opdkit train` did not write the measured model (`eval --trained`), only the facts from eval are returned.
    """
    stored = {row["metric"]: row["after"] for row in read_part(side.run, "scores", 0) if row["domain"] == ALL}
    facts: JSON = {"training": side.name, "run": str(side.run), "options": {}}
    facts |= {"drift": stored.get("kl_replies"), "reply_tokens": stored.get("reply_tokens")}
    if manifest(side.run, "eval")["plan"]["config"].get("trained") or not is_written(side.run, "metrics", 0):
        return facts
    steps = read_part(side.run, "metrics", 0)
    measured = read_part(side.run, "validations", 0) if is_written(side.run, "validations", 0) else []
    if measured:
        kept = find_best(measured)
        facts |= {"first_score": measured[0]["score"], "last_score": measured[-1]["score"],
                  "best_score": kept["score"], "best_step": kept["step"],
                  "validated": tuple(reply["turn_id"] for reply in measured[0]["hint_kls"])}  # fmt: skip
    losses = [row["loss"] for row in steps]
    return facts | {
        "options": manifest(side.run, "train")["plan"]["config"], "steps": len(steps),
        "tokens_read": sum(row["tokens_read"] for row in (*steps, *measured)),
        "seconds": sum(row["seconds"] for row in steps),
        "first_loss": losses[0], "least_loss": min(losses), "last_loss": losses[-1],
    }  # fmt: skip


def find_replies(sides: Sequence[Side]) -> list[JSON]:
    """Return the prompts to which the greedy replies of the trainings differ.

    Prompts on which the verdicts differ come first. Within both groups, the domains take turns.
    """
    ranked, seen = list[tuple[bool, int, JSON]](), Counter[tuple[str, bool]]()
    for replies in zip(*([reply for reply in side.replies if not reply.sample] for side in sides), strict=True):
        if len({reply.text for reply in replies}) == 1:
            continue
        prompt, is_alike = replies[0].prompt, len({reply.passed for reply in replies}) == 1
        row = {"prompt_id": prompt.id, "domain": prompt.domain, "prompt": prompt.messages[-1]["content"],
               "replies": {side.name: {"reply": reply.text, "passed": reply.passed}
                           for side, reply in zip(sides, replies, strict=True)}}  # fmt: skip
        ranked.append((is_alike, seen[prompt.domain, is_alike], row))
        seen[prompt.domain, is_alike] += 1
    return [row for *_, row in sorted(ranked, key=lambda one: one[:2])]


def print_comparison(comparison: Comparison, shown_replies: int = 3) -> None:
    """Print a comparison on stdout: the sentence, the scores, the trainings side by side, and replies that differ."""
    stdout.print(printable(comparison.sentence), style="bold", markup=False)
    for line in comparison.watch:
        stdout.print(f"  look: {printable(line)}", markup=False)
    stdout.print()
    for name, scores in comparison.scores.items():
        print_scores(scores, [], (comparison.trainings[0]["training"], name))
    table = make_plain_table("", show_header=False)
    for _ in comparison.trainings:
        table.add_column(justify="right", overflow="fold")
    for cells in make_training_rows(comparison.trainings):
        table.add_row(*(escape(printable(cell)) for cell in cells))
    stdout.print("", table)
    count = len(comparison.replies)
    shown = f", {min(count, shown_replies)} of them here" if count else ""
    stdout.print(f"\nThe greedy replies to {counted(count, 'prompt')} differ{shown}.", markup=False)
    for row in comparison.replies[:shown_replies]:
        stdout.print(f"\n{printable(row['domain'])}: {printable(row['prompt'] or '')}", markup=False)
        first = next(iter(row["replies"].values()))["reply"]
        for name, own in row["replies"].items():
            mark = {True: "right", False: "wrong", None: "no verdict"}[own["passed"]]
            stdout.print(Text(f"  {name} ({mark}): ") + mark_changes(printable(first), printable(own["reply"])))


def mark_changes(old: str, new: str) -> Text:
    """Return `new` with words added to `old` as {+...+} and words removed from `old` as [-...-], like wdiff."""
    a, b = (re.split(r"(\s+)", text) for text in (old, new))
    marked = Text()
    # Without autojunk the diff is smaller, but for repetitive texts its time grows with the cube of their length.
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=len(b) > 400)
    for kind, start, end, first, last in matcher.get_opcodes():
        gone, added = "".join(a[start:end]), "".join(b[first:last])
        if kind == "equal":
            marked.append(added)
            continue
        if gone:
            marked.append(f"[-{gone}-]", "red")
        if added:
            marked.append(f"{{+{added}+}}", "green")
    return marked


def make_training_rows(trainings: Sequence[JSON]) -> list[list[str]]:
    """Return table rows with one column per training: first the options that differ, then what it did and cost."""
    rows = [["", *(one["training"] for one in trainings)]]
    for name in trainings[0]["options"]:
        rows.append([f"--{name.replace('_', '-')}", *(str(one["options"][name]) for one in trainings)])
    for name, (words, form) in _FACTS.items():
        if any(one.get(name) is not None for one in trainings):
            rows.append([words, *("-" if one.get(name) is None else format(one[name], form) for one in trainings)])
    return rows
