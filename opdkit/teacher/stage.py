"""Loop of `opdkit teacher`: score every reply that has a signal, with and without the hint.

Student and teacher read the same response tokens after two prompts that differ only by the hint, all as token ids. A
turn that cannot be scored is dropped and counted under a named reason.

    run -> score_part -> score_replies -> score_session -> logprobs_of
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from opdkit.config.fields import JSON
from opdkit.config.teacher import TeacherConfig
from opdkit.console import counted, progress, say, warn
from opdkit.judge.criterion import try_criterion_judge
from opdkit.judge.kept_answers import keep_answers, remove_answers_of_done_parts
from opdkit.store.counters import HINTS_CHECKED, Summary, check_rows_left, read_counters
from opdkit.store.part_writer import Stage
from opdkit.store.plans import stage_dir
from opdkit.store.reading import count_parts, is_written, part_path, read_part
from opdkit.store.reviews import part_inputs, read_reviews_in_force
from opdkit.store.tables import HINT_CHECKS, TARGETS
from opdkit.store.template_args import choose_template_args
from opdkit.teacher import hint_checks
from opdkit.teacher.costs import report_work
from opdkit.teacher.examples import Row, read_judged_sessions
from opdkit.teacher.models import Scorer, load_scorer, pin_models
from opdkit.teacher.part import make_targets_table, score_part
from opdkit.teacher.process_group import ProcessGroup, join
from opdkit.teacher.review_changes import update_rewards
from opdkit.teacher.warnings import find_warnings

_DECIDED = "decided by people"  # counter


def run(config: TeacherConfig) -> Summary:
    """Score the judged turns of every part of this shard that is not done yet. Raises what `load_scorer` raises.

    With `--check-hints`, test the hints of a part first, and score without those that do not help.
    """
    template_args = choose_template_args(config.run, "extract", config.template_arg)
    group, config = join(replace(config, template_arg=template_args, **hint_checks.choose_hint_judge(config)))
    # Read once: decisions that people make from now on are for the next run of this command.
    inputs_of_part = part_inputs(config.run, group.broadcast(read_reviews_in_force(config.run)))
    scorer = cache(partial(load_scorer, config))  # loaded when it is needed first
    judge = cache(lambda: hint_checks.open_judge(config, scorer(), stage_dir(config.run, "teacher")))
    stage = open_stage(config, group, inputs_of_part, scorer)
    todo = group.broadcast(stage.todo())
    if config.dry_run:
        group.leave()
        return report_work(config, stage, inputs_of_part)
    remove_answers_of_done_parts(stage)
    tested: list[Row] = []
    for part in progress(todo, "teacher", len(todo), "parts"):
        group.stop_if_asked()
        # The processes of a group stop together, above: one that stopped here would leave the others waiting.
        with keep_answers(stage, part) as kept, stage.writing(part, may_stop=group.size == 1) as out:
            sessions = list(read_judged_sessions(config.run, part, config.limit))
            decisions = inputs_of_part(part).get("reviews", {})
            checks: list[Row] = []
            if config.check_hints:
                if is_written(config.run, "hint_checks", part):  # people's decisions do not change them
                    checks = read_part(config.run, "hint_checks", part)
                else:
                    ask: Any = judge()  # a judge on a server also takes the kept answers
                    ask = partial(ask, kept=kept) if config.judge_url else ask
                    checks = hint_checks.check_hints(config, scorer(), ask, sessions)
                out.add_rows("hint_checks", checks)
                sessions = hint_checks.leave_out_dropped(sessions, checks)
            table = update_rewards(config.run, part, sessions, decisions, config.teacher_hint)
            if table is None:
                tested += checks
                for row in checks:
                    out.counters.count(HINTS_CHECKED, label=row["status"])
                results = score_part(config, scorer(), sessions, decisions, out.counters)
                table = make_targets_table(results, sessions, decisions)
            else:
                out.counters.merge(read_counters(part_path(config.run, "targets", part)))
            turn_ids = {judged.turn["turn_id"] for session in sessions for judged in session.turns}
            out.counters.counts.pop(_DECIDED, None)  # counted under the previous decisions
            out.counters.count(_DECIDED, len(turn_ids & decisions.keys()))
            out.set_table("targets", table)
    group.leave()
    summary = stage.summary()
    warn(*find_warnings(config, summary.counters))
    for message in hint_checks.describe_dropped(tested):
        say(message)
    check_rows_left(summary, f"none of {counted(summary.counters.rows_in, 'judged reply')} became a target")
    return summary


def open_stage(
    config: TeacherConfig, group: ProcessGroup, inputs_of_part: Callable[[int], JSON], scorer: Callable[[], Scorer]
) -> Stage:
    """Open the stage in all processes of the group; the main process goes first, and it alone overwrites."""
    models = pin_models(config)  # says what a folder is that is not a model, such as an adapter
    if config.overwrite and not config.dry_run:  # it deletes the old targets, so first check that the models load
        scorer()
        if config.check_hints:
            try_criterion_judge(config)
    with group.main_first():
        return Stage.open(
            replace(config, overwrite=config.overwrite and group.rank == 0),
            "teacher",
            [TARGETS, HINT_CHECKS] if config.check_hints else [TARGETS],
            parts=count_parts(config.run, "judge"),
            inputs=models,
            upstream=["extract", "judge"],
            part_inputs=inputs_of_part,
            may_change=bool(config.judge_url or config.sample_url),  # a server may answer differently the next time
        )
