"""Signal in a training set: warnings before training if there is little, and the composition for --dry-run."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.config.judge import WARNINGS
from opdkit.config.train import FEWEST, TrainConfig
from opdkit.console import add_sign, counted, print_facts, say, verb, warn
from opdkit.errors import NothingLearnedError
from opdkit.model.loops import ends_in_loop
from opdkit.store.plans import judge_kind, manifest
from opdkit.store.reading import read_all
from opdkit.store.tables import EDIT, WRITTEN_BY
from opdkit.store.turn_ids import logged_session_id, prompt_turn_id
from opdkit.train.batches import Step
from opdkit.train.objective.terms import Objective
from opdkit.train.targets import Reply
from opdkit.train.training_set import FOR_VALIDATION, SKIPPED, TrainingSet

NEAR_ZERO = 0.01  # nats: advantages that are all smaller get a warning
FEW_HINTS = 6  # prompts with a hint in a validation; fewer are said to be few
MANY = 0.1  # share of degenerate replies from which there is a warning
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def check_signal(data: TrainingSet, steps: list[Step], config: TrainConfig, objectives: Sequence[Objective]) -> None:
    """Say how many replies train, and warn if the signal is weak. Raises NothingLearnedError if there is none."""
    terms = {name for objective in objectives for name in objective.weights}
    dropped = ", ".join(f"{reason} {n}" for reason, n in data.dropped.items()) or "none"
    hinted, rewards = _read_signal(data)
    if not (hinted or (rewards and "reward" in terms)):
        problem = f"no turn can train with --objective {config.objective} (dropped: {dropped})"
        raise NothingLearnedError(f"{problem}. {_choose_remedy(data, terms)}")
    # Without a reward or a hint, only rounding would move the model: the search for a rate would raise the rate for it.
    is_rewarded = any(reply.shaped_reward or reply.length_penalty for reply in data.replies)
    if not is_rewarded and not (hinted and terms - {"reward"}):
        zero = verb(len(rewards), "is 0", "are 0") if not any(rewards) else "cancel within their groups"
        problem = f"all {counted(len(rewards), 'reward')} {zero}"
        raise NothingLearnedError(f"{problem}: there is nothing to learn. {_choose_remedy(data, terms)}")
    steps_and_epochs = f"{counted(len(steps), 'optimizer step')} in {counted(data.epochs, 'epoch')}"
    say(f"{describe_signal(data)}; dropped: {dropped}; {steps_and_epochs}")
    if steps and config.warmup_steps >= len(steps):
        warn(f"--warmup-steps {config.warmup_steps} is as long as the training, {counted(len(steps), 'step')}: the "
             "learning rate hardly reaches its peak")  # fmt: skip
    if data.validation:
        trained = {prompt_turn_id(reply.turn_id) for reply in data.replies}
        hints, others = ({prompt_turn_id(reply.turn_id) for reply in data.validation if reply.is_hinted == is_hinted}
                         for is_hinted in (True, False))  # fmt: skip
        also_with, also_without = (" (trained on, too)" if kind & trained else "" for kind in (hints, others))
        few = "; few have a hint, so compare with the model before, `opdkit eval`" if 0 < len(hints) < FEW_HINTS else ""
        say(f"validation: {counted(len(hints), 'prompt')} with a hint{also_with}, {len(others):,} without{also_without}"
            f"{few}")  # fmt: skip
        if not others:
            warn(f"nothing measures what is forgotten: that needs at least {FEWEST} turns without a complaint. Compare "
                 "with the model before, `opdkit eval`")  # fmt: skip
    if config.validate and not data.validation:
        warn(f"no validation, so the model is written even if it became worse: that needs at least {FEWEST} turns with "
             "a hint (in a log without hints: without a complaint)")  # fmt: skip
    scored = manifest(config.run, "teacher")["plan"]["config"]
    if config.anchor_weight and (not scored["top_k"] or scored["top_k_of"] == "teacher"):
        say("replies without a hint have no anchor: it needs the likeliest tokens that `opdkit teacher` stores by "
            "default (`--top-k 20 --top-k-of student`)")  # fmt: skip
    say("; ".join(f"largest {kind} {text}" for kind, text in find_largest_shares(data).items()))
    if (judge := judge_kind(config.run)) in WARNINGS:
        warn(f"judged by --judge {judge}, which is not a model: the trained model can be worse than the one before")
    warn(*find_weak_signal(data, terms, config.batch_turns), *find_degenerate_replies(data, config.run))


def _choose_remedy(data: TrainingSet, terms: set[str]) -> str:
    """Return advice, in sentences, for a training set from which nothing can be learned."""
    if terms == {"reward"}:
        remedy = "It learns from rewards: try a stronger --judge, more --votes, or --objective opd to learn from hints."
    elif "reward" in terms:
        remedy = "It learns from hints and rewards: try a stronger --judge or more --votes."
    else:
        remedy = ("It learns from hints: the summaries of judge and teacher count hints and dropped turns. Try a "
                  "stronger --judge, or --objective binary to learn from rewards.")  # fmt: skip
    if data.dropped[SKIPPED]:
        remedy = f"--negative-below, --min-advantage and --skip-first skip tokens. {remedy}"
    return f"--validate 0 trains on what is {FOR_VALIDATION}, too. {remedy}" if data.dropped[FOR_VALIDATION] else remedy


def find_weak_signal(data: TrainingSet, terms: set[str], batch_turns: int) -> list[str]:
    """Return warnings about too few hints, equal rewards, and advantages near 0."""
    warnings = []
    hinted, rewards = _read_signal(data)
    if terms - {"reward"} and not hinted:
        warnings.append("no reply has a hint: rewards alone train, and no validation shows whether the model improved")
    elif terms - {"reward"} and hinted < batch_turns:
        warnings.append(f"{counted(hinted, 'reply')} {verb(hinted, 'has', 'have')} a hint, fewer than one batch of "
                        f"{batch_turns}: a few replies decide what is learned; use a smaller --batch-turns, a stronger "
                        "--judge or more logs")  # fmt: skip
    if "reward" in terms and len(rewards) > 1 and len(set(rewards)) == 1:
        warnings.append(f"all {len(rewards)} rewards are {add_sign(rewards[0], 0)}: they do not tell good replies "
                        "from bad ones; look at some votes, and try a stronger --judge")  # fmt: skip
    if "reward" in terms and not rewards:
        warnings.append("no turn has a reward: the hints alone train")
    reasons = {
        "reward": "the rewards cancel within their groups, or are 0",
        "teacher": "the hints hardly change the teacher; look at some, and at the teacher stage's --hint-placement",
    }
    for name, values in data.advantages.items():
        if len(values) and np.abs(values).max() < NEAR_ZERO:
            warnings.append(f"all {counted(len(values), f'{name} advantage')} {verb(len(values), 'is', 'are')} within "
                            f"{NEAR_ZERO} of 0: {reasons[name]}")  # fmt: skip
    return warnings


def find_degenerate_replies(data: TrainingSet, run: Path) -> list[str]:
    """Return warnings if many replies loop or were cut off, since a reward of +1 would reinforce that."""
    rows = read_all(run, "turns", ["turn_id", "finish_reason"])
    cut_off = {row["turn_id"] for row in rows if is_cut_off(row["finish_reason"])}
    replies = data.replies
    degenerate = {
        "end in a loop": [reply for reply in replies if ends_in_loop(reply.response_ids[reply.sampled])],
        "were cut off": [reply for reply in replies if reply.written is None and reply.turn_id in cut_off],
    }
    return [
        f"{len(own)} of {counted(len(replies), 'reply')} {kind}, {sum(reply.reward == 1 for reply in own)} of them "
        "with reward +1, which reinforces them"
        for kind, own in degenerate.items()
        if len(own) >= MANY * len(replies) and own
    ]


def _read_signal(data: TrainingSet) -> tuple[int, list[int]]:
    """Return the number of replies with a hint, and all rewards."""
    hinted = sum(reply.is_hinted for reply in data.replies)
    return hinted, [reply.reward for reply in data.replies if reply.reward is not None]


def count_written(replies: Sequence[Reply]) -> dict[str, int]:
    """Return the numbers of replies by the teacher and by people (edits); the latter only if there are any."""
    edited = sum(reply.written == EDIT for reply in replies)
    counts = zip(WRITTEN_BY, (sum(reply.written is not None for reply in replies) - edited, edited), strict=True)
    return {by: n for by, n in counts if n or by == WRITTEN_BY[0]}


def describe_signal(data: TrainingSet) -> str:
    """Return the numbers of replies, sessions, hints and rewards as text."""
    hinted, rewards = _read_signal(data)
    sessions = {logged_session_id(reply.session_id) for reply in data.replies}
    written = "".join(f"{n:,} {by}, " for by, n in count_written(data.replies).items())
    return (
        f"{counted(len(data.replies), 'reply')} in {counted(len(sessions), 'session')}: {written}{hinted} with a hint; "
        f"rewards: {rewards.count(1)} +1, {rewards.count(0)} 0, {rewards.count(-1)} -1"
    )


def print_composition(data: TrainingSet, cycles: Sequence[Sequence[Step]]) -> None:
    """Print the composition of the training set and the number of steps on stdout."""
    kinds = Counter((reply.is_hinted, reply.reward is not None) for reply in data.replies)
    rewards = Counter(_read_signal(data)[1])
    lines = [
        ("replies scored", f"{data.scored:,}"),
        *((f"  dropped: {reason}", f"{n:,}") for reason, n in data.dropped.most_common()),
        ("replies to train on", f"{len(data.replies):,}"),
        *((f"  {by}", f"{n:,}") for by, n in count_written(data.replies).items()),
        ("  hint and reward", f"{kinds[True, True]:,}"),
        ("  hint alone", f"{kinds[True, False]:,}"),
        ("  reward alone" if "reward" in data.advantages else "  held by the anchor", f"{kinds[False, True]:,}"),
        *((f"  reward {add_sign(value, 0)}", f"{rewards[value]:,}") for value in (1, 0, -1)),
        *((f"largest {kind}", text) for kind, text in find_largest_shares(data).items()),
        ("tokens per epoch, with prompts", f"{sum(map(len, data.replies)):,}"),
        ("tokens trained per epoch", f"{data.tokens:,}"),
    ]
    for name, values in data.advantages.items():
        cuts = zip(_QUANTILES, np.quantile(values, _QUANTILES), strict=True) if len(values) else ()
        quantiles = "".join(f", {q:.0%} {add_sign(float(cut), 3)}" for q, cut in cuts)
        lines.append((f"{name} advantages", counted(len(values), "token") + quantiles))
    lines += [("epochs", f"{data.epochs:,}"), ("optimizer steps", f"{len(cycles[0]):,}")]
    if len(cycles) > 1:
        lines.append(("  if much is left to learn", f"{sum(map(len, cycles)):,}"))
    print_facts(lines)


def find_largest_shares(data: TrainingSet) -> dict[str, str]:
    """Return, as text, the session and the source (the prefix of its id) with the most replies, and their shares."""
    shares = dict[str, str]()
    sessions = [logged_session_id(reply.session_id) for reply in data.replies]
    for kind, names in {"session": sessions, "source": [name.partition(":")[0] for name in sessions]}.items():
        ((name, n),) = Counter(names).most_common(1)
        written = sum(reply.written is not None for reply, own in zip(data.replies, names, strict=True) if own == name)
        replies = f"{counted(n - written, 'logged reply')}, {counted(written, 'written reply')}"
        shares[kind] = f"{name}: {replies}, {n / len(names):.1%}"
    return shares
