"""Costs of the teacher stage before it runs: tokens to read and to write, time, money."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from heapq import nsmallest
from operator import add
from typing import NamedTuple

from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.console import warn
from opdkit.judge.votes import EDITED
from opdkit.store.counters import Counters, Summary
from opdkit.store.dry_run import describe_costs, print_dry_run
from opdkit.store.part_writer import Stage
from opdkit.store.reading import is_written, read_part
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import EDIT
from opdkit.teacher import hint_checks
from opdkit.teacher.examples import JudgedSession, read_judged_sessions
from opdkit.teacher.models import Scorer, load_scorer
from opdkit.teacher.part import READ_FOR_SAMPLES, score_part
from opdkit.teacher.review_changes import update_rewards
from opdkit.teacher.warnings import find_warnings


class Rates(NamedTuple):
    """Costs measured on a few hinted turns; costs per hint are in addition to scoring the logged reply."""

    seconds_per_token: float  # read to score logged replies
    seconds_per_hint: float  # to sample replies and score them, and to test the hint
    tokens_read_per_hint: float  # to score sampled replies
    tokens_written_per_hint: float  # of sampled replies


def report_work(config: TeacherConfig, stage: Stage, inputs_of_part: Callable[[int], JSON]) -> Summary:
    """Print the work and the costs of the parts that are not done (`--dry-run`).

    All of it is computed from token ids. Only `--measure` loads weights, to measure time and sampled tokens.
    """
    counters, tests = Counters(), hint_checks.TestWork()
    drawn, hinted = list[JudgedSession](), 0  # sampled sessions of one hinted turn; turns that the teacher answers
    scorer = cache(partial(load_scorer, config))  # without weights
    for part in stage.todo():
        sessions = list(read_judged_sessions(config.run, part, config.limit))
        if config.check_hints and is_written(config.run, "hint_checks", part) and not config.overwrite:
            checks = read_part(config.run, "hint_checks", part)
            sessions = hint_checks.leave_out_dropped(sessions, checks)
        elif config.check_hints:
            of_part = hint_checks.count_tests(config, hint_checks.find_turn_hints(config, scorer(), sessions))
            tests = hint_checks.TestWork(*map(add, tests, of_part))
        decisions = inputs_of_part(part).get("reviews", {})
        rewarded = update_rewards(config.run, part, sessions, decisions, config.teacher_hint)
        if rewarded is None or config.overwrite:
            results = score_part(config, scorer(), sessions, decisions, counters)
            rows = [row for result in results.values() for row in result.rows]
            counters.rows_out += len(rows)
            hinted += sum(row["hint"] is not None and row["edited"] is None for row in rows)
            drawn += [JudgedSession(one.session, [judged]) for one in sessions for judged in one.turns
                      if judged.verdict["hint"]]  # fmt: skip
            drawn = nsmallest(config.measure, drawn, key=lambda one: (  # edited turns last: they get no samples
                one.turns[0].verdict["hint_status"] == EDITED,
                stable_hash(config.seed, one.turns[0].turn["turn_id"])))  # fmt: skip
    warn(*find_warnings(config, counters))
    work = {
        "replies to score": counters.rows_out,
        "  with a hint": counters.total("with a hint"),
        "tokens to score": counters.total("tokens scored"),
        "tokens to read, with prompts": counters.total("tokens read"),
        "  saved by shared prefixes": counters.total("tokens saved"),
    }
    read, seconds = counters.total("tokens read") + tests.tokens_read, None
    replies, for_samples = counters.total("replies to sample"), counters.labels(READ_FOR_SAMPLES)
    read_for_samples, written = for_samples.total(), replies * config.max_new_tokens
    if drawn:
        rates = measure_rates(replace(config, dry_run=False, measure=0, price=None), drawn)
        seconds = rates.seconds_per_token * counters.total("tokens read") + rates.seconds_per_hint * hinted
        read_for_samples = for_samples["to sample"] + round(rates.tokens_read_per_hint * hinted)
        written = round(rates.tokens_written_per_hint * hinted)
    if replies:
        bound = "about" if drawn else "at most"
        work |= {"replies to sample": replies, f"  tokens to read, {bound}": read_for_samples,
                 f"tokens to write, {bound}": written}  # fmt: skip
    if tests.hints:
        work |= {
            "hints to check": tests.hints,
            "  replies to sample": tests.replies,
            "  tokens to read, with prompts": tests.tokens_read,
            "  tokens to write, at most": tests.tokens_written,
            "  votes of the judge, at most": 2 * config.check_hints * tests.hints,
        }
    is_bound = not drawn or bool(config.check_hints)
    read, written = read + read_for_samples, written + tests.tokens_written
    costs = describe_costs(read, written, config.price, seconds, is_bound=is_bound)
    return print_dry_run(stage, counters, "judged replies", {**work, **costs})


def measure_rates(config: TeacherConfig, drawn: list[JudgedSession]) -> Rates:
    """Score the drawn hinted turns, without sampled replies and with them, and test their hints. Return the rates."""
    scorer = load_scorer(config)
    measure_scoring(config, scorer, drawn[:1])  # a warm-up: the first time is slower
    logged = measure_scoring(replace(config, teacher_samples=0, sample_url=()), scorer, drawn)
    both = measure_scoring(config, scorer, drawn) if config.samples else logged
    read, more_read = (counters.total("tokens read") for counters in (logged, both))
    begin = time.monotonic()
    if config.check_hints:
        hint_checks.check_hints(config, scorer, hint_checks.open_judge(config, scorer), drawn)
    on_top = max(0.0, both.seconds - logged.seconds) + time.monotonic() - begin
    return Rates(
        seconds_per_token=logged.seconds / max(1, read),
        seconds_per_hint=on_top / len(drawn),
        tokens_read_per_hint=(more_read - read) / len(drawn),
        tokens_written_per_hint=both.total("sampled tokens") / len(drawn),
    )


def measure_scoring(config: TeacherConfig, scorer: Scorer, sessions: list[JudgedSession]) -> Counters:
    """Return the counters of scoring `sessions`, with its seconds and the tokens of the replies sampled for it."""
    begin = time.monotonic()
    results = score_part(config, scorer, sessions, {}, counters := Counters())
    rows = [row for result in results.values() for row in result.rows if row["written"] not in (None, EDIT)]
    counters.count("sampled tokens", sum(len(row["response_ids"]) for row in rows))
    counters.seconds = time.monotonic() - begin
    return counters
