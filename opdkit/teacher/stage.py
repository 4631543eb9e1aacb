"""The loop of `opdkit teacher`: score every reply that has a signal, without and with the hint.

Student and teacher read the very same response tokens after two prompts, as token ids; only the prompts differ, by
the hint. A turn that cannot be scored is dropped under a named reason and counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor, isfinite

from opdkit.chat.template import ChatError
from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.teacher import TeacherConfig
from opdkit.console import counted, progress, warn
from opdkit.errors import ConfigError
from opdkit.model.memory import TOO_LARGE, Budget, OutOfMemory, budget_of, run_or_out_of_memory
from opdkit.store import (
    Counters,
    Stage,
    Summary,
    manifest,
    mostly_dropped,
    part_count,
    refuse_nothing,
)
from opdkit.store.joined import joined_turns
from opdkit.store.reviews import Reviews, in_force, part_inputs
from opdkit.store.tables import TARGETS
from opdkit.teacher.behavior import LONGEST_NAME, OTHER_MODEL, UNROUTED, is_another, off_policy
from opdkit.teacher.examples import Example, prepare
from opdkit.teacher.lockstep import join
from opdkit.teacher.policies import Scorer, Teacher, identities, load_scorer
from opdkit.teacher.reviewed import JudgedSession, reviewed_targets
from opdkit.teacher.session import Scores, Target, Wanted, score_session
from opdkit.teacher.written import Hinted, written

Row = dict[str, Any]
Scored = tuple[Example, Scores]

_OVERLAP_TOP = 4  # tokens that --teacher-hint overlap compares where --top-k does not say


def run(config: TeacherConfig) -> Summary:
    """Score the judged turns of every part of this shard that is not done yet.

    Raises ConfigError when student and teacher do not share one tokenizer, or `max_tokens` is more than a model reads.
    """
    crew, config = join(replace(config, template_arg=sampled_template_args(config)))
    # Once: what is decided from now on is for the next time.
    decided = part_inputs(config.run, crew.agreed(in_force(config.run)))
    scorer = cache(lambda: load_scorer(config))  # another reward needs no model
    if config.overwrite:
        scorer()  # before anything is thrown away for it
    stage = crew.in_turn(lambda first: _open(config if first else replace(config, overwrite=False), decided))
    if todo := crew.agreed(stage.todo()):

        def score(sessions: list[JudgedSession], counters: Counters) -> list[Row]:
            return part_rows(config, scorer(), sessions, counters)

        for part in progress(todo, "teacher", len(todo), "parts"):
            crew.stop_if_asked()
            with stage.writing(part) as out:
                sessions = list(judged_sessions(config.run, part, config.limit, {}))
                by_people = decided(part).get("reviews", {})
                targets, counters = reviewed_targets(config, part, sessions, by_people, score)
                out.table("targets", targets)
                out.counters.merge(counters)
    crew.leave()
    summary = stage.summary()
    for message in warnings(config, summary.counters):
        warn(message)
    judged = counted(summary.counters.rows_in, "judged reply")
    refuse_nothing(summary, f"none of {judged} became a target")
    return summary


def _open(config: TeacherConfig, decided: Callable[[int], JSON]) -> Stage:
    parts, inputs = part_count(config.run, "judge"), identities(config)
    return Stage.open(config, "teacher", [TARGETS], parts=parts, inputs=inputs, upstream=["extract", "judge"],
                      part_inputs=decided)  # fmt: skip


def sampled_template_args(config: TeacherConfig) -> tuple[str, ...]:
    """The chat template's arguments: in a run of fresh replies (`opdkit rollout`), those that they were sampled with.

    Raises ConfigError when `--template-arg` says otherwise: the prompts would not be those that the replies answer.
    """
    sampled = manifest(config.run, "extract")["plan"]["config"].get("template_arg")
    if sampled is None:
        return config.template_arg
    flag = "--template-arg"
    if config.template_arg and parse_pairs(config.template_arg, flag) != parse_pairs(sampled, flag):
        raise ConfigError(
            f"{flag} {' '.join(config.template_arg)} differs from what the replies of {config.run} were sampled with "
            f"({' '.join(sampled) or 'none'}); leave it out: the same arguments are used"
        )
    return tuple(sampled)


def judged_sessions(run: Path, part: int, limit: int | None, reviews: Reviews) -> Iterator[JudgedSession]:
    """The sessions of a part (of the first `limit` of the run) with their judged turns, in the verdicts' order.

    The verdicts are as the decisions of people leave them.
    """
    judged = (turn for turn in joined_turns(run, part, limit=limit, reviews=reviews) if turn.verdict is not None)
    for _, group in groupby(judged, key=lambda turn: turn.session_id):
        turns = list(group)
        yield turns[0].session, [(turn.turn, turn.decided or {}) for turn in turns]


def part_rows(config: TeacherConfig, scorer: Scorer, sessions: list[JudgedSession], counters: Counters) -> list[Row]:
    """The rows of `targets` for the sessions of a part, in their order; then what the teacher writes itself."""
    order = sorted(range(len(sessions)), key=lambda i: -_length(sessions[i]))
    tracked = progress(order, "scoring", len(order), "sessions")
    prepared = ((i, *found) for i in tracked if (found := _examples(config, scorer, sessions[i], counters)))
    logged = scored(config, scorer, prepared, counters)
    own: list[Scored] = []
    if config.teacher_samples:
        hinted = [
            Hinted(example, scorer.teacher_of(sessions[i][0]), scores.chosen)
            for i in sorted(logged)
            for example, scores in logged[i]
            if scores.chosen is not None
        ]
        replies = enumerate(written(config, scorer, hinted, counters))
        own = _in_order(scored(config, scorer, ((n, *found) for n, found in replies), counters))
    return [row(example, scores) for example, scores in _in_order(logged) + own]


def _in_order(groups: dict[int, list[Scored]]) -> list[Scored]:
    return [found for i in sorted(groups) for found in groups[i]]


def _length(session: JudgedSession) -> int:
    """Characters, which are about as many as tokens for the purpose of an order."""
    return sum(len(message["content"] or "") for message in session[0]["messages"])


def _examples(
    config: TeacherConfig, scorer: Scorer, session: JudgedSession, counters: Counters
) -> tuple[Teacher, list[Example]] | None:
    """A session as token ids, and who teaches it; turns that cannot be scored are dropped and counted."""
    row, judged = session
    counters.rows_in += len(judged)
    try:
        teacher = scorer.teacher_of(row)
    except ChatError as error:
        counters.drop(error.reason, len(judged))
        counters.count(UNROUTED)
        return None
    if is_another(row["model"], scorer.names):
        counters.count(OTHER_MODEL, label=row["model"][:LONGEST_NAME])
    return teacher, list(prepare(config, scorer, teacher, row, judged, counters))


def together(
    prepared: Iterable[tuple[int, Teacher, list[Example]]], batch_tokens: Callable[[], int]
) -> Iterator[tuple[Teacher, list[tuple[int, list[Example]]]]]:
    """Neighbours of one teacher that are at most `batch_tokens` (now) together; a longer session goes alone."""
    waiting, tokens, of = list[tuple[int, list[Example]]](), 0, None
    for i, teacher, examples in prepared:
        size = sum(example.target.tokens for example in examples)
        if of is not None and (teacher is not of or tokens + size > batch_tokens()):
            yield of, waiting
            waiting, tokens = [], 0
        waiting, tokens, of = [*waiting, (i, examples)], tokens + size, teacher
    if of is not None:
        yield of, waiting


def scored(
    config: TeacherConfig,
    scorer: Scorer,
    prepared: Iterable[tuple[int, Teacher, list[Example]]],
    counters: Counters,
) -> dict[int, list[Scored]]:
    """The scores of groups of examples, each group under its number; what has none is dropped and counted.

    Neighbours are scored together, as many as are `batch_tokens` together, or as fit into memory.
    """
    budget = budget_of(scorer.student.model, "scoring sessions")
    groups: dict[int, list[Scored]] = {}
    for teacher, some in together(prepared, lambda: budget.within(config.batch_tokens)):
        targets = [example.target for _, examples in some for example in examples]
        every = iter(_scores(config, scorer, teacher, targets, budget, counters))
        for i, examples in some:
            both = [(example, s) for example in examples if (s := next(every)) is not None]
            if len(both) < len(examples):
                counters.drop(TOO_LARGE, len(examples) - len(both))
            groups[i] = [found for found in both if _is_finite(*found, counters)]
    return groups


def _scores(
    config: TeacherConfig, scorer: Scorer, teacher: Teacher, targets: list[Target], budget: Budget, counters: Counters
) -> list[Scores | None]:
    """The scores of targets that are read together; where that does not fit into memory, of each half by itself.

    None for a target that does not fit alone, each of its sequences read by itself.
    """

    def score(batch_tokens: int, whole: bool) -> tuple[list[Scores], Counter[str]]:
        counted = Counter[str]()
        model, what = scorer.student.model, wanted(config, scorer)
        found = score_session(
            model, teacher.mixture, targets, what, batch_tokens=batch_tokens, whole=whole, counted=counted
        )
        return found, counted

    found = run_or_out_of_memory(lambda: score(budget.within(config.batch_tokens), not config.turn_by_turn))
    if isinstance(found, OutOfMemory) and len(targets) > 1:
        budget.halve(sum(target.tokens for target in targets))
        half = len(targets) // 2
        halves = targets[:half], targets[half:]
        return [s for some in halves for s in _scores(config, scorer, teacher, some, budget, counters)]
    if isinstance(found, OutOfMemory):
        found = run_or_out_of_memory(lambda: score(1, False))
    if isinstance(found, OutOfMemory):
        return [None]
    for name, n in found[1].items():
        counters.count(name, n)
    return list(found[0])


def _is_finite(example: Example, scores: Scores, counters: Counters) -> bool:
    counters.count("tokens scored", len(scores.old) * example.target.readings)
    if not all(isfinite(x).all() for x in scores.stored()):
        counters.drop("log-probs are not finite")
        return False
    counters.count("with a hint", int(scores.chosen is not None))
    return True


def wanted(config: TeacherConfig, scorer: Scorer) -> Wanted:
    """What the options ask for beside the log-probs of the replies."""
    overlap = (config.top_k or _OVERLAP_TOP) if config.teacher_hint == "overlap" else 0
    return Wanted(config.top_k, config.top_k_of, overlap, scorer.vocabulary)


def row(example: Example, scores: Scores) -> Row:
    """One row of `targets`. Without a hint there are no teacher log-probs, whatever the model."""
    support = scores.support
    return {
        "turn_id": example.verdict["turn_id"],
        "written": example.written,
        "prompt_tokens": len(example.prompt.ids),
        "cut_messages": example.prompt.cut,
        "response_ids": example.reply.ids,
        "response_mask": example.reply.mask,
        "old_logprobs": scores.old.tolist(),
        "teacher_logprobs": _list(scores.teacher),
        "unhinted_logprobs": _list(scores.unhinted),
        "behavior_logprobs": example.behavior_logprobs,
        "hint": None if scores.chosen is None else example.hints[scores.chosen],
        "overlap": scores.overlap,
        "support_ids": None if support is None else support.ids.int().numpy(),
        "support_old": None if support is None else support.old.half().numpy(),
        "support_teacher": None if support is None or support.teacher is None else support.teacher.half().numpy(),
        "reward": example.verdict["reward"],
    }


def _list(logprobs: Tensor | None) -> list[float] | None:
    return None if logprobs is None else logprobs.tolist()


def warnings(config: TeacherConfig, counters: Counters) -> list[str]:
    """In words, what looks wrong with a stage's targets as a whole."""
    found = mostly_dropped("teacher", counters)
    if counters.rows_in and counters.total(UNROUTED) and not counters.rows_out:
        found.append(
            f"no session's metadata field {config.teacher_route!r} names a teacher: give each as NAME=PATH with a "
            "name that stands in that field (the column `metadata` of the sessions table shows what does)"
        )
    if long := counters.dropped["too long"]:
        found.append(f"too long for the model, with what came before: {counted(long, 'reply')}; --too-long cut leaves "
                     "out the beginnings of such conversations")  # fmt: skip
    message = off_policy(counters.labels(OTHER_MODEL), config.model)
    return [*found, message] if message else found
