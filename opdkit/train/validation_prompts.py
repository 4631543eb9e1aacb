"""Prompts of the on-policy validation: the choice of their turns, and the models that read replies to them."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.teacher_models import parse_teachers
from opdkit.config.train import TrainConfig
from opdkit.console import say
from opdkit.errors import OpdkitError
from opdkit.model.load import context_length, load_model, load_skeleton, load_template
from opdkit.model.memory import TooLargeError
from opdkit.model.sampling import reply_room
from opdkit.store.plans import manifest, recorded_hint_text, stage_dir
from opdkit.store.stable_hash import stable_hash
from opdkit.store.template_args import template_args_of
from opdkit.store.turn_ids import conversation_id
from opdkit.train.policy import Policy
from opdkit.train.room import has_room
from opdkit.train.targets import Turn, prompt_messages, with_sessions
from opdkit.train.validation import CHECKS, COST, Validation, ValidationPrompt

T = TypeVar("T")

# Shares and counts, beside the limit of --validate.
MOST_SHARE = 0.1  # of the turns of a kind are prompts of the validation, at most
MOST_KEPT_OUT = 0.2  # of all turns, and of all hints, are in the sessions that it keeps out of training, at most
MOST_UNCRITICISED = 0.25  # of the turns in sessions without a complaint, at most
FEWEST = 3  # with fewer prompts than this of a kind there is no validation
HINTS = 8  # of the log: a reply that one of them explains is a wanted change
OVERSAMPLE = 8  # candidates drawn per item that is wanted; of these the most different are taken
ROOM = 1.2  # times the student's weights: a teacher of up to this size is loaded beside it
LONGEST = 512  # tokens of a sampled reply, at most


@dataclass(frozen=True)
class Pool:
    """Logged turns of one kind, with a hint or without: candidates for prompts of the validation."""

    turns: Sequence[Turn]
    hinted: bool
    max_turns: int  # that may be chosen
    max_session_turns: float  # that all sessions may have which are kept out of training, once they are chosen
    oversampled: int = 0  # of so many drawn turns, the most different come first

    @property
    def mean_cost(self) -> float:
        """Mean tokens per turn."""
        return sum(map(_cost, self.turns)) / len(self.turns)


def choose_turns(turns: Sequence[Turn], max_prompts: int, epochs: int) -> list[Turn]:
    """Return the turns whose prompts the student is validated on: at most `max_prompts` with a hint, as many without.

    They come from whole sessions, drawn by a hash of their ids, which train on nothing. All turns of these sessions are
    at most MOST_KEPT_OUT of all turns, and their hints of all hints: a session that is too large for that is passed
    over. Turns without a hint are varied, and from sessions without a complaint, where there are enough: elsewhere the
    hints are likely to ask for a change of replies that nobody complained about, too. A kind with too few turns is left
    out, and the list is empty where that is the kind with hints. It is short enough that CHECKS measurements cost at
    most COST of the training's tokens, but has at least FEWEST turns of each kind.
    """
    logged = [turn for turn in turns if turn.written is None and turn.sampled.any()]
    session_turns = Counter(conversation_id(turn.session_id) for turn in logged)
    session_hints = Counter(conversation_id(turn.session_id) for turn in logged if turn.teacher_logprobs is not None)
    pools = make_pools(turns, logged, max_prompts)
    mean_costs = [pool.mean_cost for pool in pools]
    tokens = COST * tokens_to_train(turns, epochs) / (CHECKS + 0.5)
    chosen: list[Turn] = []
    for n, pool in enumerate(pools):  # as many of both kinds; the second takes what the first leaves
        affordable = tokens / sum(mean_costs[n:])  # turns of each kind
        taken = take_turns(pool, affordable, chosen, session_turns, session_hints)
        if len(taken) >= FEWEST:
            tokens -= sum(map(_cost, taken))
            chosen = taken + chosen
        elif pool.hinted:
            return []
    return chosen


def make_pools(turns: Sequence[Turn], logged: Sequence[Turn], max_prompts: int) -> list[Pool]:
    """Return the pools that may give FEWEST turns or more, that of turns without a hint first.

    There are none where the log has hints, but the pool of turns with one may not give so many.
    """
    hinted = [turn for turn in logged if turn.teacher_logprobs is not None]
    unhinted = [turn for turn in logged if turn.teacher_logprobs is None and (turn.reward or 0) >= 0]
    max_hinted, max_unhinted = (min(max_prompts, int(MOST_SHARE * len(of_kind))) for of_kind in (hinted, unhinted))
    if hinted and max_hinted < FEWEST:
        return []
    criticised = {conversation_id(t.session_id) for t in turns if t.teacher_logprobs is not None or (t.reward or 0) < 0}
    uncriticised = [turn for turn in unhinted if conversation_id(turn.session_id) not in criticised]
    max_uncriticised = int(MOST_UNCRITICISED * len(uncriticised))
    hinted_session_turns = unhinted_session_turns = MOST_KEPT_OUT * len(logged)
    if max_uncriticised >= FEWEST:
        unhinted, max_unhinted = uncriticised, min(max_unhinted, max_uncriticised)
        # They are taken first, from other sessions: what the sessions with hints need is left to these, up to half.
        with_hints = {conversation_id(turn.session_id) for turn in hinted}
        session_turns = sum(conversation_id(turn.session_id) in with_hints for turn in logged)
        unhinted_session_turns -= min(max_hinted * session_turns / max(1, len(hinted)), hinted_session_turns / 2)
    pools = (Pool(unhinted, False, max_unhinted, unhinted_session_turns, oversampled=OVERSAMPLE * max_prompts),
             Pool(hinted, True, max_hinted, hinted_session_turns))  # fmt: skip
    return [pool for pool in pools if pool.max_turns >= FEWEST]


def take_turns(
    pool: Pool, affordable: float, chosen: Sequence[Turn], session_turns: Counter[str], session_hints: Counter[str]
) -> list[Turn]:
    """Return the turns that are taken from a pool, beside those that are `chosen` from another one.

    At least FEWEST, where sessions allow it; no more than `affordable` turns of mean cost pay for.
    """
    count, tokens = min(pool.max_turns, max(FEWEST, int(affordable))), affordable * pool.mean_cost
    drawn = sorted(pool.turns, key=lambda turn: stable_hash(f"validation:{conversation_id(turn.session_id)}"))
    taken: list[Turn] = []
    # Varied replies show more kinds than a plain draw: any of them can be forgotten, not only the frequent ones.
    for turn in vary(drawn, pool.oversampled, lambda turn: turn.response_ids.tolist()):
        kept_out = {conversation_id(each.session_id) for each in (*chosen, *taken, turn)}
        leaves_turns = sum(session_turns[name] for name in kept_out) <= pool.max_session_turns
        leaves_hints = sum(session_hints[name] for name in kept_out) <= MOST_KEPT_OUT * session_hints.total()
        if leaves_turns and leaves_hints:
            taken.append(turn)
        if len(taken) == count or (len(taken) >= FEWEST and sum(map(_cost, taken)) >= tokens):
            break
    return taken


def vary(items: Sequence[T], count: int, pieces_of: Callable[[T], Iterable[Any]]) -> Iterator[T]:
    """Yield the items in another order: of the first `count`, the one that is least like those before is next.

    Items are alike by the share of their pieces that they have in common (Jaccard).
    """
    left = [(item, frozenset(pieces_of(item))) for item in items[:count]]
    alike = [0.0] * len(left)
    while left:
        chosen = min(range(len(left)), key=alike.__getitem__)
        (item, pieces), _ = left.pop(chosen), alike.pop(chosen)
        yield item
        alike = [max(old, len(own & pieces) / len(own | pieces)) for old, (_, own) in zip(alike, left, strict=True)]
    yield from items[count:]


def _cost(turn: Turn) -> int:
    """Return the tokens of a reply to the prompt of a turn: it is read and written, and read by another model."""
    return 2 * len(turn)


def tokens_to_train(turns: Sequence[Turn], epochs: int) -> int:
    """Estimate the tokens that a training reads: turns of a session share almost all of their beginnings."""
    longest: dict[str, int] = {}
    for turn in turns:
        longest[turn.session_id] = max(longest.get(turn.session_id, 0), len(turn))
    return epochs * (sum(longest.values()) + sum(len(turn.response_ids) for turn in turns) // 2)


def open_validation(
    turns: Sequence[Turn],
    chat: Chat,
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    hints: Sequence[str],
    rows: Sequence[JSON] = (),
    sharded: Policy | None = None,
) -> Validation:
    """Render the prompts of `turns`, and load the student before training and the teacher beside the one in training.

    `hints` are what the log asks for; `rows` are the measurements of a training that resumes; `sharded` is the student
    where processes share its weights. Prompts that leave no room for a reply, or that a template cannot render, are
    left out. Raises TooLargeError where memory does not hold a second model.
    """
    try:
        base = load_model(config.model, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
    except TooLargeError:
        what = "the student before training, a second copy that validation needs,"
        raise TooLargeError(what, "try --lora-rank, --dtype bfloat16 or --validate 0") from None
    scored = manifest(config.run, "teacher")["plan"]["config"]
    teacher, teacher_chat = load_teacher(config, scored, base, chat)
    # Within --max-tokens of the teacher stage, validation needs no more memory than scoring did.
    limits = context_length(base), context_length(teacher), scored.get("max_tokens") or math.inf
    context: Any = min(limits)  # whole, or infinite
    hint_text = recorded_hint_text(config.run)
    prompts: list[ValidationPrompt] = []
    for session, turn in with_sessions(config.run, turns):
        messages = prompt_messages(session, turn)
        with contextlib.suppress(ChatError):
            prompt_ids = chat.prompt_ids(messages, session["tools"])
            readings = [] if turn.hint is not None else [prompt_ids]
            for hint in [turn.hint] if turn.hint else hints:
                with contextlib.suppress(ChatError):  # such as a prompt that another turn's hint has no place in
                    prompt = with_hint(messages, hint, scored["hint_placement"], hint_text)
                    readings.append(teacher_chat.prompt_ids(prompt, session["tools"]))
            if readings:
                prompts.append(ValidationPrompt(turn.turn_id, prompt_ids, readings, turn.hint is not None))
    longest_reply = reply_room(max(len(turn.response_ids) for turn in turns), LONGEST)
    prompts, max_new_tokens = fit_prompts(prompts, context, longest_reply)
    folder = stage_dir(config.run, "train") / "checkpoints"
    return Validation(prompts, sum(map(_cost, turns)), max_new_tokens, chat, config, accelerator, base, teacher,
                      folder, sharded, list(rows))  # fmt: skip


def fit_prompts(
    prompts: Sequence[ValidationPrompt], context: float, longest_reply: int
) -> tuple[list[ValidationPrompt], int]:
    """Return the prompts that leave room for a reply within `context`, and how many tokens a reply may have.

    That is `longest_reply`, or less where fewer than FEWEST prompts of a kind would have room for it.
    """
    rooms = [context - max(len(prompt.prompt_ids), len(prompt.readings[0])) for prompt in prompts]
    room = longest_reply
    for hinted in (True, False):
        of_kind = sorted((r for r, p in zip(rooms, prompts, strict=True) if p.hinted == hinted and r > 0), reverse=True)
        room = int(min([room, *of_kind[:FEWEST]]))
    fitting = [
        replace(prompt, readings=[ids for ids in prompt.readings if len(ids) + room <= context])
        for prompt, own in zip(prompts, rooms, strict=True)
        if own >= room
    ]
    return fitting, room


def choose_hints(turns: Sequence[Turn]) -> list[str]:
    """Return at most HINTS hints: of the HINTS * OVERSAMPLE most frequent ones, those whose words differ most."""
    counts = Counter(turn.hint for turn in turns if turn.hint and turn.written is None)
    commonest = [hint for hint, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    return list(vary(commonest, OVERSAMPLE * HINTS, str.split))[:HINTS]


def load_teacher(config: TrainConfig, scored: JSON, base: PreTrainedModel, chat: Chat) -> tuple[PreTrainedModel, Chat]:
    """Return the model that read the hints in the teacher stage, and its template.

    `scored`: the options of the teacher stage. A training may have no room for a larger teacher, or for several, and
    some may no longer be there: then the student before training reads the hints in their place.
    """
    paths = set(parse_teachers(scored["teacher"]).values())
    if paths <= {config.model}:
        return base, chat
    found, teacher, fits = None, None, False
    with contextlib.suppress(OpdkitError, ValueError):  # ValueError: there are several
        (path,) = paths
        found = load_template(path, template_args_of(config.run, "teacher", config.template_arg), chat)
        skeleton = load_skeleton(path)
        size, base_size = (model.num_parameters() for model in (skeleton, base))
        vocabulary, needed = (model.get_input_embeddings().weight.shape[0] for model in (skeleton, base))
        fits = size <= ROOM * base_size and vocabulary >= needed and has_room(base, size, config)
    # All processes have the same teacher.
    if all(gather_object([fits])):
        with contextlib.suppress(OpdkitError):  # not enough memory
            teacher = load_model(path, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
        if all(gather_object([teacher is not None])) and teacher and found:
            return teacher, found
    say(f"validation reads hints with the student before training, not with {', '.join(sorted(paths))}")
    return base, chat
