"""Training set: the turns to train on, with their shaped rewards, phases and strengths."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from opdkit.chat.template import Chat
from opdkit.config.conditions import find_rejection, parse_session_filters
from opdkit.config.train import TrainConfig, fit_epochs
from opdkit.store.logged_fields import read_logged_fields
from opdkit.store.stable_hash import stable_hash
from opdkit.store.turn_ids import conversation_id, is_held_out
from opdkit.train.batches import collect_tokens, count_steps
from opdkit.train.objective.advantages import normalise_in_groups, penalise_overlong
from opdkit.train.objective.terms import SAMPLED, SUPPORTED, TERMS, Objective, find_trained, make_terms
from opdkit.train.targets import Prompts, Turn, load_prompts, load_turns
from opdkit.train.validation_turns import choose_turns

FOR_VALIDATION = "kept for validation"
OVER_LIMIT = "over --max-turns-per-session"
SKIPPED = "every token skipped"
_CHUNK = 256  # turns whose tensors are in memory at once
Advantages = dict[str, NDArray[np.float32]]  # "reward" and "teacher" -> one value per token that has it


@dataclass(frozen=True)
class TrainingSet:
    """Turns of a training, and statistics of their signal."""

    turns: list[Turn]
    phases: list[int]  # per turn: index of its objective
    strengths: list[float]  # per turn: its mean absolute advantage, 0 if it has none
    advantages: Advantages
    tokens: int  # number of trained positions
    scored: int  # number of turns before any was dropped
    dropped: Counter[str]
    validation: list[Turn] = field(default_factory=list)  # kept out of training
    epochs: int = 1  # passes over the turns


def load_training_set(config: TrainConfig, objectives: Sequence[Objective], chat: Chat) -> tuple[TrainingSet, Prompts]:
    """Return the training set, and the prompts if the normalisation of rewards needed them, else {}."""
    terms = {name for objective in objectives for name in objective.weights}
    supports = "any" if config.anchor_weight or config.step_limit else "none"
    scored = load_turns(config.run, config.limit, supports if terms.isdisjoint(SUPPORTED) else "needed")
    filters = parse_session_filters(config.filter)
    rejected = {session.session_id: reason for session in (read_logged_fields(config.run) if filters else ())
                if (reason := find_rejection(filters, session, session.format)) is not None}  # fmt: skip
    left, filtered = drop_turns(scored, lambda turn: rejected.get(turn.session_id))
    turns, dropped = select_turns(left, terms, config.holdout, anchored=config.anchor_weight > 0)
    turns, over_limit = limit_turns_per_session(turns, config.max_turns_per_session, config.seed, terms)
    inside = [turn for turn in left if not is_held_out(turn.session_id, config.holdout)]
    validation = choose_turns(inside, config.validate, choose_epochs(turns, config))
    apart = {conversation_id(turn.session_id) for turn in validation}
    turns, kept_out = drop_turns(turns, lambda t: FOR_VALIDATION if conversation_id(t.session_id) in apart else None)
    prompts = {} if config.group_normalise == "off" else load_prompts(config.run, turns, chat)
    turns = shape_rewards(turns, config, prompts)
    data = build_training_set(turns, objectives, len(scored), filtered + dropped + kept_out + over_limit)
    return replace(data, validation=validation, epochs=choose_epochs(data.turns, config)), prompts


def choose_epochs(turns: Sequence[Turn], config: TrainConfig) -> int:
    """Return the number of passes over `turns`: `--epochs`, or by default the result of `fit_epochs`."""
    return config.epochs or fit_epochs(count_steps(list_batch_sessions(turns, config), len(turns), config.batch_turns))


def list_batch_sessions(turns: Sequence[Turn], config: TrainConfig) -> list[str] | None:
    """Return the session of each turn if steps take whole sessions; None if they take single turns."""
    return [turn.branch_root for turn in turns] if config.batch_by == "session" else None


def drop_turns(turns: Sequence[Turn], find_reason: Callable[[Turn], str | None]) -> tuple[list[Turn], Counter[str]]:
    """Return the turns without a reason to drop them, in order, and the number of dropped turns by reason."""
    reasons = [find_reason(turn) for turn in turns]
    kept = [turn for turn, reason in zip(turns, reasons, strict=True) if reason is None]
    return kept, Counter(reason for reason in reasons if reason is not None)


def select_turns(
    turns: Sequence[Turn], terms: Collection[str], holdout: float, *, anchored: bool = False
) -> tuple[list[Turn], Counter[str]]:
    """Return the turns that at least one of the objective's terms can use, and the number of dropped turns by reason.

    With `anchored`, turns that only the anchor can use are kept too, if there are others: alone they teach nothing.
    """
    anchored = anchored and any(_drop_reason(turn, terms, holdout) is None for turn in turns)
    return drop_turns(turns, lambda turn: _drop_reason(turn, terms, holdout, anchored=anchored))


def _drop_reason(turn: Turn, terms: Collection[str], holdout: float, *, anchored: bool = False) -> str | None:
    """Return why no term (nor, with `anchored`, the anchor) can use a turn, or None if one of them can."""
    if is_held_out(turn.session_id, holdout):
        return "held out"
    if not turn.sampled.any():
        return "nothing sampled"
    lacks = {"no reward": turn.reward is None} if "reward" in terms else {}  # inputs of the terms
    if set(terms) - {"reward"}:
        lacks["no hint"] = turn.teacher_logprobs is None
    if all(lacks.values()) and not (anchored and turn.is_anchor):
        return " and ".join(lacks)
    support = [turn.support.old, turn.support.teacher] if turn.support else []
    numbers = [turn.old_logprobs, turn.teacher_logprobs, turn.behavior_logprobs, *support]
    if not all(np.isfinite(x[turn.sampled]).all() for x in numbers if x is not None):
        return "log-prob not finite"
    return None


def limit_turns_per_session(
    turns: Sequence[Turn], limit: int | None, seed: int, terms: Collection[str]
) -> tuple[list[Turn], Counter[str]]:
    """Return at most `limit` turns of each conversation, in order, and the number of dropped turns.

    Turns that one of the objective's `terms` can use come before those that only the anchor can use. The draw depends
    only on (seed, turn id): not on the position, which the user of a session could choose, nor on other sessions. All
    replies that the teacher sampled for a turn are kept or dropped together with it. All branches of a conversation
    count together, and so do replies of `opdkit rollout` to its prompts.
    """
    if limit is None:
        return list(turns), Counter()
    sessions: dict[str, set[str]] = {}
    for turn in turns:
        sessions.setdefault(conversation_id(turn.session_id), set()).add(turn.turn_id)
    taught = {turn.turn_id for turn in turns if _drop_reason(turn, terms, holdout=0.0) is None}
    kept: set[str] = set()
    for turn_ids in sessions.values():
        drawn = sorted(turn_ids, key=lambda i: (i not in taught, stable_hash(f"max-turns-per-session:{seed}:{i}")))
        kept.update(drawn[:limit])
    return drop_turns(turns, lambda turn: None if turn.turn_id in kept else OVER_LIMIT)


def shape_rewards(turns: Sequence[Turn], config: TrainConfig, prompts: Mapping[str, NDArray[np.int32]]) -> list[Turn]:
    """Return the turns with their shaped rewards: reward plus overlong penalty, normalised over turns of equal prompts.

    `prompts` (turn_id -> token ids) are only read for the normalisation (--group-normalise).
    """
    shape = (config.overlong_max, config.overlong_cache, config.overlong_shape)
    penalties = {turn.turn_id: penalise_overlong(int(turn.sampled.sum()), *shape) for turn in turns
                 if turn.reward is not None and config.overlong_max}  # fmt: skip
    rewards = {turn.turn_id: turn.reward + penalties.get(turn.turn_id, 0.0) for turn in turns
               if turn.reward is not None}  # fmt: skip
    if config.group_normalise != "off":
        groups = [prompts[turn_id].tobytes() for turn_id in rewards]
        keep_lone, divide = config.group_normalise == "repeated", config.group_scale == "std"
        values = normalise_in_groups(list(rewards.values()), groups, keep_lone=keep_lone, divide=divide)
        rewards = dict(zip(rewards, values, strict=True))
    # A reply that the teacher or a person wrote has the turn id of the logged reply, but no reward.
    return [turn if turn.reward is None else
            replace(turn, shaped_reward=rewards[turn.turn_id], length_penalty=penalties.get(turn.turn_id))
            for turn in turns]  # fmt: skip


def build_training_set(
    turns: Sequence[Turn], objectives: Sequence[Objective], scored: int, dropped: Mapping[str, int]
) -> TrainingSet:
    """Assign turns to phases and measure their advantages. Drop turns whose tokens are all filtered out.

    A turn belongs to the last phase that can use it, or to the first phase if only the anchor can use it.
    """
    kept, phases, strengths, measured, tokens = list[Turn](), list[int](), list[float](), list[Advantages](), 0
    members: list[list[Turn]] = [[] for _ in objectives]
    for turn in turns:
        usable = {"reward"} if turn.reward is not None else set()
        if turn.teacher_logprobs is not None:
            usable |= set(TERMS) - {"reward"}
        phase = max((p for p, objective in enumerate(objectives) if usable & set(objective.weights)), default=0)
        members[phase].append(turn)
    for phase, objective in enumerate(objectives):
        counts, means, advantages = _measure(members[phase], objective)
        trained = [i for i, count in enumerate(counts) if count]
        kept += [members[phase][i] for i in trained]
        phases += [phase] * len(trained)
        strengths += [means[i] for i in trained]
        measured += advantages
        tokens += sum(counts)
    gathered = {name: np.concatenate(parts) for name in SAMPLED if (parts := [m[name] for m in measured if name in m])}
    reasons = Counter(dropped) + Counter({SKIPPED: len(turns) - len(kept)})
    return TrainingSet(kept, phases, strengths, gathered, tokens, scored, reasons)


def _measure(turns: Sequence[Turn], objective: Objective) -> tuple[list[int], list[float], list[Advantages]]:
    """Return the number of trained tokens and the mean absolute advantage per turn, and all advantages, in chunks.

    Terms over a support are measured on the logged token alone, which also shows how far teacher and student differ.
    """
    teacher_weight = sum(weight for name, weight in objective.weights.items() if name != "reward")
    weights = {"reward": objective.weights.get("reward", 0.0), "teacher": teacher_weight}
    on_logged_token = replace(objective, weights={n: w for n, w in weights.items() if w}, kl_coef=0.0,
                              aggregation="token-mean")  # fmt: skip
    counts, means, chunks = list[int](), list[float](), list[Advantages]()
    for start in range(0, len(turns), _CHUNK):
        chunk, advantages = turns[start : start + _CHUNK], Advantages()
        tokens = collect_tokens(chunk)
        terms = make_terms(on_logged_token, tokens)
        trained_N = find_trained(terms)
        total_N = np.zeros(len(trained_N), np.float64)
        for term in terms:
            if term.advantages is not None:  # the anchor has none
                advantages[term.name] = term.advantages[term.mask_N].numpy()
                total_N += (term.scale_N * term.advantages).numpy()
        turn_N, where_N = tokens.turn_N.numpy(), trained_N.numpy()
        counts_T = np.bincount(turn_N[where_N], minlength=len(chunk))
        sums_T = np.bincount(turn_N, weights=np.abs(total_N) * where_N, minlength=len(chunk))
        counts += counts_T.tolist()
        means += (sums_T / np.maximum(counts_T, 1)).tolist()
        chunks.append(advantages)
    return counts, means, chunks
