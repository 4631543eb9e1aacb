"""Loop of `opdkit judge`: ask the judge for the hint and the reward of each turn, and write the verdicts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import chain, groupby
from typing import Any

from opdkit.chat.conversation import NO_DECISION
from opdkit.config.command_line import quote
from opdkit.config.commands import load_function
from opdkit.config.conditions import parse_filters
from opdkit.config.fields import JSON, PythonFunction
from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import Texts, judge_texts, make_wording_inputs
from opdkit.console import counted, progress, warn
from opdkit.errors import OpdkitError
from opdkit.judge import hints, rules
from opdkit.judge.cascade import DECIDED, FIRST, GIVEN, SECOND, ask_judges, leaves_open, list_votes_on
from opdkit.judge.costs import MIN_VOTES, UNCACHED, VOTES, Measured, describe_work, measure
from opdkit.judge.decisions import choose_decided_hint, choose_decided_reward, resolve_conflict
from opdkit.judge.flags import find_flags, find_repeated_calls
from opdkit.judge.kept_answers import KeptAnswers, answers_file, keep_answers, remove_answers_of_done_parts
from opdkit.judge.outcomes import find_outcomes
from opdkit.judge.prompts import judge_messages, write_turn
from opdkit.judge.reply_in_context import ReplyInContext, reply_in_context
from opdkit.judge.rounds import ask_in_rounds, count_missing_votes
from opdkit.judge.votes import (
    TRIAL,
    USAGE,
    WANTED_REPLIES,
    Ask,
    HintVote,
    Question,
    Reward,
    RewardVote,
    Votes,
    choose_reward,
    list_confidences,
)
from opdkit.judge.warnings import NO_REWARD, count_votes, describe_failure, find_warnings
from opdkit.model.folder import pin_model
from opdkit.store.counters import Counters, Summary, check_rows_left
from opdkit.store.dry_run import print_dry_run
from opdkit.store.joined_turns import LOGGED, JoinedTurn, by_session, joined_turns
from opdkit.store.part_writer import PartWriter, Stage
from opdkit.store.plans import find_redone_upstream, has_stage, record_usage
from opdkit.store.reading import count_parts, part_path
from opdkit.store.skip_reasons import NO_NEXT
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import ESCALATED, VERDICTS

# Judges that are models: "module:class", imported only when chosen. The class takes the configuration and the folder of
# the stage that the votes are for, and has the methods `ask` (an Ask) and `count_work`.
MODEL_JUDGES = {"local": "opdkit.judge.local:LocalJudge", "endpoint": "opdkit.judge.endpoint:Endpoint",
          "batch": "opdkit.judge.batch:Batch"}  # fmt: skip
FIRST_JUDGES = MODEL_JUDGES | {"endpoint": "opdkit.judge.endpoint:FirstEndpoint"}  # first judges of a cascade
SERVED = ("endpoint", "batch")  # answers are stored as they arrive, and may differ the next time


@dataclass(frozen=True)
class TurnToJudge:
    """Turn with its session, and the reward that the log itself gives it, if any."""

    joined: JoinedTurn
    outcome: Reward | None
    repeats_call: bool

    @property
    def decision(self) -> JSON:
        """Decision of a person about the reply, from the log; NO_DECISION if there is none."""
        return self.joined.turn["decision"] or NO_DECISION

    @property
    def reply(self) -> ReplyInContext:
        """Reply with its next state. A person's comment on the reply is the first message of the next state."""
        return reply_in_context(self.joined.session["messages"], self.joined.turn)

    @property
    def questions(self) -> list[str]:
        """Questions to ask: no hint without a next state or after an edit, and no reward if the log gives it."""
        asked = {"hint": self.reply.next_state and not self.decision["edited"], "reward": self.outcome is None}
        return [question for question in asked if asked[question]]


