"""The log-probs of a session's replies: under the student, under the teacher with each hint, and their supports.

`score_session` is the one entry. Shapes as in `opdkit.model.scoring`: R response tokens, K tokens of a support.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from opdkit.model.scoring import LogprobQuery, Logprobs, Mixture, PromptResponse, logprobs_of
from opdkit.model.tree_reading import Trees

Readings = tuple[PromptResponse, ...]  # one reply after the prompt of each of the teacher's models


@dataclass(frozen=True)
class Target:
    """One reply as the student reads it, and as the teacher does: with each hint that it may get, and without.

    `hinted` are the candidates, shortest first; () is a turn without a hint.
    """

    student: PromptResponse
    hinted: tuple[Readings, ...] = ()
    unhinted: Readings | None = None

    @property
    def readings(self) -> int:
        """How often the reply is read."""
        return 1 + sum(map(len, self.hinted)) + len(self.unhinted or ())

    @property
    def tokens(self) -> int:
        """Tokens of all its readings, prompts included."""
        return sum(len(s) for s in (self.student, *(s for r in self.hinted for s in r), *(self.unhinted or ())))


@dataclass(frozen=True)
class Wanted:
    """What is wanted beside the log-probs of the reply.

    `support`: how many tokens a position, the most likely ones of `support_of` (student or teacher); 0 is none.
    `overlap`: choose among the candidates by their overlap in the top so many; 0 takes the first.
    """

    support: int = 0
    support_of: str = "student"
    overlap: int = 0
    vocabulary: int | None = None


@dataclass(frozen=True)
class Support:
    """Token ids [R, K], most likely first, with their log-probs under the student and under the hinted teacher."""

    ids: Tensor
    old: Tensor
    teacher: Tensor | None


@dataclass(frozen=True)
class Scores:
    """What was found for one target: float32 [R] on the CPU, None where nothing was asked or there is no hint."""

    old: Tensor
    teacher: Tensor | None
    unhinted: Tensor | None
    chosen: int | None  # which of the target's `hinted` the teacher's numbers are from
    overlap: float | None  # mean share of the top K that student and hinted teacher have in common
    support: Support | None

    def stored(self) -> list[Tensor]:
        """All log-probs as they are stored, those of the support in half precision."""
        support = (self.support.old, self.support.teacher) if self.support else ()
        halves = [x.half() for x in support if x is not None]
        return [x for x in (self.old, self.teacher, self.unhinted) if x is not None] + halves


def score_session(
    student: PreTrainedModel,
    teacher: Mixture,
    targets: Items[Target],
    wanted: Wanted,
    *,
    batch_tokens: int,
    whole: bool = True,
    counted: Counter[str] | None = None,
) -> list[Scores]:
    """The scores of every target of one session, in order. `counted` gets the tokens that were read and saved.

    What the prompts of a session have in common, each model reads once, as student and as teacher; with `whole` False,
    turn by turn. Several short sessions may be given at once: they are read together.
    Where the teacher is the student and the hint changes nothing, its numbers are the student's, bit for bit, so that
    their difference is exactly 0.
    """
    leads = wanted.support_of == "teacher"  # whose support it is goes first: the other one is asked about its tokens
    top = wanted.support or wanted.overlap
    trees = Trees(_asked(student, teacher, targets), batch_tokens, whole=whole)
    if counted is not None:
        counted.update({"tokens read": trees.tokens, "tokens saved": trees.saved})
    put = partial(logprobs_of, batch_tokens=batch_tokens, read=trees.read)

    def ask_student(at: Items[Tensor | None]) -> list[Logprobs]:
        questions = [LogprobQuery((t.student,), a) for t, a in zip(targets, at, strict=True)]
        count = top if wanted.overlap or not leads else 0
        return put(Mixture((student,)), questions, top=count, vocabulary=wanted.vocabulary)

    def ask_teacher(at: Items[Tensor | None]) -> list[list[Logprobs]]:
        questions = [LogprobQuery(r, a) for t, a in zip(targets, at, strict=True) for r in t.hinted]
        count = top if wanted.overlap or leads else 0
        answers = put(teacher, questions, top=count, vocabulary=wanted.vocabulary)
        return _grouped(answers, [len(t.hinted) for t in targets])

    nothing = [None] * len(targets)
    if wanted.support and leads:
        hinted = ask_teacher(nothing)
        old = ask_student([torch.cat([a.top_ids for a in some], 1) if some else None for some in hinted])
    else:
        old = ask_student(nothing)
        hinted = ask_teacher([a.top_ids for a in old] if wanted.support else nothing)
    unhinted = _unhinted(student, teacher, targets, old, put)
    same = [[_is_students(student, teacher, t, readings) for readings in t.hinted] for t in targets]
    return [_scores(wanted, *each) for each in zip(old, hinted, unhinted, same, strict=True)]


def _asked(
    student: PreTrainedModel, teacher: Mixture, targets: Items[Target]
) -> list[tuple[PreTrainedModel, list[PromptResponse]]]:
    """Who is asked about which sequences."""
    readings = [r for t in targets for r in t.hinted]
    readings += [t.unhinted for t in targets if t.unhinted and not _is_students(student, teacher, t, t.unhinted)]
    return [
        (student, [t.student for t in targets]),
        *((model, [r[j] for r in readings]) for j, model in enumerate(teacher.models)),
    ]


def _grouped(answers: list[Logprobs], counts: Items[int]) -> list[list[Logprobs]]:
    rest = iter(answers)
    return [[next(rest) for _ in range(count)] for count in counts]


def _unhinted(
    student: PreTrainedModel,
    teacher: Mixture,
    targets: Items[Target],
    old: Items[Logprobs],
    put: Callable[..., list[Logprobs]],
) -> list[Tensor | None]:
    """The teacher's log-probs without the hint; where teacher and student are one, those that are there already."""
    known = [
        None if t.unhinted is None or not _is_students(student, teacher, t, t.unhinted) else a.logprobs
        for t, a in zip(targets, old, strict=True)
    ]
    asked = [i for i, t in enumerate(targets) if t.unhinted is not None and known[i] is None]
    answers = put(teacher, [LogprobQuery(targets[i].unhinted or ()) for i in asked])
    found = {i: answer.logprobs for i, answer in zip(asked, answers, strict=True)}
    return [found.get(i, logprobs) for i, logprobs in enumerate(known)]


