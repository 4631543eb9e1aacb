"""Log-probs of a session's replies under the student, and under the teacher with and without each hint.

Shapes as in `opdkit.model.scoring`: R response tokens, K most likely tokens (the support).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from opdkit.model.scoring import LogprobQuery, Logprobs, Mixture, PromptResponse, logprobs_of
from opdkit.model.tree import count_nodes
from opdkit.model.tree_reading import read_trees


@dataclass(frozen=True)
class ReplyReadings:
    """Reply after all prompts that it is scored with: the student's, and the teacher's with each hint and without.

    The teacher's readings hold one PromptResponse per model of the teacher. `hinted` are the candidate hints, shortest
    first; () for a turn without a hint. `unhinted` is None if it is not asked for.
    """

    student: PromptResponse
    hinted: tuple[tuple[PromptResponse, ...], ...] = ()
    unhinted: tuple[PromptResponse, ...] | None = None

    def every(self) -> list[PromptResponse]:
        return [self.student, *(s for readings in self.hinted for s in readings), *(self.unhinted or ())]


def count_tree_tokens(replies: Iterable[ReplyReadings]) -> int:
    """Return the number of tokens in all readings of these replies; shared prefixes count once."""
    return count_nodes([s.prompt_ids + s.response_ids for reply in replies for s in reply.every()])


@dataclass(frozen=True)
class ScoreOptions:
    """Options for what is computed in addition to the log-probs of the reply.

    `top_k`: store the K most likely tokens of `top_k_of` (student or teacher) at each position; 0 stores none.
    `overlap`: choose the hint with which student and teacher share most of their `overlap` top tokens; 0 takes the
    first hint. Top tokens are among the first `vocabulary` ids.
    """

    top_k: int = 0
    top_k_of: str = "student"
    overlap: int = 0
    vocabulary: int | None = None


@dataclass(frozen=True)
class SupportLogprobs:
    """Token ids [R, K], most likely first, with their log-probs under the student and under the hinted teacher."""

    ids: Tensor
    old: Tensor
    teacher: Tensor | None


@dataclass(frozen=True)
class ReplyScores:
    """Scores of one reply: log-probs in float32 [R] on the CPU; None if not asked for, or without a hint."""

    old: Tensor
    teacher: Tensor | None
    unhinted: Tensor | None
    chosen: int | None  # index in `hinted` of the hint that the teacher's numbers belong to
    overlap: float | None  # share of the top tokens that student and hinted teacher have in common, over all positions
    support: SupportLogprobs | None

    def stored_logprobs(self) -> list[Tensor]:
        """Return all log-probs as they are stored, those of the support in half precision."""
        support = (self.support.old, self.support.teacher) if self.support else ()
        halves = [x.half() for x in support if x is not None]
        return [x for x in (self.old, self.teacher, self.unhinted) if x is not None] + halves


def score_session(
    student: PreTrainedModel,
    teacher: Mixture,
    replies: Sequence[ReplyReadings],
    options: ScoreOptions,
    *,
    batch_tokens: int,
    whole: bool = True,
    counted: Counter[str] | None = None,
) -> list[ReplyScores]:
    """Return the scores of every reply of a session, in order. Tokens read and saved are added to `counted`.

    Each model reads the shared prefixes of its prompts once, even if it is both student and teacher; without `whole`,
    once per turn. Several short sessions may be passed together. If the teacher is the student and reads the same
    tokens, its numbers are the student's, bit for bit, so that their difference is exactly 0.
    """
    # Readings of the teacher that equal the student's: the same weights, the same tokens.
    same = [[teacher.models == (student,) and readings == (r.student,) for readings in r.hinted] for r in replies]
    by_model, pending = list_sequences(student, teacher, replies)
    trees = read_trees(by_model, batch_tokens, whole=whole)
    logprobs = partial(logprobs_of, batch_tokens=batch_tokens, reader=trees)

    # The model whose top tokens are stored comes first; the other one is queried at these tokens.
    teacher_first, top = options.top_k_of == "teacher", options.top_k or options.overlap
    student_top = top if options.overlap or not teacher_first else 0
    teacher_top = top if options.overlap or teacher_first else 0
    ask_student = partial(logprobs, Mixture((student,)), top=student_top, vocabulary=options.vocabulary)
    ask_teacher = partial(logprobs, teacher, top=teacher_top, vocabulary=options.vocabulary)
    if options.top_k and teacher_first:
        hinted = _read_hinted_logprobs(ask_teacher, replies, None)
        at = [torch.cat([a.top_ids for a in answers], 1) if answers else None for answers in hinted]
        old = ask_student([LogprobQuery((r.student,), ids) for r, ids in zip(replies, at, strict=True)])
    else:
        old = ask_student([LogprobQuery((r.student,)) for r in replies])
        hinted = _read_hinted_logprobs(ask_teacher, replies, [a.top_ids for a in old] if options.top_k else None)

    answers = iter(logprobs(teacher, [LogprobQuery(readings) for readings in pending if readings]))
    unhinted = [
        None if r.unhinted is None else (next(answers) if readings else answer).logprobs
        for r, readings, answer in zip(replies, pending, old, strict=True)
    ]
    if counted is not None:
        counted.update({"tokens read": trees.tokens, "tokens saved": trees.saved})
    return [_combine(options, *columns) for columns in zip(old, hinted, unhinted, same, strict=True)]


def list_sequences(
    student: PreTrainedModel, teacher: Mixture, replies: Sequence[ReplyReadings]
) -> tuple[list[tuple[PreTrainedModel, list[PromptResponse]]], list[tuple[PromptResponse, ...] | None]]:
    """Return the sequences that each model reads: the student's, and the teacher's with and without hints.

    Return also, for each reply, what the teacher reads without a hint. It is None if that is not asked for, or if the
    teacher is the student and has read it already.
    """
    is_student = teacher.models == (student,)
    pending = [None if is_student and r.unhinted == (r.student,) else r.unhinted for r in replies]
    by_teacher = [*(readings for r in replies for readings in r.hinted), *filter(None, pending)]
    by_model = [(student, [r.student for r in replies])]
    by_model += [(model, [readings[j] for readings in by_teacher]) for j, model in enumerate(teacher.models)]
    return by_model, pending


def _read_hinted_logprobs(
    ask: Callable[[list[LogprobQuery]], list[Logprobs]], replies: Sequence[ReplyReadings], at: Sequence[Tensor] | None
) -> list[list[Logprobs]]:
    """Return the teacher's answers to each candidate hint of each reply; `at` holds further ids [R, K] per reply."""
    ids = at or [None] * len(replies)
    answers = iter(ask([LogprobQuery(readings, ids[n]) for n, r in enumerate(replies) for readings in r.hinted]))
    return [[next(answers) for _ in r.hinted] for r in replies]