def run(config: JudgeConfig) -> Summary:
    """Judge every trainable turn of the run; skip parts that are done.

    Raises OpdkitError if the extract stage has not finished, if all votes failed, or if the judge cannot be reached. In
    the last case the part in progress is not written, and the same command resumes with it.
    """
    texts = judge_texts(config.wording, config.criterion)  # read once: all parts use the wording in the plan
    inputs = make_wording_inputs({"judge": texts})
    first_config = config.first
    for name, one in (("model", config), ("first model", first_config)):
        if one and one.judge == "local" and one.judge_model:
            inputs[name] = pin_model(one.judge_model)
    removes_votes = config.overwrite and not config.dry_run  # in Stage.open: the judges are tried before it
    judge: Any = try_judge(config, MODEL_JUDGES) if removes_votes else None
    first: Any = try_judge(first_config, FIRST_JUDGES) if first_config and removes_votes else None
    # These judges may answer differently the next time, even with the same seed.
    may_change = config.judge in SERVED or bool(config.judge_first_url) or isinstance(config.judge, PythonFunction)
    tables, parts = [VERDICTS, ESCALATED] if first_config else [VERDICTS], count_parts(config.run, "extract")
    stage = Stage.open(config, "judge", tables, parts=parts, inputs=inputs, upstream=["extract"], may_change=may_change)
    todo = stage.todo()
    if todo and may_change and not config.overwrite:  # --overwrite makes all targets outdated
        _check_lost_votes(config, todo)
    if config.dry_run:
        return report_work(config, stage, texts)
    if config.judge in MODEL_JUDGES and (todo or config.judge == "batch"):
        judge = judge or load_function(MODEL_JUDGES[config.judge])(config, stage.folder)
        if first_config:
            first = first or load_function(FIRST_JUDGES[first_config.judge])(first_config, stage.folder)
    remove_answers_of_done_parts(stage)
    if config.judge == "batch":  # judge only the parts for which all answers are there

        def questions_of(part: int) -> list[Question]:
            return write_questions(list(read_turns(config, part, Counters())), config, texts)

        todo = judge.exchange(stage, todo, questions_of)
    for part in progress(todo, "judge", len(todo), "parts"):
        if stage.is_done(part):  # by another process, meanwhile
            continue
        with (
            keep_answers(stage, part) as kept,
            keep_answers(stage, part, ESCALATED.name) as kept_first,
            stage.writing(part) as out,
        ):
            ask, ask_first = judge and partial(judge.ask, kept=kept), first and partial(first.ask, kept=kept_first)
            judge_part(config, part, ask, ask_first, texts, out)
    summary = stage.summary()
    usage: JSON = {name: n for name in USAGE if (n := summary.counters.total(name))}
    if first_config:
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
        summary.next, summary.is_waiting = judge.next, judge.is_waiting
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


def report_work(config: JudgeConfig, stage: Stage, texts: Texts) -> Summary:
    """Print the work and the costs of the parts that are not done (`--dry-run`).

    Without `--measure`, no weights are loaded and no request is sent.
    """
    counters, names, first_config = Counters(), Counter[str](), config.first
    judge: Any = load_function(MODEL_JUDGES[config.judge])(config) if config.judge in MODEL_JUDGES else None
    first: Any = load_function(FIRST_JUDGES[first_config.judge])(first_config) if first_config else None
    work, first_work = Counter[str](), Counter[str]()
    sampled: list[list[Question]] = []  # the questions about each turn that `--measure` samples
    for part in stage.todo():
        turns = list(read_turns(config, part, counters))
        counters.rows_out += len(turns)
        counters.count("outcomes", sum(turn.outcome is not None for turn in turns))
        if not judge:
            continue
        questions = write_questions(turns, config, texts)
        names.update(f"  questions on the {question.name}" for question in questions)
        work.update(judge.count_work(questions, KeptAnswers(answers_file(stage, part), stage.fingerprint)))
        if first_config:  # the second judge may get no question: its MIN_VOTES stays 0
            kept = KeptAnswers(answers_file(stage, part, ESCALATED.name), stage.fingerprint)
            first_work.update(first.count_work(questions, kept))
        else:
            work[MIN_VOTES] += sum(count_missing_votes(question, (), config, texts) for question in questions)
        by_turn = [list(group) for _, group in groupby(questions, key=lambda question: question.turn_id)]
        sampled = nsmallest(config.measure, sampled + by_turn, key=lambda of: stable_hash(config.seed, of[0].turn_id))
    costs: dict[str, int | str] = {}
    share_left = 1.0  # share of the sampled questions that are left to the (second) judge
    if first_config:
        first_work[MIN_VOTES] = first_work[VOTES]  # the first judge always gives all votes
        measured, answers = measure(first, first.ask, sampled) if sampled else (None, {})
        lines = describe_work(first_config, first, first_work, measured)
        costs = {f"first: {name.strip()}": value for name, value in lines.items()}
        costs["left to the second judge"] = "not measured: --measure 50 tries 50 turns"
        if sampled:
            left = [[one for one in turn if leaves_open(one.name, answers[one.key], texts)] for turn in sampled]
            still_open, asked = sum(map(len, left)), sum(map(len, sampled))
            costs["left to the second judge"] = f"{still_open:,} of {counted(asked, 'question')}, as measured"
            # Two questions about a turn share its text, so reading one of them takes more than half of reading both.
            read_left, read_all = (judge.count_work([*chain(*turns)])[UNCACHED] for turns in (left, sampled))
            share_left, sampled = still_open / asked, [turn for turn in left if turn]
            work[UNCACHED] = round(work[UNCACHED] * read_left / max(1, read_all))
    measured = None
    if sampled:
        measured, _ = measure(judge, lambda some: ask_in_rounds(judge.ask, some, config, texts), sampled)
    if share_left < 1:  # what was measured holds for the questions that are left
        measured = measured or Measured(0, 0.0, 0.0, None, 0.0)  # None: the first judge decided all of them
        measured = measured._replace(share=measured.share * share_left)
    if judge:
        costs |= describe_work(config, judge, work, measured)
    return print_dry_run(stage, counters, "turns", {"turns to judge": counters.rows_out, **names, **costs})