def _is_students(student: PreTrainedModel, teacher: Mixture, target: Target, readings: Readings) -> bool:
    """Whether the teacher would read there what the student reads, with the same weights."""
    return teacher.models == (student,) and readings == (target.student,)


def shared(a_RK: Tensor, b_RK: Tensor) -> Tensor:
    """[R] how many ids stand in both rows; within a row no id comes twice."""
    both = torch.cat([a_RK, b_RK], -1).sort(-1).values
    return (both[:, 1:] == both[:, :-1]).sum(-1)


def _scores(wanted: Wanted, old: Logprobs, hinted: list[Logprobs], unhinted: Tensor | None, same: list[bool]) -> Scores:
    """The scores of one target. `same`: which candidates are to the teacher what the student read."""
    if not hinted:
        support = Support(old.top_ids, old.top, None) if wanted.support and wanted.support_of == "student" else None
        return Scores(old.logprobs, None, unhinted, None, None, support)
    chosen, overlap = 0, None
    if wanted.overlap:
        sizes = [a.top_ids.numel() for a in hinted]
        in_common = [
            size if is_same else int(shared(old.top_ids, answer.top_ids).sum())
            for answer, is_same, size in zip(hinted, same, sizes, strict=True)
        ]
        chosen = in_common.index(max(in_common))  # the first of the best, which is the shortest
        overlap = in_common[chosen] / sizes[chosen]
    teacher = hinted[chosen]
    support = _support(wanted, old, teacher, chosen) if wanted.support else None
    if same[chosen]:
        support = support and Support(support.ids, support.old, support.old)
        return Scores(old.logprobs, old.logprobs, unhinted, chosen, overlap, support)
    return Scores(old.logprobs, teacher.logprobs, unhinted, chosen, overlap, support)


def _support(wanted: Wanted, old: Logprobs, teacher: Logprobs, chosen: int) -> Support:
    if wanted.support_of == "student":
        return Support(old.top_ids, old.top, teacher.at)
    mine = slice(chosen * wanted.support, (chosen + 1) * wanted.support)  # it was asked about all candidates' tokens
    return Support(teacher.top_ids, old.at[:, mine], teacher.top)
