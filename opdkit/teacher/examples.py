"""Verdicts to token ids: what student and teachers read of one turn. What cannot be read is dropped and counted."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opdkit.chat.template import Chat, ChatError, Message, Prompt, Reply, fit, with_hint, without_first
from opdkit.config.teacher import TeacherConfig
from opdkit.judge.hints import selected
from opdkit.model.scoring import PromptResponse
from opdkit.store import Counters
from opdkit.store.reviews import REVIEWED
from opdkit.teacher.policies import Scorer, Teacher
from opdkit.teacher.session import Target

Row = dict[str, Any]
Reading = tuple[Chat, list[Message]]  # messages, and the template that they are read through

NO_SIGNAL = "no signal"
_CANDIDATES = 3  # hints that are scored for one turn


@dataclass(frozen=True)
class Example:
    """One turn ready to be scored. `hints` are the candidates, one for each of `target.hinted`.

    `written` is the number of a reply that the teacher wrote; None is the logged one.
    """

    verdict: Row
    prompt: Prompt
    reply: Reply
    behavior_logprobs: list[float] | None
    hints: list[str]
    target: Target
    written: int | None = None


def prepare(
    config: TeacherConfig,
    scorer: Scorer,
    teacher: Teacher,
    session: Row,
    judged: Sequence[tuple[Row, Row]],
    counters: Counters,
) -> Iterator[Example]:
    """The turns of a session, each as (turn, verdict), as token ids; those that cannot be are dropped and counted."""
    for turn, verdict in judged:
        try:
            if verdict["hint"] is None and verdict["reward"] is None:
                raise ChatError(NO_SIGNAL)
            yield example(config, scorer, teacher, session, turn, verdict, counters)
        except ChatError as error:
            counters.drop(error.reason)


def example(
    config: TeacherConfig,
    scorer: Scorer,
    teacher: Teacher,
    session: Row,
    turn: Row,
    verdict: Row,
    counters: Counters,
) -> Example:
    """One turn as token ids: every prompt that is read, and the reply that follows each. Raises ChatError."""
    before = session["messages"][: turn["message_index"]]
    reply, behavior = reply_of(scorer.student.chat, session, turn, counters)
    if not any(reply.mask):
        raise ChatError("no response tokens")
    room = _Room(scorer.max_tokens - len(reply.ids), session["tools"], config.too_long)
    hints, hinted = _hinted(config, teacher, before, candidates(verdict, config.teacher_hint), room)
    plain = [(policy.chat, before) for policy in teacher.policies] if config.score_unhinted else []
    count = len(teacher.policies)
    prompts = fit_together([(scorer.student.chat, before), *plain, *hinted], room)
    if max(max(reply.ids), *(max(p.ids) for p in prompts)) >= scorer.vocabulary:
        raise ChatError("tokens outside the model's vocabulary")
    read = [PromptResponse(p.ids, reply.ids) for p in prompts]
    unhinted, rest = tuple(read[1 : 1 + len(plain)]), read[1 + len(plain) :]
    by_hint = tuple(tuple(rest[i : i + count]) for i in range(0, len(rest), count))
    return Example(verdict, prompts[0], reply, behavior, hints, Target(read[0], by_hint, unhinted or None))


# -- hints ----------------------------------------------------------------------------------------------------------


def candidates(verdict: Row, how: str) -> list[str]:
    """The hints that are scored, shortest first: one, or up to three with `overlap`; [] where the verdict has none.

    What the judge's votes did not carry (no quorum, outvoted) is selected by no rule, and what a person decided is not
    selected from.
    """
    if verdict["hint"] is None or how == "judge" or verdict["hint_status"] == REVIEWED:
        return [] if verdict["hint"] is None else [verdict["hint"]]
    if how == "overlap":
        return sorted(verdict["hints"], key=lambda hint: (len(hint), hint))[:_CANDIDATES]
    return [selected(verdict["hints"], how)]


@dataclass(frozen=True)
class _Room:
    """What all prompts of one turn share."""

    budget: int  # tokens
    tools: str | None
    too_long: str


def _hinted(
    config: TeacherConfig, teacher: Teacher, before: list[Message], hints: list[str], room: _Room
) -> tuple[list[str], list[Reading]]:
    """The candidates that fit, and how each model of the teacher reads them. Raises ChatError where none fits."""
    chats = [policy.chat for policy in teacher.policies]
    readings = {hint: [(chat, with_hint(before, hint, config.hint_placement)) for chat in chats] for hint in hints}
    if len(hints) > 1:  # one that is too long must not cost the turn its others
        fitting = [hint for hint in hints if _fits(readings[hint], room)]
        if not fitting:
            raise ChatError("too long")
        hints = fitting
    return hints, [reading for hint in hints for reading in readings[hint]]


def _fits(readings: list[Reading], room: _Room) -> bool:
    try:
        fit_together(readings, room)
    except ChatError as error:
        if error.reason == "too long":
            return False
        raise
    return True


def fit_together(readings: list[Reading], room: _Room) -> list[Prompt]:
    """Every reading as a prompt that fits. What the longest of them must lose, all lose.

    So that two prompts differ by the hint and by nothing else.
    """
    prompts = [fit(chat, messages, room.tools, room.budget, room.too_long) for chat, messages in readings]
    cut = max(p.cut for p in prompts)
    return [
        prompt if prompt.cut == cut else _cut(chat, messages, cut, room)
        for prompt, (chat, messages) in zip(prompts, readings, strict=True)
    ]


def _cut(chat: Chat, messages: list[Message], cut: int, room: _Room) -> Prompt:
    return Prompt(fit(chat, without_first(messages, cut), room.tools, room.budget, "drop").ids, cut)


# -- the reply ------------------------------------------------------------------------------------------------------


def reply_of(chat: Chat, session: Row, turn: Row, counters: Counters) -> tuple[Reply, list[float] | None]:
    """The reply's tokens, and their log-probs under the behaviour policy.

    The logged tokens where they are tokens of this model, else encoded anew; then the logged log-probs are those of
    other tokens, and there are none.
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
    """Whether logged ids are this tokenizer's for the logged message: in range, and reading as what it says.

    White space aside, since templates and servers trim it. Beside the text there may be a little more (think and call
    tags), not another message. Special tokens in the middle of a reply may be left out of the message, or stand there.
    """
    if not ids or not all(0 <= i < len(chat.tokenizer) for i in ids):
        return False
    return any(
        _reads_as(chat.tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False), message)
        for skip in (True, False)
    )


def _reads_as(text: str, message: Row) -> bool:
    said, calls = _squeezed(text), message["tool_calls"]
    pieces = [message["reasoning"], message["content"], *(call["name"] for call in calls)]
    position, rest = 0, len(said)
    for piece in (_squeezed(p) for p in pieces if p):
        found = said.find(piece, position)
        if found < 0:
            return False
        position, rest = found + len(piece), rest - len(piece)
    # The tags around thinking, and around each call; a call's arguments may be escaped differently.
    return rest <= 32 + sum(96 + 2 * len(call["arguments"]) for call in calls)


def _squeezed(text: str) -> str:
    return "".join(text.split())
