"""Training set: the replies to train on, with their shaped rewards, phases and strengths."""

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
from opdkit.train.targets import Prompts, Reply, load_prompts, load_targets
from opdkit.train.validation_turns import choose_turns

FOR_VALIDATION = "kept for validation"
OVER_LIMIT = "over --max-turns-per-session"
SKIPPED = "every token skipped"
_CHUNK = 256  # replies whose tensors are in memory at once
Advantages = dict[str, NDArray[np.float32]]  # "reward" and "teacher" -> one value per token that has it
Kept = tuple[list[Reply], Counter[str]]  # replies in their order, and how many others were dropped, by reason


@dataclass(frozen=True)
class TrainingSet:
    """Replies of a training, and statistics of their signal."""

    replies: list[Reply]
    phases: list[int]  # per reply: index of its objective
    strengths: list[float]  # per reply: its mean absolute advantage, 0 if it has none
    advantages: Advantages
    tokens: int  # number of trained positions
    scored: int  # number of replies before any was dropped
    dropped: Counter[str]
    validation: list[Reply] = field(default_factory=list)  # kept out of training, unless there are too few
    epochs: int = 1  # passes over the replies


def load_training_set(config: TrainConfig, objectives: Sequence[Objective], chat: Chat) -> tuple[TrainingSet, Prompts]:
    """Return the training set, and the prompts if the normalisation of rewards needed them, else {}."""
    terms = {name for objective in objectives for name in objective.weights}
    supports = "any" if config.anchor_weight or config.step_limit else "none"
    scored = load_targets(config.run, config.limit, supports if terms.isdisjoint(SUPPORTED) else "needed")
    filters = parse_session_filters(config.filter)
    rejected = {session.session_id: reason for session in (read_logged_fields(config.run) if filters else ())
                if (reason := find_rejection(filters, session, session.format)) is not None}  # fmt: skip
    left, filtered = drop_replies(scored, lambda reply: rejected.get(reply.session_id))
    replies, dropped = select_replies(left, terms, config.holdout, anchored=config.anchor_weight > 0)
    replies, over_limit = limit_turns_per_session(replies, config.max_turns_per_session, config.seed, terms)
    inside = [reply for reply in left if not is_held_out(reply.session_id, config.holdout)]
    alone, trained_on = choose_turns(inside, config.validate, choose_epochs(replies, config),
                                     learns_hints=terms != {"reward"})  # fmt: skip
    apart = {conversation_id(reply.session_id) for reply in alone}
    replies, kept_out = drop_replies(
        replies, lambda r: FOR_VALIDATION if conversation_id(r.session_id) in apart else None
    )
    prompts = {} if config.group_normalise == "off" else load_prompts(config.run, replies, chat)
    replies = shape_rewards(replies, config, prompts)
    data = build_training_set(replies, objectives, len(scored), filtered + dropped + kept_out + over_limit)
    return replace(data, validation=trained_on + alone, epochs=choose_epochs(data.replies, config)), prompts


def choose_epochs(replies: Sequence[Reply], config: TrainConfig) -> int:
    """Return the number of passes over `replies`: `--epochs`, or by default the result of `fit_epochs`."""
    sessions = list_batch_sessions(replies, config)
    return config.epochs or fit_epochs(count_steps(sessions, len(replies), config.batch_turns))


def list_batch_sessions(replies: Sequence[Reply], config: TrainConfig) -> list[str] | None:
    """Return the session of each reply if steps take whole sessions; None if they take single replies."""
    return [reply.branch_root for reply in replies] if config.batch_by == "session" else None


def drop_replies(replies: Sequence[Reply], find_reason: Callable[[Reply], str | None]) -> Kept:
    """Keep the replies without a reason to drop them."""
    reasons = [find_reason(reply) for reply in replies]
    kept = [reply for reply, reason in zip(replies, reasons, strict=True) if reason is None]
    return kept, Counter(reason for reason in reasons if reason is not None)


def select_replies(replies: Sequence[Reply], terms: Collection[str], holdout: float, *, anchored: bool = False) -> Kept:
    """Keep the replies that at least one of the objective's terms can use.

    With `anchored`, replies that only the anchor can use are kept too, if there are others: alone they teach nothing.
    """
    anchored = anchored and any(_drop_reason(reply, terms, holdout) is None for reply in replies)
    return drop_replies(replies, lambda reply: _drop_reason(reply, terms, holdout, anchored=anchored))


def _drop_reason(reply: Reply, terms: Collection[str], holdout: float, *, anchored: bool = False) -> str | None:
    """Return why no term (nor, with `anchored`, the anchor) can use a reply, or None if one of them can."""
    if is_held_out(reply.session_id, holdout):
        return "held out"
    if not reply.sampled.any():
        return "nothing sampled"
    lacks = {"no reward": reply.reward is None} if "reward" in terms else {}  # inputs of the terms
    if set(terms) - {"reward"}:
        lacks["no hint"] = not reply.is_hinted
    if all(lacks.values()) and not (anchored and reply.is_anchor):
        return " and ".join(lacks)
    support = [reply.support.old, reply.support.teacher] if reply.support else []
    numbers = [reply.old_logprobs, reply.teacher_logprobs, reply.behavior_logprobs, *support]
    if not all(np.isfinite(x[reply.sampled]).all() for x in numbers if x is not None):
        return "log-prob not finite"
    return None


