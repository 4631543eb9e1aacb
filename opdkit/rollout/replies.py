"""Fresh replies: the student as it is now answers the prompts of the hinted turns, at temperature 1.

A reply is its sampled token ids with their log-probs: the behaviour policy of these sessions is the student itself.
Its text is for people and for the judge.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.messages import message
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.rollout import RolloutConfig
from opdkit.model.folder import weights_name
from opdkit.model.load import known_context, load_model, load_tokenizer, token_generator
from opdkit.model.memory import TOO_LARGE
from opdkit.model.sampling import Request, Sample, sample
from opdkit.store import Counters, PartWriter, model_identity
from opdkit.store.reviews import Reviews
from opdkit.store.turn_ids import rollout_session_id, turn_id
from opdkit.teacher.stage import judged_sessions

CUT_OFF = "cut off by the limit"
NO_ROOM = "no room for a reply"


@dataclass(frozen=True)
class Hinted:
    """A turn of the source run with a hint, in its session."""

    session: JSON
    turn: JSON
    verdict: JSON

    @property
    def turn_id(self) -> str:
        return str(self.turn["turn_id"])

    @property
    def before(self) -> list[JSON]:
        """The messages of the prompt."""
        before: list[JSON] = self.session["messages"][: self.turn["message_index"]]
        return before


@dataclass(frozen=True)
class Student:
    """Who answers: the model, its template, the name that the sessions get, and what fits."""

    model: PreTrainedModel
    chat: Chat
    name: str
    context: float  # tokens of prompt and reply
    vocabulary: int  # ids that the model reads and writes


def hinted_turns(config: RolloutConfig, part: int, reviews: Reviews) -> Iterator[Hinted]:
    """The turns of a part of the source run that have a hint, in order, within `--limit`.

    `reviews` are the decisions on that run that are in force.
    """
    for session, judged in judged_sessions(config.from_run, part, config.limit, reviews):
        for turn, verdict in judged:
            if verdict["hint"] is not None:
                yield Hinted(session, turn, verdict)


def load_student(config: RolloutConfig) -> Student:
    """The model that answers, from disk or hub."""
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model, device=config.device, dtype=config.dtype)
    args = parse_pairs(config.template_arg, "--template-arg")
    return Student(
        model,
        Chat(tokenizer, args, model.generation_config.eos_token_id),
        weights_name(config.model, model_identity(config.model).get("files", {})),
        known_context(model),
        model.get_input_embeddings().weight.shape[0],
    )


def write_replies(config: RolloutConfig, student: Student, part: int, reviews: Reviews, out: PartWriter) -> None:
    """The sessions and turns of one part: `--samples` fresh replies to each prompt.

    Draw g of a turn comes from the stream (seed, turn, g). Prompts that cannot be read are dropped and counted.
    """
    asked: list[tuple[Hinted, list[int]]] = []
    for hinted in hinted_turns(config, part, reviews):
        out.counters.rows_in += 1
        try:
            asked.append((hinted, prompt_ids(student, hinted, config.max_new_tokens)))
        except ChatError as error:
            out.counters.drop(error.reason)
    requests = [
        Request(ids, [token_generator(config.seed, "rollout", hinted.turn_id, g) for g in range(config.samples)])
        for hinted, ids in asked
    ]
    drawn = sample(student.model, requests, temperature=1.0, max_new_tokens=config.max_new_tokens,
                   stop_ids=student.chat.stop_ids, batch_tokens=config.batch_tokens)  # fmt: skip
    for (hinted, _), draws in zip(asked, drawn, strict=True):
        for g, draw in _usable(student, draws, out.counters):
            session = session_row(student, hinted, g, draw)
            out.rows("sessions", [session])
            out.rows("turns", [turn_row(session, draw)])


def prompt_ids(student: Student, hinted: Hinted, max_new_tokens: int) -> list[int]:
    """The prompt as the student reads it. Raises ChatError where it cannot be rendered or leaves no room to reply."""
    ids = student.chat.prompt_ids(hinted.before, hinted.session["tools"])
    if len(ids) + max_new_tokens > student.context:
        raise ChatError(NO_ROOM)
    if max(ids) >= student.vocabulary:
        raise ChatError("tokens outside the model's vocabulary")
    return ids


def _usable(student: Student, draws: Sequence[Sample], counters: Counters) -> Iterator[tuple[int, Sample]]:
    """The draws of one prompt, each with its number, that every later stage can take as they are.

    The others are counted; a turn that has none left is dropped.
    """
    reasons = [_why_not(student, draw) for draw in draws]
    for g, (draw, reason) in enumerate(zip(draws, reasons, strict=True)):
        if reason:
            counters.count("lost replies", label=reason)
            continue
        counters.count("replies")
        counters.count("sampled tokens", len(draw.ids))
        counters.count(CUT_OFF, int(is_cut_off(draw.finish_reason)))
        yield g, draw
    if all(reasons):
        counters.drop(str(reasons[0]))


def _why_not(student: Student, draw: Sample) -> str | None:
    if draw.finish_reason == "memory":
        return TOO_LARGE
    if not all(map(math.isfinite, draw.logprobs)):
        return "log-probs are not finite"
    if max(draw.ids) >= len(student.chat.tokenizer):  # models have rows to spare, for tokens that there are not
        return "a token that the tokenizer lacks"
    return None


def session_row(student: Student, hinted: Hinted, number: int, draw: Sample) -> JSON:
    """The row of tables.SESSIONS: prompt and reply, with all that the log says about the conversation.

    The metadata stay as they are, since `--teacher-route` reads them; the name says which turn is answered.
    """
    text = student.chat.text(draw.ids[:-1] if draw.finish_reason == "stop" else draw.ids)
    return hinted.session | {
        "session_id": rollout_session_id(hinted.turn_id, number),
        "format": "rollout",
        "model": student.name,
        "messages": [*hinted.before, message("assistant", text or None)],
    }


def turn_row(session: JSON, draw: Sample) -> JSON:
    """The row of tables.TURNS for the last message of a session."""
    index = len(session["messages"]) - 1
    return {
        "turn_id": turn_id(session["session_id"], index),
        "session_id": session["session_id"],
        "message_index": index,
        "next_count": 0,  # nobody has reacted to it
        "next_role": None,
        "kind": "main",
        "trainable": True,
        "skip_reason": None,
        "finish_reason": draw.finish_reason,
        "response_token_ids": draw.ids,
        "behavior_logprobs": draw.logprobs,
    }
