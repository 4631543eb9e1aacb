"""Loop of `opdkit rollout`: the on-policy round.

The current student answers the prompts of the hinted turns of a run. Its replies are the sessions and turns of a new
run, the hints carry over, and `opdkit teacher` and `opdkit train` work on that run as on any other.

The command writes two stages of the new run, one after the other: replies (`extract`), then verdicts on the committed
replies (`judge`). So a kill between them loses no reply, and the student is released before a local judge is loaded.
"""

from dataclasses import replace
from functools import partial

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.config.rollout import RolloutConfig
from opdkit.config.wording import make_wording_inputs, read_wording
from opdkit.console import counted, progress, say, verb, warn
from opdkit.errors import OpdkitError
from opdkit.judge.criterion import open_criterion_judge, try_criterion_judge
from opdkit.judge.warnings import find_equal_rewards
from opdkit.model.folder import pin_model
from opdkit.model.load import load_template
from opdkit.rollout.replies import CUT_OFF_COUNT, NO_ROOM, hinted_turns, load_answering_model, write_replies
from opdkit.rollout.rewards import write_verdicts
from opdkit.store.counters import Counters, Summary, check_rows_left, mostly_dropped
from opdkit.store.dropped_hints import has_hint_checks
from opdkit.store.part_writer import Stage
from opdkit.store.plans import check_upstream, manifest, read_hint_text, stage_dir
from opdkit.store.reading import count_parts
from opdkit.store.reviews import Reviews, decisions, plan_inputs, read_reviews_in_force
from opdkit.store.tables import REJECTED, SESSIONS, TURNS, VERDICTS
from opdkit.store.template_args import choose_template_args

_SOURCE = ("extract", "judge")


def run(config: RolloutConfig) -> Summary:
    """Answer the hinted turns of `--from-run`; skip parts that are done.

    Raises OpdkitError if the source run is not judged yet or has no hints, if no turn gets a reply, or if a judge
    cannot be reached. In the last case the replies are kept, and the same command resumes with them.
    """
    check_upstream(config.from_run, ["judge"])
    template_args = choose_template_args(config.from_run, "teacher", config.template_arg, binding=False)
    config = replace(config, template_arg=template_args)
    parts, reviews = count_parts(config.from_run, "judge"), read_reviews_in_force(config.from_run)
    hinted = (verdict for part in range(parts) for _, verdict in hinted_turns(config, part, reviews))
    if all(verdict["hint"] is None for verdict in hinted):
        within = f" in its first {counted(config.limit, 'session')}" if config.limit else ""
        larger = " or a larger --limit" if config.limit else ""
        raise OpdkitError(f"{config.from_run} has no turn with a hint{within}, so there is nothing to answer: see in "
                          f"the closing line of `opdkit judge {quote(config.from_run)}`, or of the teacher stage with "
                          f"--check-hints, why, and try a stronger --judge{larger}")  # fmt: skip
    if config.overwrite:  # old votes are removed only if the judge can be used
        try_criterion_judge(config)
    replies, verdicts = open_stages(config, parts, reviews)
    if todo := replies.todo():
        student = load_answering_model(config)
        for part in progress(todo, "rollout", len(todo), "parts"):
            if replies.is_done(part):  # by another process, meanwhile
                continue
            with replies.writing(part) as out:
                write_replies(config, student, hinted_turns(config, part, reviews), out)
        del student  # a local judge may need the memory
    if todo := verdicts.todo():
        judge = None
        if config.judge_model:
            chat = load_template(config.model, config.template_arg)
            judge = open_criterion_judge(config, stage_dir(config.run, "judge")), chat
        for part in todo:
            with verdicts.writing(part) as out:
                write_verdicts(config, judge, part, reviews, out)
    first, last = replies.summary(), verdicts.summary()  # one closing line: hinted turns in, replies out
    first.counters.merge(Counters(seconds=last.counters.seconds, counts=last.counters.counts))
    summary = replace(last, stage="rollout", counters=first.counters, where=first.where)
    if config.judge_model is None:
        say(f"the replies are not judged: in {config.run} only objectives that learn from hints can train; "
            "--judge-model gives rewards")  # fmt: skip
    warn(*find_warnings(config, summary.counters))
    check_rows_left(summary, f"none of {counted(summary.counters.rows_in, 'hinted turn')} got a reply")
    return summary


def open_stages(config: RolloutConfig, parts: int, reviews: Reviews) -> tuple[Stage, Stage]:
    """Open the two stages of the new run that this command writes: replies and verdicts.

    The judge is not part of the replies' plan, and `--overwrite` keeps replies whose plan is the same. So with another
    judge, nothing is sampled again.
    """
    source = (*_SOURCE, "teacher") if has_hint_checks(config.from_run) else _SOURCE
    inputs: JSON = {
        "model": pin_model(config.model),
        "from": {stage: manifest(config.from_run, stage)["fingerprint"] for stage in source}
        | plan_inputs({turn: decision["hint"] for turn, decision in decisions(reviews).items() if "hint" in decision}),
    }
    # The new run's teacher stage takes the words around a hint from here, unless it is given others.
    inputs |= make_wording_inputs({"teacher": {"hint": read_hint_text(config.from_run)}})
    texts = read_wording(config.wording)["criterion"]
    judge: JSON = make_wording_inputs({"criterion": texts}) if config.judge_model else {}
    judge |= {"judge": pin_model(config.judge_model)} if config.judge_model and not config.judge_url else {}
    sampling = replace(config, judge_model=None, judge_url=None, overwrite=False)
    open_replies = partial(Stage.open, name="extract", tables=[SESSIONS, TURNS, REJECTED], parts=parts, inputs=inputs,
                           command="rollout", may_change=bool(config.sample_url))  # fmt: skip
    try:
        replies = open_replies(sampling)
    except OpdkitError:
        if not config.overwrite:
            raise
        replies = open_replies(replace(sampling, overwrite=True))
    return replies, Stage.open(
        config, "judge", [VERDICTS], parts=parts, inputs=inputs | judge, upstream=["extract"], command="rollout",
        may_change=bool(config.judge_model and config.judge_url),
    )  # fmt: skip


def find_warnings(config: RolloutConfig, counters: Counters) -> list[str]:
    """Return warnings about the replies as a whole."""
    messages = mostly_dropped("rollout", counters)
    if prompts := counters.dropped[NO_ROOM]:
        messages.append(
            f"{counted(prompts, 'prompt')} {verb(prompts, 'leaves', 'leave')} less than --max-new-tokens "
            f"{config.max_new_tokens} of the model's context: lower it"
        )
    cut_off, replies = counters.total(CUT_OFF_COUNT), counters.total("replies")
    if 2 * cut_off > replies:
        messages.append(f"{cut_off:,} of {counted(replies, 'reply')} {verb(cut_off, 'was', 'were')} cut off: raise "
                        "--max-new-tokens")  # fmt: skip
    failed, votes, unrewarded = (counters.total(name) for name in ("failed votes", "votes", "no reward"))
    if 2 * failed > votes:
        messages.append(
            f"{failed:,} of {counted(votes, 'vote')} failed, {counted(unrewarded, 'reply')} "
            f"{verb(unrewarded, 'has', 'have')} no reward: is --judge-model a chat model that follows instructions?"
        )
    return messages + find_equal_rewards(counters)
