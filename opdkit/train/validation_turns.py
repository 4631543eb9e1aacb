"""Turns on whose prompts the student is validated, and hints that may explain its replies: pure functions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch

from opdkit.config.train import FEWEST
from opdkit.store.stable_hash import stable_hash
from opdkit.store.turn_ids import conversation_id, prompt_turn_id
from opdkit.train.objective.losses import divergence
from opdkit.train.targets import Reply

T = TypeVar("T")

# Share of the training's tokens that validation may read and write. Not counted: the tokens of the hints themselves,
# second replies, and changed replies that are read again with other hints.
COST = 0.06
CHECKS = 3  # least number of measurements during a training; the extra one before it costs half
MOST_SHARE = 0.1  # largest share of the turns of a kind (with a hint, without) to keep out for their prompts
MOST_KEPT_OUT = 0.2  # largest share of all turns, and of all hints, in sessions that are kept out of training
MOST_UNCRITICISED = 0.25  # largest share of the turns in sessions without a complaint to keep out
HINTS = 8  # number of the log's hints to try: a changed reply that one of them explains is a wanted change
OVERSAMPLE = 8  # candidates drawn per item that is taken; the most different ones are taken


@dataclass(frozen=True)
class Pool:
    """Logged turns of one kind (with a hint or without) whose prompts may be used for validation."""

    turns: Sequence[Reply]  # in the order in which they are considered
    hinted: bool
    max_turns: int  # most turns to choose, if their sessions are kept out of training
    max_session_turns: float  # most turns in all sessions kept out of training so far, this pool's included
    oversampled: int  # the first this many turns are reordered, the most different first

    @property
    def mean_cost(self) -> float:
        """Mean validation cost (tokens) of the `oversampled` first turns."""
        costs = [estimate_validation_cost(turn) for turn in self.turns[: self.oversampled]]
        return sum(costs) / len(costs)


def choose_turns(
    replies: Sequence[Reply], max_prompts: int, epochs: int, *, learns_hints: bool = True
) -> tuple[list[Reply], list[Reply]]:
    """Return the logged turns on whose prompts to validate: at most `max_prompts` with a hint, and as many without.

    The first list has turns whose sessions are kept out of training as a whole. They are drawn by a hash of their ids,
    and have at most MOST_KEPT_OUT of all turns and of all hints; a session that is too large for that is skipped. If
    these are fewer than FEWEST turns of a kind (with a hint, without), turns in the second list stand in for them,
    which may be trained on, too. A kind with fewer than FEWEST turns is left out; if the kind with hints is, both lists
    are empty. If the objective does not learn from hints (`learns_hints`), the kind with hints never has stand-ins.
    Turns whose replies differ come first. Turns without a hint come from sessions without a complaint, if these are
    enough. In other sessions, the hints probably also ask for a change of the replies that nobody complained about.
    CHECKS measurements on the turns cost at most COST of the training's tokens, unless FEWEST turns of each kind
    already cost more.
    """
    logged = [reply for reply in replies if reply.written is None and reply.sampled.any()]
    session_turns = Counter(conversation_id(turn.session_id) for turn in logged)
    session_hints = Counter(conversation_id(turn.session_id) for turn in logged if turn.is_hinted)
    pools = make_pools(replies, logged, max_prompts, learns_hints) if max_prompts else ()
    tokens = COST * estimate_tokens_to_train(replies, epochs) / (CHECKS + 0.5)
    kept_out, trained_on = list[Reply](), list[Reply]()
    for n, pool in enumerate(pools):  # equally many of both kinds; the second uses the tokens that the first leaves
        budget = tokens * pool.mean_cost / sum(each.mean_cost for each in pools[n:])
        taken = take_turns(pool, budget, kept_out, session_turns, session_hints) if pool.max_turns >= FEWEST else []
        if len(taken) >= FEWEST:
            kept_out = taken + kept_out
        else:  # without counts of sessions, there are no limits on them
            taken = take_turns(replace(pool, max_turns=max_prompts), budget, (), Counter(), Counter())
            trained_on = taken + trained_on
        tokens -= sum(map(estimate_validation_cost, taken))
    return kept_out, trained_on


def make_pools(replies: Sequence[Reply], logged: Sequence[Reply], max_prompts: int, learns_hints: bool) -> list[Pool]:
    """Return the pools that have at least FEWEST turns: turns without a hint, then turns with a hint.

    Return no pools if hints are to be learned, but fewer than FEWEST turns have one.
    """
    # All rollouts of a turn have its prompt.
    prompts = {prompt_turn_id(turn.turn_id): turn for turn in reversed(logged)}
    distinct = [*prompts.values()][::-1]
    hinted = [turn for turn in distinct if turn.is_hinted]
    unhinted = [turn for turn in distinct if not turn.is_criticised]
    max_hinted, max_unhinted = (min(max_prompts, int(MOST_SHARE * len(of_kind))) for of_kind in (hinted, unhinted))
    has_few_hints = len(hinted) > 0 and max_hinted < FEWEST
    if has_few_hints and not learns_hints:
        hinted = []
    elif has_few_hints and len(hinted) < FEWEST:
        return []
    criticised = {conversation_id(reply.session_id) for reply in replies if reply.is_criticised}
    uncriticised = [turn for turn in unhinted if conversation_id(turn.session_id) not in criticised]
    max_uncriticised = int(MOST_UNCRITICISED * len(uncriticised))
    hinted_session_turns = unhinted_session_turns = MOST_KEPT_OUT * len(logged)
    if max_uncriticised >= FEWEST:
        unhinted, max_unhinted = uncriticised, min(max_unhinted, max_uncriticised)
        # These are taken first, from other sessions; up to half of the limit is reserved for the sessions with hints.
        with_hints = {conversation_id(turn.session_id) for turn in hinted}
        session_turns = sum(conversation_id(turn.session_id) in with_hints for turn in logged)
        unhinted_session_turns -= min(max_hinted * session_turns / max(1, len(hinted)), hinted_session_turns / 2)
    elif max_unhinted < FEWEST or has_few_hints:  # they stand in, so that all of the few hints are trained on
        unhinted, max_unhinted = uncriticised if len(uncriticised) >= FEWEST else unhinted, 0
    unhinted = draw_turns(unhinted, first_of_all=False)
    # The first correction of a session says most: later prompts contain it, so a student may follow it without a hint.
    moved, others = split_by_movement(draw_turns(hinted, first_of_all=True))
    pools = (
        Pool(unhinted, False, max_unhinted, unhinted_session_turns, oversampled=OVERSAMPLE * max_prompts),
        Pool([*put_typical_first(moved), *others], True, max_hinted, hinted_session_turns, oversampled=len(moved)),
    )
    return [pool for pool in pools if len(pool.turns) >= FEWEST]


def split_by_movement(turns: Sequence[Reply]) -> tuple[list[Reply], list[Reply]]:
    """Return those of the first turns whose hint moves the reply most, and all others, each in the given order.

    The former are half of the first OVERSAMPLE * FEWEST turns. A hint that is already followed shows nothing.
    """
    half = min(len(turns), OVERSAMPLE * FEWEST) // 2
    moved = set(sorted(range(2 * half), key=lambda i: measure_hint(turns[i]))[half:])
    return ([turn for i, turn in enumerate(turns) if i in moved],
            [turn for i, turn in enumerate(turns) if i not in moved])  # fmt: skip


def put_typical_first(turns: Sequence[Reply]) -> list[Reply]:
    """Return the turns, led by the one whose reply is most like the others: the most common request has a prompt."""
    pieces = [frozenset(turn.response_ids.tolist()) for turn in turns]
    likeness = [sum(measure_overlap(own, each) for each in pieces) for own in pieces]
    first = max(range(len(turns)), key=likeness.__getitem__, default=0)
    return [*turns[first : first + 1], *turns[:first], *turns[first + 1 :]]


def measure_hint(turn: Reply) -> float:
    """Return how far a turn's hint moves its logged reply: KL(student || teacher) over the support (nats).

    Without a support, return the difference of the log-probs of the logged tokens instead.
    """
    assert turn.teacher_logprobs is not None
    if turn.support is None or turn.support.teacher is None:
        return float((turn.old_logprobs - turn.teacher_logprobs)[turn.sampled].sum())
    pair = (turn.support.old, turn.support.teacher)
    old, teacher = (torch.from_numpy(logprobs[turn.sampled].astype(np.float32)) for logprobs in pair)
    return float(divergence(old, teacher, 1.0).sum())


def draw_turns(turns: Iterable[Reply], *, first_of_all: bool) -> list[Reply]:
    """Return the turns by session, in the order of a hash; with `first_of_all`, round-robin over the sessions."""
    by_session = defaultdict[str, list[Reply]](list)
    for turn in turns:
        by_session[conversation_id(turn.session_id)].append(turn)
    drawn = [by_session[name] for name in sorted(by_session, key=lambda name: stable_hash(f"validation:{name}"))]
    columns: Iterable[Iterable[Reply | None]] = zip_longest(*drawn) if first_of_all else drawn
    return [turn for column in columns for turn in column if turn is not None]


def take_turns(
    pool: Pool, tokens: float, chosen: Sequence[Reply], session_turns: Counter[str], session_hints: Counter[str]
) -> list[Reply]:
    """Return the turns to take from a pool, in addition to those already `chosen` from another pool.

    Take at least FEWEST if the limits on sessions allow it, and more only as far as `tokens` pay for them.
    """
    taken: list[Reply] = []
    # Varied replies cover more kinds than a plain draw, and any kind can be forgotten, not only the frequent ones. With
    # a hint, there are fewer candidates: the most unusual of many replies would say little about the others.
    for turn in order_by_variety(pool.turns, pool.oversampled, lambda turn: turn.response_ids.tolist()):
        more = [*taken, turn]
        kept_out = {conversation_id(each.session_id) for each in (*chosen, *more)}
        leaves_turns = sum(session_turns[name] for name in kept_out) <= pool.max_session_turns
        leaves_hints = sum(session_hints[name] for name in kept_out) <= MOST_KEPT_OUT * session_hints.total()
        is_paid = len(more) <= FEWEST or sum(map(estimate_validation_cost, more)) <= tokens
        if leaves_turns and leaves_hints and is_paid:
            taken = more
        if len(taken) == pool.max_turns:
            break
    return taken


def order_by_variety(items: Sequence[T], count: int, pieces_of: Callable[[T], Iterable[Any]]) -> Iterator[T]:
    """Yield the first `count` items, always the one least similar to those before it, then the rest in order."""
    left = [(item, frozenset(pieces_of(item))) for item in items[:count]]
    nearest = [0.0] * len(left)  # per item: its largest similarity to an item yielded so far
    while left:
        chosen = min(range(len(left)), key=nearest.__getitem__)
        (item, pieces), _ = left.pop(chosen), nearest.pop(chosen)
        yield item
        nearest = [max(old, measure_overlap(own, pieces)) for old, (_, own) in zip(nearest, left, strict=True)]
    yield from items[count:]


def measure_overlap(pieces: Set[Any], others: Set[Any]) -> float:
    """Return the Jaccard similarity of two sets."""
    return len(pieces & others) / len(pieces | others)


def estimate_validation_cost(turn: Reply) -> int:
    """Return the tokens of validating on a turn: the student processes prompt and reply, then so does another model."""
    return 2 * len(turn)


def estimate_tokens_to_train(replies: Sequence[Reply], epochs: int) -> int:
    """Estimate the tokens that a training reads, given that replies of a session share almost all of their prompts."""
    longest: dict[str, int] = {}
    for reply in replies:
        longest[reply.session_id] = max(longest.get(reply.session_id, 0), len(reply))
    return epochs * (sum(longest.values()) + sum(len(reply.response_ids) for reply in replies) // 2)


def choose_hints(replies: Sequence[Reply]) -> list[str]:
    """Return at most HINTS hints: those whose words differ most among the HINTS * OVERSAMPLE most frequent ones."""
    hints = {(reply.turn_id, reply.hint) for reply in replies if reply.hint and reply.written is None}
    counts = Counter(hint for _, hint in hints)
    commonest = [hint for hint, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return list(order_by_variety(commonest, OVERSAMPLE * HINTS, str.split))[:HINTS]
