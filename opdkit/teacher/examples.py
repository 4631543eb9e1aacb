"""Judged turns, and examples: the prompts and the reply of one turn as token ids, for the student and its teachers."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.markup import split_thinking
from opdkit.chat.reply_text import EMPTY_THINKING
from opdkit.chat.template import Chat, ChatError, FittedPrompt, Message, ReplyTokens, drop_first_messages, fit
from opdkit.config.teacher import TeacherConfig
from opdkit.judge.hints import select_hint
from opdkit.judge.votes import EDITED
from opdkit.model.behavior_policy import find_unusable_reason
from opdkit.model.scoring import PromptResponse
from opdkit.store.counters import Counters
from opdkit.store.joined_turns import by_session, joined_turns
from opdkit.store.reviews import REVIEWED
from opdkit.teacher.models import Scorer, Teacher
from opdkit.teacher.scores import ReplyReadings

Row = dict[str, Any]
Rendering = tuple[Chat, list[Message]]  # messages, and the template that they are rendered with

_CANDIDATES = 3  # hints that are scored for one turn


class JudgedTurn(NamedTuple):
    """Turn and its verdict."""

    turn: Row
    verdict: Row


class JudgedSession(NamedTuple):
    """Session and its judged turns."""

    session: Row
    turns: list[JudgedTurn]


def read_judged_sessions(run: Path, part: int, limit: int | None) -> Iterator[JudgedSession]:
    """Yield the sessions of a part, within the first `limit` of the run, with the verdicts of the votes."""
    for turns in by_session(joined_turns(run, part, limit=limit, reviews={})):
        judged = [JudgedTurn(turn.turn, turn.verdict) for turn in turns if turn.verdict is not None]
        if judged:
            yield JudgedSession(turns[0].session, judged)


@dataclass(frozen=True)
class Example:
    """Turn that is ready to be scored. `hints` are the candidate hints, one for each of `readings.hinted`.

    `written` is the column of `targets`: None for the logged reply. If the hint is a person's edit of that reply,
    `edited` are the tokens of the edited reply, and `wrong` is the index of the first token that departs from it.
    """

    verdict: Row
    prompt: FittedPrompt
    reply: ReplyTokens
    behavior_logprobs: list[float] | None
    hints: list[str]
    readings: ReplyReadings
    written: int | None = None
    edited: ReplyTokens | None = None
    wrong: int | None = None


class TaughtSession(NamedTuple):
    """Session as examples to score, and its teacher."""

    teacher: Teacher
    examples: list[Example]


def make_example(
    config: TeacherConfig, scorer: Scorer, teacher: Teacher, session: Row, turn: Row, verdict: Row, counters: Counters
) -> Example:
    """Return the reply of one turn and all prompts that it is scored after, as token ids.

    Raises ChatError if the turn cannot be scored; its reason names the drop counter.
    """
    if verdict["hint"] is None and verdict["reward"] is None:
        raise ChatError("no signal")
    before, tools = session["messages"][: turn["message_index"]], session["tools"]
    reply, behavior = encode_reply(scorer.student.chat, session, turn, counters)
    if not any(reply.mask):
        raise ChatError("no response tokens")
    budget = scorer.max_tokens - len(reply.ids)
    hints, hinted = list[str](), list[Rendering]()
    candidates = choose_candidates(verdict, config.teacher_hint)
    for hint in candidates:
        messages = with_hint(before, hint, config.hint_placement, scorer.hint_text)
        renderings = [(chat, messages) for chat in teacher.chats]
        try:
            if len(candidates) > 1:  # a candidate that is too long must not drop the whole turn
                fit_together(renderings, tools, budget, config.too_long)
        except ChatError as error:
            if error.reason != "too long":
                raise
        else:
            hints.append(hint)
            hinted += renderings
    if candidates and not hints:
        raise ChatError("too long")
    unhinted: list[Rendering] = [(chat, before) for chat in teacher.chats] if config.score_unhinted else []
    prompts = fit_together([(scorer.student.chat, before), *unhinted, *hinted], tools, budget, config.too_long)
    if any(prompt.ids == prompts[0].ids for prompt in prompts[1 + len(unhinted) :]):
        raise ChatError("template: leaves out the hint")
    for part in scorer.student.chat.find_left_out(before):
        counters.count("after prompts in which the template leaves out a part", label=part)
    if max(max(reply.ids), *(max(p.ids) for p in prompts)) >= scorer.vocabulary:
        raise ChatError("tokens outside the model's vocabulary")
    student, *rest = (PromptResponse(p.ids, reply.ids) for p in prompts)
    models = len(teacher.chats)
    by_hint = tuple(tuple(rest[i : i + models]) for i in range(len(unhinted), len(rest), models))
    readings = ReplyReadings(student, by_hint, tuple(rest[: len(unhinted)]) or None)
    is_edited = verdict["hint_status"] == EDITED
    edited, wrong = encode_edit(scorer.student.chat, session, turn, reply) if is_edited else (None, None)
    return Example(verdict, prompts[0], reply, behavior, hints, readings, edited=edited, wrong=wrong)


def make_written_example(
    logged: Example, chosen: int, reply: ReplyTokens, behavior_logprobs: list[float] | None, written: int
) -> Example:
    """Return another reply after the prompts of a logged one, with hint `chosen`, as an example to score."""
    prompts = [reading.prompt_ids for reading in (logged.readings.student, *logged.readings.hinted[chosen])]
    student, *hinted = (PromptResponse(prompt, reply.ids) for prompt in prompts)
    return replace(
        logged,
        verdict=logged.verdict | {"reward": None},  # nobody has reacted to this reply
        reply=reply,
        behavior_logprobs=behavior_logprobs,
        hints=[logged.hints[chosen]],
        readings=ReplyReadings(student, (tuple(hinted),)),
        written=written,
        wrong=None,
    )


def choose_candidates(verdict: Row, select: str) -> list[str]:
    """Return the hints to score, shortest first: one, or up to three if `select` is "overlap"; [] without a hint.

    `select` (--teacher-hint) applies only if the judge's votes gave a hint, so not without a quorum or when outvoted. A
    hint that a person decided is used unchanged.
    """
    if verdict["hint"] is None:
        return []
    if select == "judge" or verdict["hint_status"] == REVIEWED:
        return [verdict["hint"]]
    if select == "overlap":
        return sorted(verdict["hints"], key=lambda hint: (len(hint), hint))[:_CANDIDATES]
    return [select_hint(verdict["hints"], select)]


def fit_together(renderings: list[Rendering], tools: str | None, budget: float, too_long: str) -> list[FittedPrompt]:
    """Return all renderings as prompts within `budget` tokens; messages that are cut from one are cut from all.

    So two prompts differ only by the hint. `too_long` is --too-long. Raises ChatError if a prompt does not fit.
    """
    prompts = [fit(chat, messages, tools, budget, too_long) for chat, messages in renderings]
    cut = max(p.cut for p in prompts)
    for n, (chat, messages) in enumerate(renderings):
        if prompts[n].cut != cut:
            ids = fit(chat, drop_first_messages(messages, cut), tools, budget, "drop").ids
            prompts[n] = FittedPrompt(ids, cut)
    return prompts


def encode_reply(chat: Chat, session: Row, turn: Row, counters: Counters) -> tuple[ReplyTokens, list[float] | None]:
    """Return the reply's tokens and their logged log-probs under the behaviour policy, or None without usable ones.

    The tokens are the logged ones if they are this tokenizer's. Otherwise the text is encoded again, and the logged
    log-probs are not used, because they belong to other tokens.
    """
    messages, index, ids = session["messages"], turn["message_index"], turn["response_token_ids"]
    if ids is not None and not is_encoding_of(chat, ids, messages[index]):
        counters.count("with logged tokens of another tokenizer")
        ids = None
    reply = chat.reply(messages, index, session["tools"], turn["finish_reason"], ids)
    thinking = "".join((messages[index]["reasoning"] or "").split())
    if thinking and thinking not in "".join(chat.text(reply.ids).split()):
        counters.count("without their thinking, which the template leaves out")
    logprobs = turn["behavior_logprobs"]
    if logprobs is None:
        return reply, None
    reason = find_unusable_reason(logprobs, ids)
    counters.count("with unusable behaviour log-probs" if reason else "with behaviour log-probs", label=reason or "")
    return reply, None if reason else logprobs


def encode_edit(chat: Chat, session: Row, turn: Row, reply: ReplyTokens) -> tuple[ReplyTokens | None, int | None]:
    """Return the edit of `reply` as tokens, and the index of the first token of `reply` that departs from it.

    The edit is None if the model thought before it, or if the template cannot render it. An empty think block that the
    model wrote stays. Thinking led to the reply that the model wrote, and the edit does not follow from it. None for a
    rollout, too: the edit in its hint belongs to an older reply.
    """
    *before, message = session["messages"][: turn["message_index"] + 1]
    thinking = message["reasoning"] or split_thinking(message["content"] or "")[0]
    if thinking or turn["decision"] is None:
        return None, None
    empty = EMPTY_THINKING.match(chat.text(list(compress(reply.ids, reply.mask))))
    text = turn["decision"]["edited"]
    if empty and not EMPTY_THINKING.match(text):
        text = empty[0] + text
    try:
        edited = chat.reply([*before, message | {"content": text}], len(before), session["tools"])
        return edited, find_wrong_token(chat, reply, edited, reply.ids == turn["response_token_ids"])
    except ChatError:
        return None, None


def find_wrong_token(chat: Chat, reply: ReplyTokens, edited: ReplyTokens, are_logged: bool) -> int | None:
    """Return the index of the first token of a reply that departs from its edit; None if there is none.

    Logged tokens (`are_logged`) may be "Hel" and "lo" where the tokenizer writes "Hello", or begin with white space
    that the log lacks. Then the texts are compared, else the tokens. Masked tokens are not compared: templates make
    them up, and logged ids lack them. Raises ChatError.
    """
    places = list(compress(range(len(reply.ids)), reply.mask))
    ids, others = [reply.ids[n] for n in places], list(compress(edited.ids, edited.mask))
    wanted = (whole := chat.text(others)).lstrip()
    if not are_logged or chat.reply_ids(whole.removesuffix(wanted) + chat.text(ids).lstrip()) == ids:
        return next((n for n, own, other in zip(places, ids, others, strict=False) if own != other), None)
    # The beginning may end with half a character, which decodes to \ufffd.
    wrong = bisect_left(range(len(ids)), True, key=lambda n: not wanted.startswith(
        chat.text(ids[: n + 1]).lstrip().rstrip("\ufffd")))  # fmt: skip
    return places[wrong] if wrong < len(ids) else None


def is_encoding_of(chat: Chat, ids: list[int], message: Row) -> bool:
    """Return whether logged ids are this tokenizer's for the logged message: in range, and decoding to its text.

    White space is ignored, since templates and servers trim it. The message may contain special tokens from the middle
    of a reply, or lack them.
    """
    if not ids or not all(0 <= i < len(chat.tokenizer) for i in ids):
        return False
    decode = partial(chat.tokenizer.decode, ids, clean_up_tokenization_spaces=False)
    texts = (decode(skip_special_tokens=skip) for skip in (True, False))
    return any(_holds_message("".join(text.split()), message) for text in texts)


def _holds_message(text: str, message: Row) -> bool:
    """Return whether a text without white space holds reasoning, content and calls in order, and little else."""
    calls = message["tool_calls"]
    pieces = [message["reasoning"], message["content"], *(call["name"] for call in calls)]
    position, rest = 0, len(text)
    for piece in ("".join(p.split()) for p in pieces if p):
        start = text.find(piece, position)
        if start < 0:
            return False
        position, rest = start + len(piece), rest - len(piece)
    # The tags around thinking, and around each call; a call's arguments may be escaped differently.
    return rest <= 32 + sum(96 + 2 * len(call["arguments"]) for call in calls)
