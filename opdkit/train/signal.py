"""What a training is made of, before it starts: which turns, what they are worth, and whether that is enough."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.config.train import TrainConfig
from opdkit.console import counted, printable, say, stdout, verb, warn, with_sign
from opdkit.errors import OpdkitError
from opdkit.store import part_count, read_arrow
from opdkit.store.turn_ids import logged_session_id
from opdkit.train.batches import Step, tokens_of
from opdkit.train.objective import Objective, group_normalised, overlong, terms_of, trained_positions
from opdkit.train.targets import Turn

NEAR_ZERO = 0.01  # nats: teacher and student that differ by less say the same
MANY = 0.1  # share of degenerate replies that is worth a warning
_CHUNK = 256  # turns looked at together
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class TrainingSet:
    """The turns of a training."""

    turns: list[Turn]
    phases: list[int]  # of each turn: the set of weights that it trains under
    strengths: list[float]  # of each turn: its mean absolute advantage, 0 where it has none
    advantages: dict[str, NDArray[np.float32]]  # reward and teacher: of every token that has one
    tokens: int  # trained positions
    scored: int  # turns before any was left out
    dropped: Counter[str]


# -- rewards --------------------------------------------------------------------------------------------------------


def shaped(turns: Sequence[Turn], config: TrainConfig, prompts: Mapping[str, NDArray[np.int32]]) -> list[Turn]:
    """The turns with what their rewards are worth: less the overlong deduction, then normalised among equal prompts.

    `prompts` (turn_id -> token ids) are only looked at when there is a group to normalise.
    """
    rewards = {
        turn.turn_id: turn.reward + overlong(int(turn.sampled.sum()), config.overlong_max, config.overlong_cache)
        for turn in turns
        if turn.reward is not None
    }
    if config.group_normalise != "off":
        groups = [prompts[turn_id].tobytes() for turn_id in rewards]
        values = group_normalised(list(rewards.values()), groups, keep_lone=config.group_normalise == "repeated")
        rewards = dict(zip(rewards, values, strict=True))
    return [replace(turn, advantage=rewards.get(turn.turn_id)) for turn in turns]


# -- what each turn is worth ----------------------------------------------------------------------------------------


def training_set(
    turns: Sequence[Turn], phases: Sequence[Objective], scored: int, dropped: Mapping[str, int]
) -> TrainingSet:
    """Each turn with its phase and its advantages; those without a token left after the filters are left out.

    A turn belongs to the last phase that can use it. Where the teacher speaks through a support, its advantage on the
    logged token stands for it here: it says as well where the two differ.
    """
    kept, kept_phases, strengths, dropped = [], [], [], Counter(dropped)
    advantages: dict[str, list[NDArray[np.float32]]] = {"reward": [], "teacher": []}
    trained = 0
    for phase, objective in enumerate(phases):
        mine = [turn for turn in turns if _phase(turn, phases) == phase]
        for start in range(0, len(mine), _CHUNK):
            chunk = mine[start : start + _CHUNK]
            counts, means = _survey(chunk, _on_logged_token(objective), advantages)
            for turn, count, mean in zip(chunk, counts, means, strict=True):
                if count:
                    kept.append(turn)
                    kept_phases.append(phase)
                    strengths.append(mean)
                    trained += count
                else:
                    dropped["every token skipped"] += 1
    gathered = {name: np.concatenate(some) for name, some in advantages.items() if some}
    return TrainingSet(kept, kept_phases, strengths, gathered, trained, scored, dropped)


def _phase(turn: Turn, phases: Sequence[Objective]) -> int:
    def usable(objective: Objective) -> bool:
        taught = turn.teacher_logprobs is not None and set(objective.weights) - {"reward"}
        return bool(taught) or ("reward" in objective.weights and turn.reward is not None)

    return max(phase for phase, objective in enumerate(phases) if usable(objective))


def _on_logged_token(objective: Objective) -> Objective:
    """The objective with all that the teacher says said on the logged token."""
    taught = sum(weight for name, weight in objective.weights.items() if name != "reward")
    weights = {"reward": objective.weights.get("reward", 0.0), "teacher": taught}
    return replace(objective, weights={n: w for n, w in weights.items() if w}, kl_coef=0.0, aggregation="token-mean")


def _survey(
    turns: Sequence[Turn], objective: Objective, advantages: dict[str, list[NDArray[np.float32]]]
) -> tuple[list[int], list[float]]:
    """Trained tokens and mean absolute advantage of each turn; adds the advantages of each source to `advantages`."""
    tokens = tokens_of(turns)
    terms = terms_of(objective, tokens)
    trained_N = trained_positions(terms)
    total_N = np.zeros(len(trained_N), np.float64)
    for term in terms:
        assert term.advantages is not None
        advantages[term.name].append(term.advantages[term.mask_N].numpy())
        total_N += (term.scale_N * term.advantages).numpy()
    turn_N, where_N = tokens.turn_N.numpy(), trained_N.numpy()
    counts = np.bincount(turn_N[where_N], minlength=len(turns))
    sums = np.bincount(turn_N, weights=np.abs(total_N) * where_N, minlength=len(turns))
    return counts.tolist(), (sums / np.maximum(counts, 1)).tolist()


# -- is it enough ---------------------------------------------------------------------------------------------------


def check_signal(data: TrainingSet, steps: Sequence[Step], config: TrainConfig, phases: Sequence[Objective]) -> None:
    """Say what trains on what, and warn where it is thin. Raises OpdkitError when there is nothing to learn from."""
    terms = {name for phase in phases for name in phase.weights}
    left_out = ", ".join(f"{reason} {n}" for reason, n in data.dropped.items()) or "none"
    if not data.turns:
        raise OpdkitError(f"no turn can train with --objective {config.objective} (left out: {left_out}). "
                          + _remedy(terms))  # fmt: skip
    hinted, rewards = _hinted(data), _rewards(data)
    if terms == {"reward"} and not any(rewards):
        raise OpdkitError(f"all {counted(len(rewards), 'reward')} {verb(len(rewards), 'is', 'are')} 0: there is "
                          "nothing to learn. " + _remedy(terms))  # fmt: skip
    say(f"{counted(len(data.turns), 'turn')}: {hinted} with a hint; rewards: {rewards.count(1)} +1, "
        f"{rewards.count(0)} 0, {rewards.count(-1)} -1; left out: {left_out}; "
        f"{counted(len(steps), 'optimizer step')}")  # fmt: skip
    say("; ".join(f"largest {what} {words}" for what, words in largest(data).items()))
    for warning in [*thin_signal(data, terms, config.batch_turns), *degenerate_replies(data, config.run)]:
        warn(warning)
    if len(steps) < 10:
        warn(f"{counted(len(steps), 'optimizer step')} will hardly move the model: more --epochs, a smaller "
             "--batch-turns, or more logs")  # fmt: skip


def thin_signal(data: TrainingSet, terms: set[str], batch_turns: int) -> list[str]:
    """What is too little or too uniform to learn much from, in words."""
    found = []
    hinted, rewards = _hinted(data), _rewards(data)
    if terms - {"reward"} and hinted < batch_turns:
        found.append(f"{counted(hinted, 'turn')} {verb(hinted, 'has', 'have')} a hint, fewer than one batch of "
                     f"{batch_turns}: a few replies decide what is "
                     "learned; a smaller --batch-turns, a stronger --judge or more logs")  # fmt: skip
    if "reward" in terms and len(rewards) > 1 and len(set(rewards)) == 1:
        found.append(f"all {len(rewards)} rewards are {with_sign(rewards[0], 0)}: nothing tells a good reply from a "
                     "bad one; look at some votes, and try a stronger --judge")  # fmt: skip
    for name, values in data.advantages.items():
        if len(values) and np.abs(values).max() < NEAR_ZERO:
            found.append(f"all {counted(len(values), f'{name} advantage')} {verb(len(values), 'is', 'are')} within "
                         f"{NEAR_ZERO} of 0: " + _NO_DIFFERENCE[name])  # fmt: skip
    return found


_NO_DIFFERENCE = {
    "reward": "the rewards cancel within their groups, or are 0",
    "teacher": "the hints change nothing for the teacher; look at some, and at --hint-placement of the teacher stage",
}


def degenerate_replies(data: TrainingSet, run: Path) -> list[str]:
    """A warning when many of the replies loop or were cut off, above all with a reward of +1: that would be learned."""
    cut = _cut_off(run)
    found = {"end in a loop": [t for t in data.turns if loops(t.response_ids[t.sampled])],
             "were cut off": [t for t in data.turns if t.written is None and t.turn_id in cut]}  # fmt: skip
    return [
        f"{len(some)} of {counted(len(data.turns), 'reply')} {what}, {sum(t.reward == 1 for t in some)} of them with "
        "reward +1: rewarded, they become a habit"
        for what, some in found.items()
        if len(some) >= MANY * len(data.turns) and some
    ]


def loops(ids: NDArray[np.int32], longest: int = 32) -> bool:
    """Whether a reply ends in a piece of at most `longest` tokens, four times or more and for 32 tokens or more.

    Two tokens may follow, white space and a stop token: a loop that ended is a loop.
    """
    return any(_repeats(ids[: len(ids) - after], longest) for after in range(min(3, len(ids))))


def _repeats(ids: NDArray[np.int32], longest: int) -> bool:
    for period in range(1, longest + 1):
        tail = ids[-max(4 * period, 32) :]
        if len(tail) >= max(4 * period, 32) and bool((tail[period:] == tail[:-period]).all()):
            return True
    return False


def _cut_off(run: Path) -> set[str]:
    rows = [row for part in range(part_count(run, "extract"))
            for row in read_arrow(run, "turns", part, ["turn_id", "finish_reason"]).to_pylist()]  # fmt: skip
    return {row["turn_id"] for row in rows if is_cut_off(row["finish_reason"])}


def _hinted(data: TrainingSet) -> int:
    return sum(turn.teacher_logprobs is not None for turn in data.turns)


def _rewards(data: TrainingSet) -> list[int]:
    return [turn.reward for turn in data.turns if turn.reward is not None]


def _remedy(terms: set[str]) -> str:
    if terms == {"reward"}:
        return ("It learns from rewards: try a stronger --judge or more --votes, or train on the hints with "
                "--objective opd.")  # fmt: skip
    if "reward" in terms:
        return "It learns from hints and rewards: try a stronger --judge or more --votes."
    return ("It learns from hints: see in the closing lines of judge and teacher whether there were none or whether "
            "they were dropped, try a stronger --judge, or train on the rewards with --objective binary.")  # fmt: skip


# -- --dry-run ------------------------------------------------------------------------------------------------------


def describe(data: TrainingSet, steps: Sequence[Step]) -> None:
    """The composition of the training set and the number of steps, on stdout."""
    kinds = Counter((t.teacher_logprobs is not None, t.reward is not None) for t in data.turns)
    rewards = Counter(_rewards(data))
    lines = [
        ("turns scored", f"{data.scored:,}"),
        *((f"  left out: {reason}", f"{n:,}") for reason, n in data.dropped.most_common()),
        ("turns to train on", f"{len(data.turns):,}"),
        ("  written by the teacher", f"{sum(t.written is not None for t in data.turns):,}"),
        ("  hint and reward", f"{kinds[True, True]:,}"),
        ("  hint alone", f"{kinds[True, False]:,}"),
        ("  reward alone", f"{kinds[False, True]:,}"),
        *((f"  reward {with_sign(value, 0)}", f"{rewards[value]:,}") for value in (1, 0, -1)),
        *((f"largest {what}", words) for what, words in largest(data).items()),
        ("tokens in an epoch, prompts too", f"{sum(map(len, data.turns)):,}"),
        ("tokens trained in an epoch", f"{data.tokens:,}"),
        *((f"{name} advantages", _quantiles(values)) for name, values in data.advantages.items()),
        ("optimizer steps", f"{len(steps):,}"),
    ]
    for name, value in lines:
        stdout.print(printable(f"{name:<32} {value}"), markup=False, soft_wrap=True)


def largest(data: TrainingSet) -> dict[str, str]:
    """The session and the source, by its name in the ids, that most of the turns are from, with their share."""
    sessions = [logged_session_id(turn.session_id) for turn in data.turns]
    found = {"session": Counter(sessions), "source": Counter(session.partition(":")[0] for session in sessions)}
    return {what: f"{name}: {counted(n, 'turn')}, {n / len(data.turns):.1%}"
            for what, counts in found.items() for name, n in counts.most_common(1)}  # fmt: skip


def _quantiles(values: NDArray[np.float32]) -> str:
    cuts = zip(_QUANTILES, np.quantile(values, _QUANTILES), strict=True) if len(values) else ()
    return counted(len(values), "token") + "".join(f", {q:.0%} {with_sign(float(cut), 3)}" for q, cut in cuts)
