"""`opdkit teacher`: verdicts -> targets. Scores every reply that has a signal, without and with the hint.

Student and teacher read the very same response tokens after two prompts, as token ids; only the prompts differ, by
the hint. A turn that cannot be scored is dropped under a named reason and counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import Tensor, isfinite
from transformers import PreTrainedModel

from opdkit.chat import Chat, ChatError, Prompt, Reply, fit, with_hint, without_first
from opdkit.config import parse_pairs
from opdkit.console import progress
from opdkit.errors import ConfigError
from opdkit.models import context_length, load_model, load_tokenizer, same_tokenizer
from opdkit.scoring import Sequence, Target, score_session
from opdkit.stages import TeacherConfig
from opdkit.store import Counters, Stage, Summary, limited, model_identity, part_count, read_part
from opdkit.tables import TARGETS

Row = dict[str, Any]


@dataclass(frozen=True)
class Policy:
    """A model and the chat template that it reads conversations through."""

    model: PreTrainedModel
    chat: Chat


@dataclass(frozen=True)
class Scorer:
    """Who scores, and how much fits: prompt and reply together within `max_tokens`, ids below `vocabulary`."""

    student: Policy
    teacher: Policy
    max_tokens: int
    vocabulary: int


@dataclass(frozen=True)
class Example:
    """One turn ready to be scored."""

    verdict: Row
    prompt: Prompt
    reply: Reply
    target: Target


def run(config: TeacherConfig) -> Summary:
    """Score the judged turns of every part of this shard that is not done yet.

    Raises ConfigError when student and teacher do not share one tokenizer, or `max_tokens` is more than a model reads.
    """
    inputs = {
        role: model_identity(name) for role, name in (("model", config.model), ("teacher", config.teacher)) if name
    }
    parts = part_count(config.run, "judge")
    stage = Stage.open(config, "teacher", [TARGETS], parts=parts, inputs=inputs, upstream=["extract", "judge"])
    todo = stage.todo()
    if not todo:
        return stage.summary()
    scorer = load_scorer(config)
    for part in progress(todo, "teacher", len(todo), "parts"):
        with stage.writing(part) as out:
            for session, judged in judged_sessions(config, part):
                out.counters.rows_in += len(judged)
                examples = list(prepare(config, scorer, session, judged, out.counters))
                out.rows("targets", list(scored_rows(config, scorer, examples, out.counters)))
    return stage.summary()


def load_scorer(config: TeacherConfig) -> Scorer:
    """Student and teacher; where both are the same weights, the model is loaded once."""
    args = parse_pairs(config.template_arg, "--template-arg")
    student = _load_policy(config, config.model, args)
    teacher = student
    if config.teacher and config.teacher != config.model:
        teacher = _load_teacher(config, config.teacher, student, args)
    policies = (student, teacher)
    longest = config.max_tokens or min(context_length(p.model) for p in policies)
    for policy in policies:
        _refuse_longer(longest, policy.model)
    vocabulary = min(p.model.get_input_embeddings().weight.shape[0] for p in policies)
    return Scorer(student, teacher, longest, vocabulary)


def _load_policy(config: TeacherConfig, name: str, template_args: Row) -> Policy:
    tokenizer = load_tokenizer(name)
    model = load_model(name, device=config.device, dtype=config.dtype)
    return Policy(model, Chat(tokenizer, template_args, model.generation_config.eos_token_id))


def _load_teacher(config: TeacherConfig, name: str, student: Policy, template_args: Row) -> Policy:
    """The teacher reads its prompt through its own template; one without a template, through the student's."""
    tokenizer = load_tokenizer(name)
    same_tokenizer(student.chat.tokenizer, tokenizer)
    same = _weights(name) is not None and _weights(name) == _weights(config.model)
    model = student.model if same else load_model(name, device=config.device, dtype=config.dtype)
    return Policy(model, Chat(tokenizer, template_args) if tokenizer.chat_template else student.chat)


def _weights(name: str) -> Row | None:
    """Sizes and digests of what decides a model folder's log-probs; None for a name on the hub."""
    files = model_identity(name).get("files", {})
    return {k: v for k, v in files.items() if k == "config.json" or k.endswith(".safetensors")} or None


def _refuse_longer(max_tokens: int, model: PreTrainedModel) -> None:
    built_for = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if built_for is not None and max_tokens > built_for:
        raise ConfigError(f"--max-tokens is {max_tokens}; {model.name_or_path} was built for at most {built_for}")


# -- verdicts to examples -------------------------------------------------------------------------------------------