def count_shared(a_RK: Tensor, b_RK: Tensor) -> Tensor:
    """Return [R] the number of ids that both rows have. Within a row, all ids are distinct."""
    both = torch.cat([a_RK, b_RK], -1).sort(-1).values
    return (both[:, 1:] == both[:, :-1]).sum(-1)


def _combine(
    options: ScoreOptions, old: Logprobs, hinted: list[Logprobs], unhinted: Tensor | None, same: list[bool]
) -> ReplyScores:
    """Return the scores of one reply. `same[i]`: with hint i, the teacher is the student and reads the same tokens."""
    of_student = options.top_k_of == "student"
    if not hinted:
        support = SupportLogprobs(old.top_ids, old.top, None) if options.top_k and of_student else None
        return ReplyScores(old.logprobs, None, unhinted, None, None, support)
    chosen, overlap = 0, None
    if options.overlap:
        shared = [
            answer.top_ids.numel() if is_same else int(count_shared(old.top_ids, answer.top_ids).sum())
            for answer, is_same in zip(hinted, same, strict=True)
        ]
        chosen = shared.index(max(shared))  # the first of the best, which is the shortest hint
        overlap = shared[chosen] / hinted[chosen].top_ids.numel()
    teacher, support = hinted[chosen], None
    if options.top_k and of_student:
        support = SupportLogprobs(old.top_ids, old.top, teacher.at)
    elif options.top_k:  # the student was queried at the top tokens of all candidates
        columns = slice(chosen * options.top_k, (chosen + 1) * options.top_k)
        support = SupportLogprobs(teacher.top_ids, old.at[:, columns], teacher.top)
    if same[chosen]:
        support = support and SupportLogprobs(support.ids, support.old, support.old)
        return ReplyScores(old.logprobs, old.logprobs, unhinted, chosen, overlap, support)
    return ReplyScores(old.logprobs, teacher.logprobs, unhinted, chosen, overlap, support)
