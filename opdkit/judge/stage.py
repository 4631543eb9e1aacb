"""Loop of `opdkit judge`: ask the judge for the hint and the reward of each turn, and write the verdicts."""

from collections.abc import Sequence
from functools import partial

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON, PythonFunction
from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import Texts, judge_texts, make_wording_inputs
from opdkit.console import counted, progress, warn
from opdkit.errors import OpdkitError
from opdkit.judge import hints, rules
from opdkit.judge.cascade import DECIDED, FIRST, GIVEN, SECOND, ask_judges, list_votes_on
from opdkit.judge.costs import report_work
from opdkit.judge.decisions import choose_decided_hint, resolve_conflict
from opdkit.judge.flags import find_flags
from opdkit.judge.judges import SERVED, Judges, load_judges, try_judges
from opdkit.judge.kept_answers import keep_answers, remove_answers_of_done_parts
from opdkit.judge.turns import TurnToJudge, read_turns, write_questions
from opdkit.judge.votes import (
    USAGE,
    WANTED_REPLIES,
    Ask,
    HintVote,
    Question,
    RewardVote,
    Votes,
    choose_reward,
    list_confidences,
)
from opdkit.judge.warnings import NO_REWARD, count_votes, describe_failure, find_warnings
from opdkit.model.folder import pin_model
from opdkit.store.counters import Counters, Summary, check_rows_left
from opdkit.store.part_writer import PartWriter, Stage
from opdkit.store.plans import find_redone_upstream, has_stage, record_usage
from opdkit.store.reading import count_parts, part_path
from opdkit.store.tables import ESCALATED, VERDICTS


def run(config: JudgeConfig) -> Summary:
    """Judge every trainable turn of the run; skip parts that are done.

    Raises OpdkitError if the extract stage has not finished, if all votes failed, or if the judge cannot be reached. In
    the last case the part in progress is not written, and the same command resumes with it.
    """
    texts = judge_texts(config.wording, config.criterion)  # read once: all parts use the wording in the plan
    inputs = make_wording_inputs({"judge": texts})
    for name, one in (("model", config), ("first model", config.first)):
        if one and one.judge == "local" and one.judge_model:
            inputs[name] = pin_model(one.judge_model)
    # --overwrite removes the votes in Stage.open, so the judges are tried before it.
    judges = try_judges(config) if config.overwrite and not config.dry_run else Judges()
    # These judges may answer differently the next time, even with the same seed.
    may_change = config.judge in SERVED or bool(config.judge_first_url) or isinstance(config.judge, PythonFunction)
    tables, parts = [VERDICTS, ESCALATED] if config.first else [VERDICTS], count_parts(config.run, "extract")
    stage = Stage.open(config, "judge", tables, parts=parts, inputs=inputs, upstream=["extract"], may_change=may_change)
    todo = stage.todo()
    if todo and may_change and not config.overwrite:  # --overwrite makes all targets outdated
        _check_lost_votes(config, todo)
    if config.dry_run:
        return report_work(config, stage, texts)
    if todo or config.judge == "batch":
        judges = load_judges(config, stage.folder, judges)
    remove_answers_of_done_parts(stage)
    if config.judge == "batch":  # judge only the parts for which all answers are there

        def questions_of(part: int) -> list[Question]:
            return write_questions(list(read_turns(config, part, Counters())), config, texts)

        todo = judges.judge.exchange(stage, todo, questions_of)
    for part in progress(todo, "judge", len(todo), "parts"):
        if stage.is_done(part):  # by another process, meanwhile
            continue
        with (
            keep_answers(stage, part) as kept,
            keep_answers(stage, part, ESCALATED.name) as kept_first,
            stage.writing(part) as out,
        ):
            ask = judges.judge and partial(judges.judge.ask, kept=kept)
            ask_first = judges.first and partial(judges.first.ask, kept=kept_first)
            judge_part(config, part, ask, ask_first, texts, out)
    summary = stage.summary()
    usage: JSON = {name: n for name in USAGE if (n := summary.counters.total(name))}
    if config.first:
        usage |= {who: {name: summary.counters.labels(name)[who] for name in (DECIDED, GIVEN, *USAGE)}
                  for who in (FIRST, SECOND)}  # fmt: skip
    if summary.parts_done == summary.parts:  # if shards end together, each records the same sums
        if usage:
            record_usage(config.run, "judge", usage)
        if failure := describe_failure(config.run, summary.counters):
            raise OpdkitError(f"{failure}; judge again with --overwrite")
    warn(*find_warnings(config, summary.counters))
    check_rows_left(summary, f"no turn was judged, since none of {summary.counters.rows_in:,} is trainable")
    if config.judge == "batch":
        summary.next, summary.is_waiting = judges.judge.next, judges.judge.is_waiting
    return summary


def judge_part(
    config: JudgeConfig, part: int, ask: Ask | None, ask_first: Ask | None, texts: Texts, out: PartWriter
) -> None:
    """Write the verdicts of one part. `ask` asks a judge that is a model, `ask_first` the first judge of a cascade."""
    turns = list(read_turns(config, part, out.counters))
    if ask:
        questions = write_questions(turns, config, texts)
        answers, escalated = ask_judges(questions, config, ask, texts, out.counters, ask_first)
        votes = [list_votes_on(turn.joined.turn_id, answers, texts) for turn in turns]
        if ask_first:
            out.add_rows("escalated", escalated)
    elif isinstance(config.judge, PythonFunction):
        votes = [judge_by_function(config.judge, turn) for turn in turns]
    elif config.judge == "rules":
        votes = judge_by_rules(turns, out.counters)
    else:
        votes = [Votes([], [])] * len(turns)  # --judge reaction: the next state is the hint
    for turn, votes_on_turn in zip(turns, votes, strict=True):
        out.add_rows("verdicts", [make_verdict(config, turn, votes_on_turn, texts, out.counters)])


