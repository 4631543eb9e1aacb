"""Verdicts to token ids: the prompts and the reply of one turn, as student and teachers read them."""

import math
from dataclasses import dataclass
from typing import Any

from opdkit.chat.template import Chat, ChatError, Message, Prompt, Reply, fit, with_hint, without_first
from opdkit.config.teacher import TeacherConfig
from opdkit.judge.hints import select_hint
from opdkit.model.scoring import PromptResponse
from opdkit.store.footers import Counters
from opdkit.store.reviews import REVIEWED
from opdkit.teacher.policies import Scorer, Teacher
from opdkit.teacher.session import ReplyReadings

Row = dict[str, Any]
Rendering = tuple[Chat, list[Message]]  # messages, and the template that they are rendered with

_CANDIDATES = 3  # hints that are scored for one turn


@dataclass(frozen=True)
class Example:
    """Turn that is ready to be scored. `hints` are the candidates, one for each of `readings.hinted`.

    `written` is the number of a reply that the teacher sampled; None is the logged one.
    """

    verdict: Row
    prompt: Prompt
    reply: Reply
    behavior_logprobs: list[float] | None
    hints: list[str]
    readings: ReplyReadings
    written: int | None = None


def make_example(
    config: TeacherConfig,
    scorer: Scorer,
    teacher: Teacher,
    session: Row,
    turn: Row,
    verdict: Row,
    counters: Counters,
) -> Example:
    """Return a turn as token ids: every prompt that is read, and the reply that follows each.

    Raises ChatError, with the reason under which the turn is counted, where it cannot be scored.
    """
    if verdict["hint"] is None and verdict["reward"] is None:
        raise ChatError("no signal")
    before = session["messages"][: turn["message_index"]]
    reply, behavior = reply_of(scorer.student.chat, session, turn, counters)
    if not any(reply.mask):
        raise ChatError("no response tokens")
    room = _Room(scorer.max_tokens - len(reply.ids), session["tools"], config.too_long)
    chats = [policy.chat for policy in teacher.policies]
    hints = candidate_hints(verdict, config.teacher_hint)
    hinted = {hint: [(chat, with_hint(before, hint, config.hint_placement)) for chat in chats] for hint in hints}
    if len(hints) > 1:  # a candidate that is too long must not cost the turn the others
        hints = [hint for hint in hints if _fits(hinted[hint], room)]
        if not hints:
            raise ChatError("too long")
    unhinted: list[Rendering] = [(chat, before) for chat in chats] if config.score_unhinted else []
    renderings = [(scorer.student.chat, before), *unhinted, *(one for hint in hints for one in hinted[hint])]
    prompts = fit_together(renderings, room)
    if max(max(reply.ids), *(max(p.ids) for p in prompts)) >= scorer.vocabulary:
        raise ChatError("tokens outside the model's vocabulary")
    student, *rest = (PromptResponse(p.ids, reply.ids) for p in prompts)
    of_unhinted, of_hinted = tuple(rest[: len(unhinted)]), rest[len(unhinted) :]
    by_hint = tuple(tuple(of_hinted[i : i + len(chats)]) for i in range(0, len(of_hinted), len(chats)))
    readings = ReplyReadings(student, by_hint, of_unhinted or None)
    return Example(verdict, prompts[0], reply, behavior, hints, readings)


# -- prompts --------------------------------------------------------------------------------------------------------


def candidate_hints(verdict: Row, select: str) -> list[str]:
    """Return the hints that are scored, shortest first: one, up to three with `overlap`; [] without a hint.

    No rule selects a hint that the judge's votes did not carry (no quorum, outvoted), and what a person decided is not
    selected from.
    """
    if verdict["hint"] is None or select == "judge" or verdict["hint_status"] == REVIEWED:
        return [] if verdict["hint"] is None else [verdict["hint"]]
    if select == "overlap":
        return sorted(verdict["hints"], key=lambda hint: (len(hint), hint))[:_CANDIDATES]
    return [select_hint(verdict["hints"], select)]


@dataclass(frozen=True)
class _Room:
    """Limits that all prompts of one turn share."""

    budget: int  # tokens
    tools: str | None
    too_long: str


def _fits(renderings: list[Rendering], room: _Room) -> bool:
    try:
        fit_together(renderings, room)
    except ChatError as error:
        if error.reason == "too long":
            return False
        raise
    return True


def fit_together(renderings: list[Rendering], room: _Room) -> list[Prompt]:
    """Return every rendering as a prompt that fits. Messages that the longest must lose, all lose.

    So two prompts differ by the hint and by nothing else. Raises ChatError where one cannot be made to fit.
    """
    prompts = [fit(chat, messages, room.tools, room.budget, room.too_long) for chat, messages in renderings]
    cut = max(p.cut for p in prompts)
    for n, (chat, messages) in enumerate(renderings):
        if prompts[n].cut != cut:
            ids = fit(chat, without_first(messages, cut), room.tools, room.budget, "drop").ids
            prompts[n] = Prompt(ids, cut)
    return prompts


# -- the reply ------------------------------------------------------------------------------------------------------


def reply_of(chat: Chat, session: Row, turn: Row, counters: Counters) -> tuple[Reply, list[float] | None]:
    """Return the reply's tokens, and their logged log-probs under the behaviour policy; None without usable ones.

    The tokens are the logged ones where they are tokens of this model, else the text is encoded again; then the logged
    log-probs belong to other tokens and are not used.
    """
    messages, index, ids = session["messages"], turn["message_index"], turn["response_token_ids"]
    if ids is not None and not is_encoding_of(chat, ids, messages[index]):
        counters.count("with logged tokens of another tokenizer")
        ids = None
    reply = chat.reply(messages, index, session["tools"], turn["finish_reason"], ids)
    logprobs = turn["behavior_logprobs"]
    if logprobs is None:
        return reply, None
    usable = ids is not None and len(logprobs) == len(ids) and all(math.isfinite(x) and x <= 0 for x in logprobs)
    counters.count("with behaviour log-probs" if usable else "with unusable behaviour log-probs")
    return reply, logprobs if usable else None


def is_encoding_of(chat: Chat, ids: list[int], message: Row) -> bool:
    """Return whether logged ids are this tokenizer's for the logged message: in range, and decoding to its text.

    White space aside, since templates and servers trim it. Special tokens in the middle of a reply may be left out of
    the message or be part of it.
    """
    if not ids or not all(0 <= i < len(chat.tokenizer) for i in ids):
        return False
    texts = (
        chat.tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        for skip in (True, False)
    )
    return any(_holds_message("".join(text.split()), message) for text in texts)


def _holds_message(text: str, message: Row) -> bool:
    """Return whether a text without white space holds thinking, content and calls in order, and little else."""
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
