"""Replies of the models under evaluation: sampled with common random streams, and checked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opdkit.chat.template import Chat, ChatError
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.console import counted, say, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.checks import Criterion, HeldOutPrompt, Patterns, verdict
from opdkit.evaluate.echo import echo_of, index_hints
from opdkit.judge.criterion import criterion_messages, open_criterion_judge, question_id, visible
from opdkit.judge.exchange import Question
from opdkit.judge.parse import parse_reward
from opdkit.model.load import token_generator
from opdkit.model.memory import TooLargeError
from opdkit.model.sampling import Request, Sample, sample
from opdkit.model.scoring import PromptResponse as ScoredSequence


@dataclass(frozen=True)
class Reply:
    """One reply of one model. Sample 0 is the greedy one."""

    prompt: HeldOutPrompt
    model: str  # before or after
    sample: int
    text: str
    seen: str  # the text without its thinking: what checks look at
    sequence: ScoredSequence  # the prompt and the reply as token ids, its stop token included
    finish_reason: str
    passed: bool | None = None
    hint_echo: str | None = None  # what in it echoes a hint

    @property
    def tokens(self) -> int:
        return len(self.sequence.response_ids)

    def row(self) -> JSON:
        return {"prompt_id": self.prompt.id, "domain": self.prompt.domain, "model": self.model, "sample": self.sample,
                "reply": self.text, "finish_reason": self.finish_reason, "passed": self.passed,
                "hint_echo": self.hint_echo}  # fmt: skip


def prompt_ids(chat: Chat, prompt: HeldOutPrompt, max_new_tokens: int, longest: int) -> list[int]:
    """The prompt's token ids. Raises when it cannot be rendered, or leaves no room for a reply within `longest`."""
    try:
        ids = chat.prompt_ids(prompt.messages, prompt.tools)
    except ChatError as error:
        raise OpdkitError(f"held-out prompt {prompt.id}: {error.reason}") from error
    if len(ids) + max_new_tokens > longest:
        raise ConfigError(f"held-out prompt {prompt.id} has {len(ids)} tokens: with --max-new-tokens {max_new_tokens} "
                          f"that is more than the {longest} the model was built for")  # fmt: skip
    return ids


def generate(
    label: str, model: Any, chat: Chat, asked: Sequence[tuple[HeldOutPrompt, list[int]]], config: EvalConfig
) -> list[Reply]:
    """The greedy reply and `--samples` sampled ones to each prompt (with its token ids).

    Draw k of a prompt comes from the stream (seed, prompt id, k), the same for both models: what differs between them
    is the model.
    """
    say(f"{label}: {counted(1 + config.samples, 'reply')} to each of {counted(len(asked), 'prompt')}")
    replies = []
    for numbers, temperature in ((range(1), 0.0), (range(1, config.samples + 1), config.temperature)):
        if not numbers:
            continue
        requests = [
            Request(ids, [token_generator(config.seed, "eval", prompt.id, k) for k in numbers]) for prompt, ids in asked
        ]
        drawn = sample(model, requests, temperature=temperature, max_new_tokens=config.max_new_tokens,
                       stop_ids=chat.stop_ids, batch_tokens=config.batch_tokens)  # fmt: skip
        for (prompt, ids), draws in zip(asked, drawn, strict=True):
            thinking = chat.opens_thinking(ids)
            for k, draw in zip(numbers, draws, strict=True):
                if draw.finish_reason == "memory":
                    raise TooLargeError(f"held-out prompt {prompt.id} with its reply", "try a lower --max-new-tokens")
                text = _text(chat, draw)
                seen, sequence = visible(text, thinking), ScoredSequence(ids, draw.ids)
                replies.append(Reply(prompt, label, k, text, seen, sequence, draw.finish_reason))
    return replies


def _text(chat: Chat, draw: Sample) -> str:
    return chat.text(draw.ids[:-1] if draw.finish_reason == "stop" else draw.ids)


def measured(replies: Sequence[Reply]) -> list[Reply]:
    """What lengths and the like are taken of: the sampled replies, the greedy ones where there are no others."""
    return [r for r in replies if r.sample] or list(replies)


def with_echoes(replies: Sequence[Reply], hints: Iterable[str]) -> list[Reply]:
    """The replies with what in them echoes a hint, be it one of `hints` (see `opdkit.evaluate.echo`)."""
    index = index_hints(hints)
    prompts = {r.prompt.id: r.prompt.text() for r in replies}
    return [replace(r, hint_echo=echo_of(r.text, prompts[r.prompt.id], index)) for r in replies]


# -- checks ----------------------------------------------------------------------------------------------------------


def checked(replies: Sequence[Reply], config: EvalConfig) -> list[Reply]:
    """The replies with what their checks say."""
    asked = {question_id(r.prompt.id, r.seen): r for r in replies if isinstance(r.prompt.check, Criterion) and r.seen}
    verdicts = _judged(asked, config) if asked else {}
    return [replace(r, passed=_passed(r, verdicts)) for r in replies]


def _passed(reply: Reply, verdicts: dict[str, bool | None]) -> bool | None:
    if isinstance(reply.prompt.check, Patterns):
        return reply.prompt.check.passes(reply.seen)
    return verdicts[question_id(reply.prompt.id, reply.seen)] if reply.seen else False


def _judged(asked: dict[str, Reply], config: EvalConfig) -> dict[str, bool | None]:
    questions = [
        Question(name, "criterion", criterion_messages(r.prompt.messages, r.prompt.check.text, r.seen))
        for name, r in asked.items()
        if isinstance(r.prompt.check, Criterion)
    ]
    votes = open_criterion_judge(config)(questions)
    verdicts = {
        question.turn_id: verdict([parse_reward(answer).score for answer in answers])
        for question, answers in zip(questions, votes, strict=True)
    }
    unknown = sum(v is None for v in verdicts.values())
    if unknown:
        warn(f"the judge gave no verdict on {unknown} of {counted(len(verdicts), 'reply')}; they count neither way")
    return verdicts
