"""Targets of one part: its turns as examples, scored together as far as memory allows, and their rows."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import pyarrow as pa
from torch import isfinite

from opdkit.chat.template import ChatError, ReplyTokens
from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.console import progress
from opdkit.model.behavior_policy import LONGEST_NAME, OTHER_MODEL, is_other_model
from opdkit.model.memory import TOO_LARGE, Attempt, Budget, find_budget
from opdkit.model.tree_reading import estimate_tokens
from opdkit.store.counters import Counters
from opdkit.store.tables import TARGETS, to_arrow
from opdkit.store.turn_ids import first_branch
from opdkit.teacher.edits import apply_edit, make_edited_example
from opdkit.teacher.examples import Example, JudgedSession, Row, TaughtSession, make_example, make_written_example
from opdkit.teacher.models import Scorer
from opdkit.teacher.review_changes import apply_decisions, find_turns_to_rescore
from opdkit.teacher.samples import HintedTurn, sample_replies
from opdkit.teacher.scores import ReplyScores, ScoreOptions, count_tree_tokens, list_sequences, score_session
from opdkit.teacher.warnings import UNROUTED

_OVERLAP_TOP = 4  # tokens that --teacher-hint overlap compares if --top-k is 0
READ_FOR_SAMPLES = "tokens read for samples"  # counter of a dry run


@dataclass
class TurnResult:
    """Rows of one turn (the logged reply first, then written replies) and their counters."""

    rows: list[Row] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


Results = dict[str, TurnResult]  # turn_id -> its result, in the order of the turns


def score_part(
    config: TeacherConfig, scorer: Scorer, sessions: list[JudgedSession], decisions: JSON, counters: Counters
) -> Results:
    """Return the results of a part's turns, in their order, and count them.

    `decisions` are the decisions of people about its turns; see `opdkit.teacher.review_changes`.
    """
    for session, _ in sessions:
        try:
            scorer.choose_teacher(session)
        except ChatError:
            counters.count(UNROUTED)
        else:
            if is_other_model(session["model"], scorer.names):
                counters.count(OTHER_MODEL, label=session["model"][:LONGEST_NAME])
    results: Results = {}
    # First the whole part with the verdicts of the votes, then each turn whose hint people decided, replacing its rows.
    decided_turns = find_turns_to_rescore(sessions, decisions, config.teacher_hint)
    longest_of_part = 0  # tokens of the longest hinted reply; rescored turns do not raise it for others
    for scored_together in (sessions, *([turn] for turn in decided_turns)):
        scored = {judged.turn["turn_id"]: TurnResult() for one in scored_together for judged in one.turns}
        examples = _make_examples(config, scorer, scored_together, scored)
        if config.dry_run:
            count_reads(config, scorer, examples, scored, counters)
        else:
            hinted = score_replies(config, scorer, examples, scored, counters)
            if config.samples:
                order = {turn_id: n for n, turn_id in enumerate(scored)}
                hinted.sort(key=lambda turn: order[turn.example.verdict["turn_id"]])
                unedited = [turn for turn in hinted if turn.example.edited is None]
                longest = max([longest_of_part, *(len(turn.example.reply.ids) for turn in hinted)])
                if scored_together is sessions:
                    longest_of_part = longest
                score_replies(config, scorer, sample_replies(config, scorer, unedited, longest), scored, counters)
        results |= scored
    for result in results.values():
        counters.merge(result.counters)
        counters.rows_in += len(result.rows) + result.counters.dropped.total()
        counters.count("with a hint", sum(row["hint"] is not None for row in result.rows))
    return results


def make_targets_table(results: Results, sessions: list[JudgedSession], decisions: JSON) -> pa.Table:
    """Return the targets of a part: logged replies in the order of their turns, then written replies.

    The rewards are those of the verdicts after the decisions of people (`decisions`).
    """
    rows = [row for result in results.values() for row in result.rows]
    verdicts = {judged.turn["turn_id"]: apply_decisions(judged.verdict, decisions)
                for one in sessions for judged in one.turns}  # fmt: skip
    for row in rows:
        if row["written"] is None:  # nobody has reacted to a written reply
            row["reward"] = verdicts[row["turn_id"]]["reward"]
    rows.sort(key=lambda row: row["written"] is not None)
    return to_arrow(TARGETS, rows)


def _make_examples(
    config: TeacherConfig, scorer: Scorer, sessions: list[JudgedSession], results: Results
) -> Iterator[TaughtSession]:
    """Yield each session, the longest first, as its teacher and its turns, each followed by its edited reply, if any.

    Turns that cannot be scored are dropped. The branches of a conversation count as one session, so that their common
    prefix is read once.
    """
    groups = groupby(sessions, key=lambda one: first_branch(one.session["session_id"]))
    # Characters sort sessions in about the same order as tokens.
    order = sorted([list(branches) for _, branches in groups], reverse=True, key=lambda branches: max(
        sum(len(message["content"] or "") for message in one.session["messages"]) for one in branches))  # fmt: skip
    for branches in progress(order, "scoring", len(order), "sessions"):
        teacher = None
        examples: list[Example] = []
        for session, turn, verdict in ((one.session, *judged) for one in branches for judged in one.turns):
            counters = results[verdict["turn_id"]].counters
            try:
                teacher = scorer.choose_teacher(session)
                example = make_example(config, scorer, teacher, session, turn, verdict, counters)
            except ChatError as error:
                counters.drop(error.reason)
            else:
                examples += filter(None, (example, make_edited_example(scorer, example, counters)))
        if teacher is not None:
            yield TaughtSession(teacher, examples)


def batch_sessions(sessions: Iterable[TaughtSession], budget: Budget, batch_tokens: int) -> Iterator[TaughtSession]:
    """Yield neighbouring sessions of one teacher merged into one of at most `batch_tokens` tokens within the budget.

    Prefixes that the replies of a session share count once. A session with more tokens is not merged.
    """
    waiting: list[Example] = []
    tokens, last = 0, None
    for teacher, examples in sessions:
        size = count_tree_tokens(example.readings for example in examples)
        if last is not None and (teacher is not last or tokens + size > min(batch_tokens, budget.max_tokens)):
            yield TaughtSession(last, waiting)
            waiting, tokens = [], 0
        waiting, tokens, last = [*waiting, *examples], tokens + size, teacher
    if last is not None:
        yield TaughtSession(last, waiting)


def score_replies(
    config: TeacherConfig, scorer: Scorer, sessions: Iterable[TaughtSession], results: Results, counters: Counters
) -> list[HintedTurn]:
    """Score the examples and add their rows to `results`; return the logged turns that have a hint.

    Neighbouring sessions are scored together. If that does not fit into memory, each half is scored by itself, and a
    single reply that does not fit is scored one prompt at a time.
    """
    student = scorer.student.model
    turns: list[HintedTurn] = []
    overlap = (config.top_k or _OVERLAP_TOP) if config.teacher_hint == "overlap" else 0
    options = ScoreOptions(config.top_k, config.top_k_of, overlap, scorer.vocabulary)
    budget = find_budget(student, "scoring sessions")
    for teacher, examples in batch_sessions(sessions, budget, config.batch_tokens):
        sizes = [sum(map(len, example.readings.every())) for example in examples]
        share_read = count_tree_tokens(example.readings for example in examples) / max(1, sum(sizes))
        for attempt in budget.halves([math.ceil(share_read * size) for size in sizes]):
            batch = [examples[i] for i in attempt.items]
            replies = [example.readings for example in batch]
            counted_tokens: Counter[str] = Counter()
            score_batch = partial(score_session, student, teacher.mixture, replies, options, counted=counted_tokens)
            with attempt:
                limit = min(config.batch_tokens, budget.max_tokens)
                scores = score_batch(batch_tokens=limit, whole=not config.turn_by_turn)
            failed = attempt.failed
            if attempt.too_large:
                with Attempt() as alone:
                    scores = score_batch(batch_tokens=1, whole=False)
                failed = alone.failed
                if failed:
                    results[batch[0].verdict["turn_id"]].counters.drop(TOO_LARGE)
            if failed:
                continue
            for example, score in zip(batch, scores, strict=True):
                counted_tokens["tokens scored"] += len(score.old) * len(example.readings.every())
                result = results[example.verdict["turn_id"]]
                if not all(isfinite(x).all() for x in score.stored_logprobs()):
                    result.counters.drop("log-probs are not finite")
                    continue
                result.rows.append(_make_row(example, apply_edit(score, example)))
                if score.chosen is not None and example.written is None:
                    hinted_ids = example.readings.hinted[score.chosen][0].prompt_ids
                    turns.append(HintedTurn(example, teacher, score.chosen, hinted_ids, result.counters))
            for name, number in counted_tokens.items():
                counters.count(name, number)
    return turns


def count_reads(
    config: TeacherConfig, scorer: Scorer, sessions: Iterable[TaughtSession], results: Results, counters: Counters
) -> None:
    """Count what `score_replies` would read (`--dry-run`: models have no weights). Add rows without log-probs.

    Samples count with their greatest length, as replies that share no tokens.
    """
    student = scorer.student.model
    samples = [ReplyTokens([-1 - n] * config.max_new_tokens, []) for n in range(config.samples)]
    for teacher, examples in batch_sessions(sessions, find_budget(student, "scoring sessions"), config.batch_tokens):
        sampled = [make_written_example(example, -1, reply, None, n) for n, reply in enumerate(samples)
                   for example in examples if example.hints and example.edited is None]  # fmt: skip
        (read, saved), (read_of_samples, _) = (
            estimate_tokens(list_sequences(student, teacher.mixture, [example.readings for example in group])[0],
                            config.batch_tokens, whole=not config.turn_by_turn) for group in (examples, sampled)
        )  # fmt: skip
        counters.count("tokens read", read)
        counters.count("tokens saved", saved)
        counters.count("replies to sample", len(sampled))
        # Without a server, the samples of a turn share their prompt.
        asked = sampled if config.sample_url else [example for example in sampled if example.written == 0]
        prompts = sum(len(example.readings.hinted[0][0].prompt_ids) for example in asked)
        counters.count(READ_FOR_SAMPLES, prompts, label="to sample")
        counters.count(READ_FOR_SAMPLES, read_of_samples, label="to score, at most")
        for example in examples:
            counters.count("tokens scored", len(example.reply.ids) * len(example.readings.every()))
            row = {"written": example.written, "hint": next(iter(example.hints), None), "edited": example.edited}
            results[example.verdict["turn_id"]].rows.append(row)


def _make_row(example: Example, scores: ReplyScores) -> Row:
    """Return one row of `targets`. Without a hint it has no teacher log-probs, even if the teacher is another model."""
    support = scores.support
    teacher, unhinted = (None if x is None else x.tolist() for x in (scores.teacher, scores.unhinted))
    return {
        "turn_id": example.verdict["turn_id"],
        "written": example.written,
        "prompt_tokens": len(example.prompt.ids),
        "cut_messages": example.prompt.cut,
        "response_ids": example.reply.ids,
        "response_mask": example.reply.mask,
        "old_logprobs": scores.old.tolist(),
        "teacher_logprobs": teacher,
        "unhinted_logprobs": unhinted,
        "behavior_logprobs": example.behavior_logprobs,
        "hint": None if scores.chosen is None else example.hints[scores.chosen],
        "overlap": scores.overlap,
        "support_ids": None if support is None else support.ids.int().numpy(),
        "support_old": None if support is None else support.old.half().numpy(),
        "support_teacher": None if support is None or support.teacher is None else support.teacher.half().numpy(),
        "reward": example.verdict["reward"],
    }
