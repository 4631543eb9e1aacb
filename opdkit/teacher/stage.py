"""Loop of `opdkit teacher`: score every reply that has a signal, with and without the hint.

Student and teacher read the same response tokens after two prompts that differ only by the hint, all as token ids. A
turn that cannot be scored is dropped and counted under a named reason.

    run -> score_part -> score_replies -> score_session -> logprobs_of
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from heapq import nsmallest
from itertools import groupby
from typing import Any

import pyarrow as pa
from torch import isfinite

from opdkit.chat.template import ChatError
from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.console import counted, progress, say, warn
from opdkit.judge.kept_answers import kept_answers, remove_answers_of_done_parts
from opdkit.judge.votes import TRIAL
from opdkit.model.behavior_policy import LONGEST_NAME, OTHER_MODEL, is_other_model
from opdkit.model.memory import TOO_LARGE, Attempt, Budget, budget_of
from opdkit.model.scoring import Mixture
from opdkit.model.tree_reading import estimate_tokens
from opdkit.store.counters import Counters, Summary, check_rows_left, read_counters
from opdkit.store.dry_run import describe_costs, print_dry_run
from opdkit.store.part_writer import Stage
from opdkit.store.plans import stage_dir
from opdkit.store.reading import is_written, part_count, part_path, read_part
from opdkit.store.reviews import part_inputs, reviews_in_force
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import HINT_CHECKS, TARGETS, to_arrow
from opdkit.store.template_args import template_args_of
from opdkit.store.turn_ids import first_branch
from opdkit.teacher import hint_checks
from opdkit.teacher.examples import Example, Row, make_example
from opdkit.teacher.models import Scorer, Teacher, load_scorer, model_inputs
from opdkit.teacher.process_group import join
from opdkit.teacher.review_changes import (
    JudgedSession,
    decided_verdict,
    judged_sessions,
    turns_to_rescore,
    with_decided_rewards,
)
from opdkit.teacher.samples import HintedTurn, sample_replies
from opdkit.teacher.scores import ScoreOptions, Scores, count_tree_tokens, readings_by_model, score_session
from opdkit.teacher.warnings import CHECKED, UNROUTED, warnings

_OVERLAP_TOP = 4  # tokens that --teacher-hint overlap compares where --top-k is 0
_DECIDED = "decided by people"  # counter


@dataclass
class TurnResult:
    """Rows of one turn, that of the logged reply before those of sampled replies, and what is counted of them."""

    rows: list[Row] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


Results = dict[str, TurnResult]  # turn_id -> its result, in the order of the turns


def run(config: TeacherConfig) -> Summary:
    """Score the judged turns of every part of this shard that is not done yet. Raises what `load_scorer` raises.

    With `--check-hints`, test the hints of a part first, and score without those that do not help.
    """
    template_args = template_args_of(config.run, "extract", config.template_arg)
    group, config = join(replace(config, template_arg=template_args, **hint_checks.judge_of(config)))
    # Read once: decisions that people make from now on are for the next run of this command.
    inputs_of_part = part_inputs(config.run, group.broadcast(reviews_in_force(config.run)))
    scorer = cache(partial(load_scorer, config))  # loaded when it is needed first
    judge = cache(lambda: hint_checks.open_judge(config, scorer(), stage_dir(config.run, "teacher")))
    if config.overwrite and not config.dry_run:  # it deletes the old targets: only where the models are there
        scorer()
        if config.check_hints and config.judge_url:
            hint_checks.open_judge(config, scorer())([TRIAL])
    with group.main_first():
        stage = Stage.open(
            replace(config, overwrite=config.overwrite and group.rank == 0),
            "teacher",
            [TARGETS, HINT_CHECKS] if config.check_hints else [TARGETS],
            parts=part_count(config.run, "judge"),
            inputs=model_inputs(config),
            upstream=["extract", "judge"],
            part_inputs=inputs_of_part,
            drawn=bool(config.judge_url or config.sample_url),  # a server may answer otherwise the next time
        )
    todo = group.broadcast(stage.todo())
    if config.dry_run:
        group.leave()
        return report_work(config, stage, inputs_of_part)
    remove_answers_of_done_parts(stage)
    tested = list[Row]()
    for part in progress(todo, "teacher", len(todo), "parts"):
        group.stop_if_asked()
        # The processes of a group stop together, above: one that stopped here would leave the others waiting.
        with kept_answers(stage, part) as kept, stage.writing(part, may_stop=group.size == 1) as out:
            sessions = list(judged_sessions(config.run, part, config.limit))
            decided, checks = inputs_of_part(part).get("reviews", {}), list[Row]()
            if config.check_hints:
                if is_written(config.run, "hint_checks", part):  # decisions of people do not change them
                    checks = read_part(config.run, "hint_checks", part)
                else:
                    ask: Any = judge()  # that of a server takes the answers that are kept
                    ask = partial(ask, kept=kept) if config.judge_url else ask
                    checks = hint_checks.check_hints(config, scorer(), ask, sessions)
                out.rows("hint_checks", checks)
                sessions = hint_checks.sessions_without_dropped(sessions, checks)
            table = with_decided_rewards(config.run, part, sessions, decided, config.teacher_hint)
            if table is None:
                tested += checks
                for row in checks:
                    out.counters.count(CHECKED, label=row["status"])
                results = score_part(config, scorer(), sessions, decided, out.counters)
                table = targets_table(results, sessions, decided)
            else:
                out.counters.merge(read_counters(part_path(config.run, "targets", part)))
            turn_ids = {verdict["turn_id"] for _, judged in sessions for _, verdict in judged}
            out.counters.counts.pop(_DECIDED, None)  # counted under the previous decisions
            out.counters.count(_DECIDED, len(turn_ids & decided.keys()))
            out.table("targets", table)
    group.leave()
    summary = stage.summary()
    warn(*warnings(config, summary.counters))
    for message in hint_checks.describe_dropped(tested):
        say(message)
    check_rows_left(summary, f"none of {counted(summary.counters.rows_in, 'judged reply')} became a target")
    return summary


def score_part(
    config: TeacherConfig, scorer: Scorer, sessions: list[JudgedSession], decided: JSON, counters: Counters
) -> Results:
    """Return the results of a part's turns, in their order, and count them.

    `decided` are the decisions of people about its turns; see `opdkit.teacher.review_changes`.
    """
    for session, _ in sessions:
        try:
            scorer.teacher_of(session)
        except ChatError:
            counters.count(UNROUTED)
        else:
            if is_other_model(session["model"], scorer.names):
                counters.count(OTHER_MODEL, label=session["model"][:LONGEST_NAME])
    results: Results = {}
    # First the whole part with the verdicts of the votes, then each turn whose hint people decided, replacing its rows.
    decided_turns = turns_to_rescore(sessions, decided, config.teacher_hint)
    longest = 0  # logged reply with a hint, of the whole part: a turn that is scored again is no measure
    for scored_together in (sessions, *([turn] for turn in decided_turns)):
        scored = {verdict["turn_id"]: TurnResult() for _, judged in scored_together for _, verdict in judged}
        examples = _make_examples(config, scorer, scored_together, scored)
        hinted = score_replies(config, scorer, examples, scored, counters)
        if config.samples and not config.dry_run:
            order = {turn_id: n for n, turn_id in enumerate(scored)}
            hinted.sort(key=lambda turn: order[turn.example.verdict["turn_id"]])
            longest = max([longest, *(len(turn.example.reply.ids) for turn in hinted)])
            sampled = sample_replies(config, scorer, hinted, longest)
            score_replies(config, scorer, sampled, scored, counters)
        results |= scored
    for result in results.values():
        counters.merge(result.counters)
        counters.rows_in += len(result.rows) + result.counters.dropped.total()
        counters.count("with a hint", sum(row["hint"] is not None for row in result.rows))
    return results


def targets_table(results: Results, sessions: list[JudgedSession], decided: JSON) -> pa.Table:
    """Return the targets of a part: logged replies in the order of their turns, then replies that the teacher sampled.

    The rewards are those that people left in force (`decided`).
    """
    rows = [row for result in results.values() for row in result.rows]
    verdicts = {v["turn_id"]: decided_verdict(v, decided) for _, judged in sessions for _, v in judged}
    for row in rows:
        if row["written"] is None:  # nobody has reacted to a sampled reply
            row["reward"] = verdicts[row["turn_id"]]["reward"]
    rows.sort(key=lambda row: row["written"] is not None)
    return to_arrow(TARGETS, rows)


def report_work(config: TeacherConfig, stage: Stage, inputs_of_part: Callable[[int], JSON]) -> Summary:
    """Print what the parts to do would take (`--dry-run`).

    All of it follows from token ids. Only `--measure` loads weights, for the time and for what the models write.
    """
    counters, tests = Counters(), Counter[str]()
    drawn: list[JudgedSession] = []  # with one hinted turn each
    scorer = cache(partial(load_scorer, config))  # without weights
    for part in stage.todo():
        sessions = list(judged_sessions(config.run, part, config.limit))
        if config.check_hints and is_written(config.run, "hint_checks", part) and not config.overwrite:
            checks = read_part(config.run, "hint_checks", part)
            sessions = hint_checks.sessions_without_dropped(sessions, checks)
        elif config.check_hints:
            tests += hint_checks.count_tests(config, hint_checks.turns_to_check(config, scorer(), sessions))
        decided = inputs_of_part(part).get("reviews", {})
        rewarded = with_decided_rewards(config.run, part, sessions, decided, config.teacher_hint)
        if rewarded is None or config.overwrite:
            results = score_part(config, scorer(), sessions, decided, counters)
            counters.rows_out += sum(len(result.rows) for result in results.values())
            hinted_turns = [(one, [pair]) for one, judged in sessions for pair in judged if pair[1]["hint"]]
            drawn = nsmallest(config.measure, drawn + hinted_turns,
                              key=lambda one: stable_hash(config.seed, one[1][0][0]["turn_id"]))  # fmt: skip
    warn(*warnings(config, counters))
    hinted = counters.total("with a hint")
    work = {
        "replies to score": counters.rows_out,
        "  with a hint": hinted,
        "tokens to score": counters.total("tokens scored"),
        "tokens to read, with prompts": counters.total("tokens read"),
        "  saved by shared prefixes": counters.total("tokens saved"),
    }
    read, seconds = counters.total("tokens read") + tests[hint_checks.READ], None
    written = hinted * config.samples * config.max_new_tokens
    if drawn:
        rates = measure_rates(replace(config, dry_run=False, measure=0, price=None), drawn)
        seconds = rates[0] * counters.total("tokens read") + rates[1] * hinted
        read, written = read + round(rates[2] * hinted), round(rates[3] * hinted)
    if replies := hinted * config.samples:
        work |= {"replies to sample": replies, f"tokens to write, {'about' if drawn else 'at most'}": written}
    is_bound = not drawn or bool(config.check_hints)
    costs = describe_costs(read, written + tests[hint_checks.WRITTEN], config.price, seconds, is_bound=is_bound)
    return print_dry_run(stage, counters, "judged replies", {**work, **tests, **costs})


def measure_rates(config: TeacherConfig, drawn: list[JudgedSession]) -> tuple[float, float, float, float]:
    """Score the drawn hinted turns, without sampled replies and with them, and test their hints.

    Return the seconds per token that is read for logged replies, and what comes on top per hinted turn: seconds, tokens
    read to score sampled replies, tokens of these.
    """
    scorer = load_scorer(config)
    measure_scoring(config, scorer, drawn[:1])  # the first time is slower
    read, seconds, _ = measure_scoring(replace(config, teacher_samples=0, sample_url=()), scorer, drawn)
    more_read, longer, written = measure_scoring(config, scorer, drawn) if config.samples else (read, seconds, 0)
    begin = time.monotonic()
    if config.check_hints:
        hint_checks.check_hints(config, scorer, hint_checks.open_judge(config, scorer), drawn)
    on_top = max(0.0, longer - seconds) + time.monotonic() - begin
    return seconds / max(1, read), on_top / len(drawn), (more_read - read) / len(drawn), written / len(drawn)


def measure_scoring(config: TeacherConfig, scorer: Scorer, sessions: list[JudgedSession]) -> tuple[int, float, int]:
    """Return the tokens that scoring `sessions` reads, its seconds, and the tokens of the replies sampled for it."""
    begin = time.monotonic()
    results = score_part(config, scorer, sessions, {}, counters := Counters())
    rows = [row for result in results.values() for row in result.rows if row["written"] is not None]
    written = sum(len(row["response_ids"]) for row in rows)
    return counters.total("tokens read"), time.monotonic() - begin, written


def _make_examples(
    config: TeacherConfig, scorer: Scorer, sessions: list[JudgedSession], results: Results
) -> Iterator[tuple[Teacher, list[Example]]]:
    """Yield each session, the longest first, as its teacher and its turns; drop turns that cannot be scored.

    The branches of a conversation count as one session, so that what they have in common is read once.
    """
    groups = groupby(sessions, key=lambda one: first_branch(one[0]["session_id"]))
    # Characters sort sessions in about the same order as tokens.
    order = sorted([list(branches) for _, branches in groups], reverse=True, key=lambda branches: max(
        sum(len(message["content"] or "") for message in session["messages"]) for session, _ in branches))  # fmt: skip
    for branches in progress(order, "scoring", len(order), "sessions"):
        teacher, examples = None, list[Example]()
        for session, turn, verdict in ((session, *pair) for session, judged in branches for pair in judged):
            counters = results[verdict["turn_id"]].counters
            try:
                teacher = scorer.teacher_of(session)
                examples.append(make_example(config, scorer, teacher, session, turn, verdict, counters))
            except ChatError as error:
                counters.drop(error.reason)
        if teacher is not None:
            yield teacher, examples


def batch_sessions(
    sessions: Iterable[tuple[Teacher, list[Example]]], budget: Budget, batch_tokens: int
) -> Iterator[tuple[Teacher, list[Example]]]:
    """Yield neighbouring sessions of one teacher as one, up to `batch_tokens` tokens within the budget.

    What the replies of a session have in common counts once. A longer session goes alone.
    """
    waiting, tokens, last = list[Example](), 0, None
    for teacher, examples in sessions:
        size = count_tree_tokens(example.readings for example in examples)
        if last is not None and (teacher is not last or tokens + size > min(batch_tokens, budget.most)):
            yield last, waiting
            waiting, tokens = [], 0
        waiting, tokens, last = [*waiting, *examples], tokens + size, teacher
    if last is not None:
        yield last, waiting


def score_replies(
    config: TeacherConfig,
    scorer: Scorer,
    sessions: Iterable[tuple[Teacher, list[Example]]],
    results: Results,
    counters: Counters,
) -> list[HintedTurn]:
    """Score the examples and add their rows to `results`; return the turns that have a hint.

    Neighbouring sessions are scored together. Where that does not fit into memory, each half is scored by itself, and a
    single reply that does not fit is scored one prompt at a time.
    """
    student, turns = scorer.student.model, list[HintedTurn]()
    overlap = (config.top_k or _OVERLAP_TOP) if config.teacher_hint == "overlap" else 0
    options = ScoreOptions(config.top_k, config.top_k_of, overlap, scorer.vocabulary)
    budget = budget_of(student, "scoring sessions")
    for teacher, examples in batch_sessions(sessions, budget, config.batch_tokens):
        mixture = Mixture(tuple(policy.model for policy in teacher.policies), teacher.weights)
        if config.dry_run:  # the models have no weights: count what they would read
            by_model = readings_by_model(student, mixture, [example.readings for example in examples])
            estimate = estimate_tokens(by_model, config.batch_tokens, whole=not config.turn_by_turn)
            counters.count("tokens read", estimate.tokens)
            counters.count("tokens saved", estimate.saved)
            for example in examples:
                counters.count("tokens scored", len(example.reply.ids) * len(example.readings.every()))
                row = {"written": None, "hint": example.hints[0] if example.hints else None}
                results[example.verdict["turn_id"]].rows.append(row)
            continue
        every = [example.readings.tokens for example in examples]
        shared = count_tree_tokens(example.readings for example in examples) / max(1, sum(every))
        for attempt in budget.halves([math.ceil(shared * tokens) for tokens in every]):
            batch = [examples[i] for i in attempt.items]
            replies, tokens = [example.readings for example in batch], Counter[str]()
            score_batch = partial(score_session, student, mixture, replies, options, counted=tokens)
            with attempt:
                limit = min(config.batch_tokens, budget.most)
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
                tokens["tokens scored"] += len(score.old) * len(example.readings.every())
                result = results[example.verdict["turn_id"]]
                if not all(isfinite(x).all() for x in score.stored_logprobs()):
                    result.counters.drop("log-probs are not finite")
                    continue
                result.rows.append(_make_row(example, score))
                if score.chosen is not None:
                    hinted_ids = example.readings.hinted[score.chosen][0].prompt_ids
                    turns.append(HintedTurn(example, teacher, score.chosen, hinted_ids, result.counters))
            for name, number in tokens.items():
                counters.count(name, number)
    return turns


def _make_row(example: Example, scores: Scores) -> Row:
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