def try_judge(config: JudgeConfig, judges: Mapping[str, str]) -> Any:
    """Load and return a local judge. Ask an endpoint a trial question and return None: it is opened later.

    Return None for any other judge, after a look at the files of a batch. Raises OpdkitError if the judge cannot be
    used.
    """
    if config.judge == "batch":
        load_function("opdkit.judge.batch:check_answers")(config.in_)
    judge: Any = load_function(judges[config.judge])(config) if config.judge in ("local", "endpoint") else None
    if config.judge != "endpoint":
        return judge
    judge.ask([TRIAL])
    return None


def _check_lost_votes(config: JudgeConfig, parts: Sequence[int]) -> None:
    """Raise OpdkitError if targets were computed from votes that are gone: new votes may differ from these."""
    if not has_stage(config.run, "teacher") or find_redone_upstream(config.run, "teacher"):
        return  # there are no targets, or all of them are refused as outdated
    if left := [part for part in parts if part_path(config.run, "targets", part).exists()]:
        raise OpdkitError(f"the votes of {counted(len(left), 'part')} are gone, and targets were computed from them; "
                          f"the judge may vote otherwise the next time: run `opdkit check {quote(config.run)} "
                          "--recompute` first, which removes such targets")  # fmt: skip


def read_turns(config: JudgeConfig, part: int, counters: Counters) -> Iterator[TurnToJudge]:
    """Yield the turns of a part to judge, within `--limit`. Count the others as dropped, by reason."""
    conditions = {1: parse_filters(config.good, "--good"), -1: parse_filters(config.bad, "--bad")}
    for session_turns in by_session(joined_turns(config.run, part, LOGGED, limit=config.limit, reviews={})):
        indices = [joined.index for joined in session_turns]
        session = session_turns[0].session
        outcomes, repeating = find_outcomes(session, indices, conditions), find_repeated_calls(session["messages"])
        for joined in session_turns:
            counters.rows_in += 1
            skip_reason, decision = joined.turn["skip_reason"], joined.turn["decision"]
            outcome = outcomes.get(joined.index) or (choose_decided_reward(decision) if decision else None)
            if joined.turn["trainable"] or (outcome and skip_reason == NO_NEXT):  # an outcome counts as a reaction
                yield TurnToJudge(joined, outcome, joined.index in repeating)
            else:
                counters.drop(skip_reason or "not trainable")


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


def write_questions(turns: Sequence[TurnToJudge], config: JudgeConfig, texts: Texts) -> list[Question]:
    """Return the questions to ask a model, in the wording of `texts`; questions about one turn are adjacent."""
    questions = []
    for turn in turns:
        common = write_turn(turn.reply, config.max_section_chars)
        asked = {name: judge_messages(common, name, texts) for name in turn.questions}
        questions += [Question(turn.joined.turn_id, name, messages) for name, messages in asked.items()]
    return questions


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