def limit_turns_per_session(replies: Sequence[Reply], limit: int | None, seed: int, terms: Collection[str]) -> Kept:
    """Keep the replies of at most `limit` turns of each conversation.

    Turns that one of the objective's `terms` can use come before those that only the anchor can use. The draw depends
    only on (seed, turn id): not on the position, which the user of a session could choose, nor on other sessions. All
    replies to a turn are kept or dropped together. All branches of a conversation count together, and so do replies of
    `opdkit rollout` to its prompts.
    """
    if limit is None:
        return list(replies), Counter()
    sessions: dict[str, set[str]] = {}
    for reply in replies:
        sessions.setdefault(conversation_id(reply.session_id), set()).add(reply.turn_id)
    taught = {reply.turn_id for reply in replies if _drop_reason(reply, terms, holdout=0.0) is None}
    kept: set[str] = set()
    for turn_ids in sessions.values():
        drawn = sorted(turn_ids, key=lambda i: (i not in taught, stable_hash(f"max-turns-per-session:{seed}:{i}")))
        kept.update(drawn[:limit])
    return drop_replies(replies, lambda reply: None if reply.turn_id in kept else OVER_LIMIT)


def shape_rewards(replies: Sequence[Reply], config: TrainConfig, prompts: Prompts) -> list[Reply]:
    """Return the replies with their shaped rewards: reward plus overlong penalty, normalised over equal prompts.

    `prompts` are only read for the normalisation (--group-normalise).
    """
    shape = (config.overlong_max, config.overlong_cache, config.overlong_shape)
    penalties = {reply.turn_id: penalise_overlong(int(reply.sampled.sum()), *shape) for reply in replies
                 if reply.reward is not None and config.overlong_max}  # fmt: skip
    rewards = {reply.turn_id: reply.reward + penalties.get(reply.turn_id, 0.0) for reply in replies
               if reply.reward is not None}  # fmt: skip
    if config.group_normalise != "off":
        groups = [prompts[turn_id].tobytes() for turn_id in rewards]
        keep_lone, divide = config.group_normalise == "repeated", config.group_scale == "std"
        values = normalise_in_groups(list(rewards.values()), groups, keep_lone=keep_lone, divide=divide)
        rewards = dict(zip(rewards, values, strict=True))
    # A reply that the teacher or a person wrote has the turn id of the logged reply, but no reward.
    return [reply if reply.reward is None else
            replace(reply, shaped_reward=rewards[reply.turn_id], length_penalty=penalties.get(reply.turn_id))
            for reply in replies]  # fmt: skip


def build_training_set(
    replies: Sequence[Reply], objectives: Sequence[Objective], scored: int, dropped: Mapping[str, int]
) -> TrainingSet:
    """Assign replies to phases and measure their advantages. Drop replies whose tokens are all filtered out.

    A reply belongs to the last phase that can use it, or to the first phase if only the anchor can use it.
    """
    kept, phases, strengths, measured, tokens = list[Reply](), list[int](), list[float](), list[Advantages](), 0
    members: list[list[Reply]] = [[] for _ in objectives]
    for reply in replies:
        usable = {"reward"} if reply.reward is not None else set()
        if reply.is_hinted:
            usable |= set(TERMS) - {"reward"}
        phase = max((p for p, objective in enumerate(objectives) if usable & set(objective.weights)), default=0)
        members[phase].append(reply)
    for phase, objective in enumerate(objectives):
        counts, means, advantages = _measure(members[phase], objective)
        trained = [i for i, count in enumerate(counts) if count]
        kept += [members[phase][i] for i in trained]
        phases += [phase] * len(trained)
        strengths += [means[i] for i in trained]
        measured += advantages
        tokens += sum(counts)
    gathered = {name: np.concatenate(parts) for name in SAMPLED if (parts := [m[name] for m in measured if name in m])}
    reasons = Counter(dropped) + Counter({SKIPPED: len(replies) - len(kept)})
    return TrainingSet(kept, phases, strengths, gathered, tokens, scored, reasons)


def _measure(replies: Sequence[Reply], objective: Objective) -> tuple[list[int], list[float], list[Advantages]]:
    """Return the number of trained tokens and the mean absolute advantage per reply, and all advantages, in chunks.

    Terms over a support are measured on the logged token alone, which also shows how far teacher and student differ.
    """
    teacher_weight = sum(weight for name, weight in objective.weights.items() if name != "reward")
    weights = {"reward": objective.weights.get("reward", 0.0), "teacher": teacher_weight}
    on_logged_token = replace(objective, weights={n: w for n, w in weights.items() if w}, kl_coef=0.0,
                              aggregation="token-mean")  # fmt: skip
    counts, means, chunks = list[int](), list[float](), list[Advantages]()
    for start in range(0, len(replies), _CHUNK):
        chunk, advantages = replies[start : start + _CHUNK], Advantages()
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
