"""Replies sampled by the teacher with the hint in its prompt (context distillation; Snell et al. 2022).

The logged reply shows where it went wrong, but not how a corrected reply continues. A sampled reply does. It is scored
like the logged reply, after the same two prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from opdkit.chat.template import ReplyTokens
from opdkit.config.teacher import TeacherConfig
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, choose_reply_room
from opdkit.model.sampling.samples import find_sample_problem
from opdkit.store.counters import Counters
from opdkit.store.turn_ids import session_of
from opdkit.teacher.examples import Example, TaughtSession, make_written_example
from opdkit.teacher.models import Scorer, Teacher


@dataclass(frozen=True)
class HintedTurn:
    """Turn whose logged reply has been scored, its teacher, and the index of the chosen hint in `example.hints`."""

    example: Example
    teacher: Teacher
    chosen: int
    prompt_ids: list[int]  # of the teacher, with the hint
    counters: Counters  # of this turn


def sample_replies(
    config: TeacherConfig, scorer: Scorer, turns: Sequence[HintedTurn], longest_reply: int
) -> list[TaughtSession]:
    """Sample `--teacher-samples` replies to each turn; return them as examples to score.

    The random stream of sample g of a turn depends on (seed, turn, g). A reply may be somewhat longer than the longest
    logged one, up to `--max-new-tokens`. Prompts that leave no room for it, replies that the student cannot read, and
    replies that equal the logged one are counted and left out. A stop token at which the student does not stop is
    replaced by the student's own, which is masked out of the loss.
    """
    samples: dict[int, list[Sample]] = {}
    max_new_tokens = choose_reply_room(longest_reply, config.max_new_tokens)
    for teacher in scorer.teachers.values():
        (model,), (chat,) = teacher.mixture.models, teacher.chats
        requests: dict[int, Request] = {}
        for i, turn in enumerate(turns):
            if turn.teacher is not teacher:
                continue
            longest = max(len(turn.prompt_ids), len(turn.example.prompt.ids))
            if longest + max_new_tokens > scorer.max_tokens:
                turn.counters.count("not written", label="no room for a reply")
                continue
            key = (config.seed, "written", turn.example.verdict["turn_id"])
            requests[i] = Request(turn.prompt_ids, [make_random_stream(*key, g) for g in range(config.samples)])
        sampled = scorer.sampler.sample(model, chat, list(requests.values()), temperature=1.0,
                                        max_new_tokens=max_new_tokens, batch_tokens=config.batch_tokens)  # fmt: skip
        samples |= zip(requests, sampled, strict=True)
    sessions = []
    for _, group in groupby(sorted(samples), key=lambda i: session_of(turns[i].example.verdict["turn_id"])):
        members = list(group)
        examples = [e for i in members for e in _choose_samples(scorer, turns[i], samples[i])]
        sessions.append(TaughtSession(turns[members[0]].teacher, examples))
    return sessions


def _choose_samples(scorer: Scorer, turn: HintedTurn, samples: Sequence[Sample]) -> Iterator[Example]:
    """Yield the samples of a turn that can be trained on, as examples to score; count the others."""
    chat = scorer.student.chat
    for number, reply in enumerate(samples):
        ids, mask = list(reply.ids), [True] * len(reply.ids)
        if reply.finish_reason == "stop" and ids[-1] not in chat.stop_ids and chat.end_id is not None:
            # The student does not stop at this token, and the teacher's log-prob of the student's own means nothing.
            ids[-1], mask[-1] = chat.end_id, False
        problem = find_sample_problem(reply, len(chat.tokenizer)) or (
            "tokens outside the model's vocabulary" if max(reply.ids) >= scorer.vocabulary else
            "nothing but a stop token" if not any(mask) else
            "the logged reply again: the hint changed nothing" if ids == list(turn.example.reply.ids) else None
        )  # fmt: skip
        if problem:
            turn.counters.count("not written", label=problem)
            continue
        turn.counters.count("written by the teacher")
        yield make_written_example(turn.example, turn.chosen, ReplyTokens(ids, mask), reply.logprobs, number)
