"""Replies that the hinted teacher writes itself: what the log never shows, the reply as it should have been.

The logged reply teaches where it goes wrong, and says little about how to go on once it no longer does. A reply that
the teacher samples with the hint in its prompt is scored like the logged one, after the same two prompts (context
distillation; Snell et al. 2022).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from opdkit.chat.template import Reply
from opdkit.config.teacher import TeacherConfig
from opdkit.model.load import token_generator
from opdkit.model.memory import TOO_LARGE
from opdkit.model.sampling import Request, Sample, sample
from opdkit.model.scoring import PromptResponse as ScoredSequence
from opdkit.store import Counters
from opdkit.teacher.examples import Example
from opdkit.teacher.policies import Policy, Scorer, Teacher
from opdkit.teacher.session import Target


@dataclass(frozen=True)
class Hinted:
    """A turn whose logged reply has been scored, and its teacher, which reads hint number `chosen`."""

    example: Example
    teacher: Teacher
    chosen: int

    @property
    def hint(self) -> str:
        return self.example.hints[self.chosen]

    @property
    def prompt_ids(self) -> list[int]:
        """With the hint."""
        return self.example.target.hinted[self.chosen][0].prompt_ids

    @property
    def session_id(self) -> str:
        return str(self.example.verdict["turn_id"]).rpartition(":")[0]


def written(
    config: TeacherConfig, scorer: Scorer, turns: Sequence[Hinted], counters: Counters
) -> Iterator[tuple[Teacher, list[Example]]]:
    """`--teacher-samples` replies to each turn as examples to be scored, the turns of a session together.

    Draw g of a turn comes from the stream (seed, turn, g). A prompt that leaves no room for a reply of
    `--max-new-tokens`, and a reply that the student cannot read, are counted and left out.
    """
    drawn: dict[int, list[Sample]] = {}
    roomy = [i for i, turn in enumerate(turns) if _has_room(config, scorer, turn, counters)]
    for teacher in scorer.teachers.values():
        (policy,) = teacher.policies
        mine = [i for i in roomy if turns[i].teacher is teacher]
        drawn |= zip(mine, _sampled(config, policy, [turns[i] for i in mine]), strict=True)
    for _, group in groupby(sorted(drawn), key=lambda i: turns[i].session_id):
        members = list(group)
        examples = [e for i in members for e in _examples(scorer, turns[i], drawn[i], counters)]
        yield turns[members[0]].teacher, examples


def _has_room(config: TeacherConfig, scorer: Scorer, turn: Hinted, counters: Counters) -> bool:
    longest = max(len(turn.prompt_ids), len(turn.example.prompt.ids))
    fits = longest + config.max_new_tokens <= scorer.max_tokens
    counters.count("not written", int(not fits), label="no room for a reply")
    return fits


def _sampled(config: TeacherConfig, policy: Policy, turns: Sequence[Hinted]) -> list[list[Sample]]:
    requests = [
        Request(
            turn.prompt_ids,
            [
                token_generator(config.seed, "written", turn.example.verdict["turn_id"], g)
                for g in range(config.teacher_samples)
            ],
        )
        for turn in turns
    ]
    return sample(policy.model, requests, temperature=1.0, max_new_tokens=config.max_new_tokens,
                  stop_ids=policy.chat.stop_ids, batch_tokens=config.batch_tokens)  # fmt: skip


def _examples(scorer: Scorer, turn: Hinted, draws: Sequence[Sample], counters: Counters) -> Iterator[Example]:
    plain = turn.example.prompt.ids
    for number, draw in enumerate(draws):
        if draw.finish_reason == "memory":
            counters.count("not written", label=TOO_LARGE)
            continue
        if not all(map(math.isfinite, draw.logprobs)) or max(draw.ids) >= scorer.vocabulary:
            counters.count("not written", label="not readable")
            continue
        counters.rows_in += 1
        counters.count("written by the teacher")
        hinted = (ScoredSequence(turn.prompt_ids, draw.ids),)
        yield replace(
            turn.example,
            verdict=turn.example.verdict | {"reward": None},  # nobody has reacted to it
            reply=Reply(draw.ids, [True] * len(draw.ids)),
            behavior_logprobs=draw.logprobs,
            hints=[turn.hint],
            target=Target(ScoredSequence(plain, draw.ids), (hinted,)),
            written=number,
        )