def _check_lost_votes(config: JudgeConfig, parts: Sequence[int]) -> None:
    """Raise OpdkitError if targets were computed from votes that are gone: new votes may differ from these."""
    if not has_stage(config.run, "teacher") or find_redone_upstream(config.run, "teacher"):
        return  # there are no targets, or all of them are refused as outdated
    if left := [part for part in parts if part_path(config.run, "targets", part).exists()]:
        raise OpdkitError(f"the votes of {counted(len(left), 'part')} are gone, and targets were computed from them; "
                          f"the judge may vote otherwise the next time: run `opdkit check {quote(config.run)} "
                          "--recompute` first, which removes such targets")  # fmt: skip


def judge_by_rules(turns: Sequence[TurnToJudge], counters: Counters) -> list[Votes]:
    """Return the votes of the rules. Count the reactions that are not in English; their reward is 0."""
    votes = [rules.vote(turn.reply) for turn in turns]
    unread = [turn for turn, vote in zip(turns, votes, strict=True) if vote.reward[0].raw == rules.NOT_ENGLISH]
    counters.count("turns not in English", len(unread))
    counters.count("sessions not in English", len({turn.joined.session_id for turn in unread}))
    return votes


def judge_by_function(function: PythonFunction, turn: TurnToJudge) -> Votes:
    """Return the votes of `function(prompt, reply, next_state)`, which gets copies of the messages.

    The function returns (reward, hint): 1, 0, -1 or None, and a text or None. Raises OpdkitError for anything else.
    """
    if not turn.questions:
        return Votes([], [])
    reply = turn.reply
    copies = [message | {"tool_calls": [dict(call) for call in message["tool_calls"]]}
              for message in [*reply.messages[: reply.index + 1], *reply.next_state]]  # fmt: skip
    answer = function.call(copies[: reply.index], copies[reply.index], copies[reply.index + 1 :])
    is_pair = isinstance(answer, tuple) and len(answer) == 2
    reward, hint = answer if is_pair else (None, None)
    is_truth = type(reward).__name__ in ("bool", "bool_")  # the latter is numpy's
    if not (is_pair and (hint is None or isinstance(hint, str)) and reward in (1, 0, -1, None)) or is_truth:
        raise OpdkitError(f"{function} returned {answer!r} for turn {turn.joined.turn_id}; a judge returns (reward, "
                          "hint), which are 1, 0, -1 or None, and a text or None")  # fmt: skip
    reward = None if reward is None else int(reward)  # it may be a float or a numpy number
    vote = RewardVote(reward, str(function), NO_REWARD if reward is None else None)
    hint = (hint or "").encode("utf-8", "replace").decode().strip() or None  # lone surrogates: as in a server's answer
    return Votes([HintVote(1 if hint else -1, hint, str(function))], [vote])


def make_verdict(config: JudgeConfig, turn: TurnToJudge, votes: Votes, texts: Texts, counters: Counters) -> JSON:
    """Return one row of `verdicts`: what the votes on a turn add up to. Count votes, reward, hint and flags.

    Votes on a question that is not asked about this turn are left out; the rules always vote on both questions.
    """
    votes = Votes(votes.hint if "hint" in turn.questions else [], votes.reward if "reward" in turn.questions else [])
    decisions = {"hint": [(vote.decision, vote.confidence) for vote in votes.hint],
                 "reward": [(vote.score, vote.confidence) for vote in votes.reward]}  # fmt: skip
    weights: dict[str, list[float] | None] = dict.fromkeys(decisions)
    if config.weigh_votes:
        weights = {name: list_confidences(cast) for name, cast in decisions.items()}
        for question in (name for name, own in weights.items() if own is None):
            counters.count("questions not weighed", label=question)
    if config.judge == "reaction":
        reward, choice = hints.take_reaction(turn.reply)
    else:
        reward = choose_reward([vote.score for vote in votes.reward], weights["reward"])
        unquotable = hints.find_unquotable_text(config.judge, turn.reply)
        choice = hints.choose_hint([(vote.decision, vote.hint) for vote in votes.hint], unquotable,
                              weights=weights["hint"], select=config.hint_select, min_chars=config.min_hint_chars,
                              max_chars=config.max_hint_chars)  # fmt: skip
    reward, choice = turn.outcome or reward, choose_decided_hint(turn.decision, choice, texts)
    if turn.decision["rating"] == reward.reward == 1 and choice.hint is not None:  # --bad overrides the rating
        counters.count("conflicts", label=f"rated +1, {choice.status if choice.status in WANTED_REPLIES else 'hinted'}")
        reward, choice = resolve_conflict(reward, choice, config.conflicts)
    count_votes(counters, [*votes.hint, *votes.reward], reward)
    counters.count("outcomes", int(turn.outcome is not None))
    counters.count("hints", int(choice.hint is not None))
    for reason, number in choice.rejected.items():
        counters.count("rejected hints", number, label=reason)
    for flag in find_flags(turn.reply, turn.joined.turn["finish_reason"], turn.repeats_call):
        counters.count("flags", label=flag)
        counters.count("flags on turns rewarded +1", int(reward.reward == 1), label=flag)
    hint = {"hints": choice.hints, "hint": choice.hint, "hint_status": choice.status}
    return votes.columns(turn.joined.turn_id) | reward.columns() | hint