def judged_sessions(config: TeacherConfig, part: int) -> Iterator[tuple[Row, list[tuple[Row, Row]]]]:
    """The sessions of a part with their judged turns, each as (turn, verdict), in the order of the verdicts."""
    sessions = read_part(config.run, "sessions", part)[: limited(config.run, part, config.limit)]
    session_of = {s["session_id"]: s for s in sessions}
    turn_of = {t["turn_id"]: t for t in read_part(config.run, "turns", part)}
    judged = [(turn_of[v["turn_id"]], v) for v in read_part(config.run, "verdicts", part)]
    for session_id, group in groupby(judged, key=lambda pair: pair[0]["session_id"]):
        if session_id in session_of:
            yield session_of[session_id], list(group)


def prepare(
    config: TeacherConfig, scorer: Scorer, session: Row, judged: list[tuple[Row, Row]], counters: Counters
) -> Iterator[Example]:
    """The turns of a session as token ids; those that cannot be are dropped and counted."""
    for turn, verdict in judged:
        try:
            if verdict["hint"] is None and verdict["reward"] is None:
                raise ChatError("no signal")
            yield example(config, scorer, session, turn, verdict, counters)
        except ChatError as error:
            counters.drop(error.reason)


def example(
    config: TeacherConfig, scorer: Scorer, session: Row, turn: Row, verdict: Row, counters: Counters
) -> Example:
    """One turn as token ids: both prompts, and the reply that follows them. Raises ChatError."""
    tools, before = session["tools"], session["messages"][: turn["message_index"]]
    reply = reply_of(scorer.student.chat, session, turn, counters)
    if not any(reply.mask):
        raise ChatError("no response tokens")
    budget = scorer.max_tokens - len(reply.ids)
    chat, hinted = scorer.student.chat, None
    if verdict["hint"] is None:
        prompt = fit(chat, before, tools, budget, config.too_long)
    else:
        # What is cut follows from the longer prompt, so that the two differ by the hint and by nothing else.
        with_it = with_hint(before, verdict["hint"], config.hint_placement)
        hinted = fit(scorer.teacher.chat, with_it, tools, budget, config.too_long)
        prompt = fit(chat, without_first(before, hinted.cut), tools, budget, "drop")
        prompt = replace(prompt, cut=hinted.cut)
    target = Target(Sequence(prompt.ids, reply.ids), Sequence(hinted.ids, reply.ids) if hinted else None)
    if max(map(max, (prompt.ids, reply.ids, hinted.ids if hinted else [0]))) >= scorer.vocabulary:
        raise ChatError("tokens outside the model's vocabulary")
    return Example(verdict, prompt, reply, target)


def reply_of(chat: Chat, session: Row, turn: Row, counters: Counters) -> Reply:
    """The reply's tokens: the logged ones where they are tokens of this model, else encoded anew."""
    messages, index, ids = session["messages"], turn["message_index"], turn["response_token_ids"]
    if ids is not None and not is_encoding_of(chat, ids, messages[index]):
        counters.extra["with logged tokens of another tokenizer"] += 1
        ids = None
    return chat.reply(messages, index, session["tools"], turn["finish_reason"], ids)


def is_encoding_of(chat: Chat, ids: list[int], message: Row) -> bool:
    """Whether logged ids are this tokenizer's for the logged message: in range, and reading as what it says.

    White space aside, since templates and servers trim it. Beside the text there may be a little more (think and call
    tags), not another message.
    """
    if not ids or not all(0 <= i < len(chat.tokenizer) for i in ids):
        return False
    said = _squeezed(chat.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    calls = message["tool_calls"]
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


# -- examples to rows -----------------------------------------------------------------------------------------------


def scored_rows(config: TeacherConfig, scorer: Scorer, examples: list[Example], counters: Counters) -> Iterator[Row]:
    """The rows of `targets` for the examples of one session; those without finite log-probs are dropped."""
    targets = [e.target for e in examples]
    student, teacher = scorer.student.model, scorer.teacher.model
    scored = score_session(student, teacher, targets, batch_tokens=config.batch_tokens)
    for ready, (old, hinted) in zip(examples, scored, strict=True):
        counters.extra["tokens scored"] += len(old) + (0 if hinted is None else len(hinted))
        if not (isfinite(old).all() and (hinted is None or isfinite(hinted).all())):
            counters.drop("log-probs are not finite")
            continue
        counters.extra["with a hint"] += hinted is not None
        yield row(ready, old, hinted)


def row(ready: Example, old: Tensor, hinted: Tensor | None) -> Row:
    """One row of `targets`. Without a hint there are no teacher log-probs, whatever the model."""
    verdict = ready.verdict
    return {
        "turn_id": verdict["turn_id"],
        "prompt_tokens": len(ready.prompt.ids),
        "cut_messages": ready.prompt.cut,
        "response_ids": ready.reply.ids,
        "response_mask": ready.reply.mask,
        "old_logprobs": old.tolist(),
        "teacher_logprobs": None if hinted is None else hinted.tolist(),
        "hint": verdict["hint"],
        "reward": verdict["reward"],
    }
