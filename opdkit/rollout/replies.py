"""Fresh replies: the current student answers the prompts of the hinted turns, at temperature 1.

A reply is stored as sampled token ids with log-probs: the behaviour policy of these sessions is the student itself. The
text of a reply is only for people and for the judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.messages import message
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.rollout import RolloutConfig
from opdkit.model.folder import name_weights
from opdkit.model.load import context_length, load_model, load_template
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample
from opdkit.model.sampling.sampler import Sampler
from opdkit.model.sampling.samples import find_sample_problem
from opdkit.store.dropped_hints import DROPPED
from opdkit.store.joined_turns import CHECKED, JoinedTurn, joined_turns
from opdkit.store.part_writer import PartWriter
from opdkit.store.plans import identify_model
from opdkit.store.reviews import Reviews
from opdkit.store.turn_ids import rollout_session_id, turn_id

CUT_OFF_COUNT = "cut off by the limit"
NO_ROOM = "no room for a reply"


@dataclass(frozen=True)
class Student:
    """Model that answers, its chat template, and its limits."""

    model: PreTrainedModel
    chat: Chat
    name: str  # of the model, for the sessions
    context: float  # tokens of prompt and reply
    vocabulary: int  # ids that the model reads and writes
    sampler: Sampler


def hinted_turns(config: RolloutConfig, part: int, reviews: Reviews) -> list[tuple[JoinedTurn, JSON]]:
    """Return the turns of a part of the source run that have a hint, with their verdicts, in order, within `--limit`.

    Turns whose hint `--check-hints` dropped are included, so that they can be counted. `reviews` are the review
    decisions in force on that run.
    """
    turns = joined_turns(config.from_run, part, CHECKED, limit=config.limit, reviews=reviews)
    judged = [(turn, verdict) for turn in turns if (verdict := turn.final_verdict) is not None]
    return [(turn, v) for turn, v in judged if v["hint"] is not None or v["hint_status"] in DROPPED]


def load_answering_model(config: RolloutConfig) -> Student:
    """Load the model that answers, from disk or hub."""
    chat = load_template(config.model, config.template_arg)
    model = load_model(config.model, device=config.device, dtype=config.dtype, load_in_4bit=config.load_in_4bit)
    name = name_weights(config.model, identify_model(config.model).get("files", {}))
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return Student(model, chat, name, context_length(model), vocabulary, Sampler(config))


def write_replies(
    config: RolloutConfig, student: Student, turns: Sequence[tuple[JoinedTurn, JSON]], out: PartWriter
) -> None:
    """Write the sessions and turns of one part: `--samples` fresh replies to the prompt of each of `hinted_turns`.

    Sample g of a turn comes from the random stream (seed, turn, g). A turn is dropped and counted if its hint was
    dropped, if its prompt cannot be read or leaves no room, or if all of its replies are lost.
    """
    counters = out.counters
    answered, requests = [], []
    for turn, verdict in turns:
        counters.rows_in += 1
        if verdict["hint"] is None:
            counters.drop(f"hint {verdict['hint_status']}")
            continue
        try:
            ids = encode_prompt(student, turn, config.max_new_tokens)
        except ChatError as error:
            counters.drop(error.reason)
            continue
        streams = [make_random_stream(config.seed, "rollout", turn.turn_id, g) for g in range(config.samples)]
        answered.append(turn)
        requests.append(Request(ids, streams))
    drawn = student.sampler.sample(student.model, student.chat, requests, temperature=1.0,
                                   max_new_tokens=config.max_new_tokens, batch_tokens=config.batch_tokens)  # fmt: skip
    for turn, samples in zip(answered, drawn, strict=True):
        problems = [find_sample_problem(reply, len(student.chat.tokenizer)) for reply in samples]
        for g, (reply, problem) in enumerate(zip(samples, problems, strict=True)):
            if problem:
                counters.count("lost replies", label=problem)
                continue
            counters.count("replies")
            counters.count("sampled tokens", len(reply.ids))
            counters.count(CUT_OFF_COUNT, int(is_cut_off(reply.finish_reason)))
            session = make_session_row(student, turn, g, reply)
            out.add_rows("sessions", [session])
            out.add_rows("turns", [make_turn_row(session, reply)])
        if all(problems):
            counters.drop(str(problems[0]))


def encode_prompt(student: Student, turn: JoinedTurn, max_new_tokens: int) -> list[int]:
    """Return the prompt as the student reads it.

    Raises ChatError for a prompt that cannot be rendered or leaves no room for a reply.
    """
    ids = student.chat.prompt_ids(turn.session["messages"][: turn.index], turn.session["tools"])
    if len(ids) + max_new_tokens > student.context:
        raise ChatError(NO_ROOM)
    if max(ids) >= student.vocabulary:
        raise ChatError("tokens outside the model's vocabulary")
    return ids


def make_session_row(student: Student, turn: JoinedTurn, number: int, reply: Sample) -> JSON:
    """Return the row of tables.SESSIONS: prompt and reply, with all that the log says about the conversation.

    The metadata are unchanged, since `--teacher-route` reads them; the session's id says which turn is answered.
    """
    text = student.chat.text(reply.text_ids)
    return turn.session | {
        "session_id": rollout_session_id(turn.turn_id, number),
        "format": "rollout",
        "model": student.name,
        "messages": [*turn.session["messages"][: turn.index], message("assistant", text or None)],
    }


def make_turn_row(session: JSON, reply: Sample) -> JSON:
    """Return the row of tables.TURNS for the last message of a session."""
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
        "finish_reason": reply.finish_reason,
        "response_token_ids": reply.ids,
        "behavior_logprobs": reply.logprobs,
        "decision": None,
    }
