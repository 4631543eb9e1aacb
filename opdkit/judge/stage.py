"""The loop of `opdkit judge`: read the turns of a part, put two questions about each to the judge, write verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from opdkit.config.command_line import quote
from opdkit.config.commands import load_function
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.console import counted, progress, verb, warn
from opdkit.errors import OpdkitError
from opdkit.judge import hints, rules
from opdkit.judge.exchange import TOO_LONG, Ask, HintVote, Question, RewardVote
from opdkit.judge.flags import flags
from opdkit.judge.outcomes import Outcomes
from opdkit.judge.parse import CUT_OFF, parse_hint, parse_reward
from opdkit.judge.prompts import judge_messages, turn_text
from opdkit.judge.votes import Reward, reward_of
from opdkit.model.folder import refuse_no_model
from opdkit.store import (
    Counters,
    Stage,
    Summary,
    model_identity,
    mostly_dropped,
    outdated,
    part_count,
    part_path,
    refuse_nothing,
)
from opdkit.store.joined import LOGGED, joined_turns
from opdkit.store.plans import stage_dir
from opdkit.store.skip_reasons import NO_NEXT
from opdkit.store.tables import VERDICTS

# Judges that are asked: "module:function", imported only when chosen; the function opens one and returns an Ask.
JUDGES = {"local": "opdkit.judge.local:open_judge", "endpoint": "opdkit.judge.endpoint:open_judge"}

QUESTIONS = ("hint", "reward")
_OUTCOMES = "outcomes"  # rewards that the log brought along
_FEW_REWARDS = 10  # that fewer rewards than this are all alike means nothing


@dataclass(frozen=True)
class Case:
    """A turn to be judged, in its conversation."""

    turn: JSON
    messages: list[JSON]
    outcome: Reward | None = None  # what its log says instead of votes

    @property
    def index(self) -> int:
        return int(self.turn["message_index"])

    @property
    def next_count(self) -> int:
        return int(self.turn["next_count"])

    @property
    def questions(self) -> Sequence[str]:
        """What the judge is asked: of a turn that nobody reacted to no hint, of one with an outcome no reward."""
        needed = {"hint": self.next_count > 0, "reward": self.outcome is None}
        return [name for name in QUESTIONS if needed[name]]

    @property
    def next_text(self) -> str:
        following = self.messages[self.index + 1 : self.index + 1 + self.next_count]
        return "\n".join(m["content"] or "" for m in following)

    def not_to_be_quoted(self, judge: str) -> str:
        """The text that a hint of this judge gives away when it quotes it.

        The rules write no hint of their own: they quote the user's instruction, which is what makes it actionable.
        """
        return "" if judge == "rules" else self.next_text


Votes = tuple[list[HintVote], list[RewardVote]]


def run(config: JudgeConfig) -> Summary:
    """Judge every trainable turn of the run; parts that are done are skipped.

    Raises OpdkitError when the extract stage has not finished or the judge cannot be reached: then the part under way
    is not written, and the same command goes on with it.
    """
    parts = part_count(config.run, "extract")
    if config.judge == "local" and config.judge_model:
        refuse_no_model(config.judge_model)
    inputs = {"model": model_identity(config.judge_model)} if config.judge == "local" and config.judge_model else {}
    ask = _tried(config) if config.overwrite else None
    # A server answers otherwise the next time, whatever the seed.
    stage = Stage.open(config, "judge", [VERDICTS], parts=parts, inputs=inputs, upstream=["extract"],
                       drawn=config.judge == "endpoint")  # fmt: skip
    if todo := stage.todo():
        _refuse_lost_votes(config, todo)
        ask = ask or _open_judge(config)
    for part in progress(todo, "judge", len(todo), "parts"):
        with stage.writing(part) as out:
            cases = _cases(config, part, out.counters)
            votes = _ask(config, ask, cases) if ask else [_by_rules(case) for case in cases]
            for case, (hint_votes, reward_votes) in zip(cases, votes, strict=True):
                row = _verdict(config, case, hint_votes, reward_votes, out.counters)
                out.rows("verdicts", [row])
    summary = stage.summary()
    for message in [*warnings(summary.counters), *_no_outcome(config, summary.counters)]:
        warn(message)
    refuse_nothing(summary, f"no turn was judged, since none of {summary.counters.rows_in:,} is trainable")
    return summary


def _refuse_lost_votes(config: JudgeConfig, parts: Sequence[int]) -> None:
    """Raise OpdkitError where targets were computed from votes of a server that are gone: it may vote otherwise now."""
    if config.judge != "endpoint" or not (stage_dir(config.run, "teacher") / "manifest.json").exists():
        return
    if outdated(config.run, "teacher"):
        return  # as a whole, and refused as that
    if left := [part for part in parts if part_path(config.run, "targets", part).exists()]:
        raise OpdkitError(f"the votes of {counted(len(left), 'part')} are gone, and targets were computed from them; a "
                          f"server may vote otherwise the next time: run `opdkit check {quote(config.run)} "
                          "--recompute` first, which removes such targets")  # fmt: skip


def _tried(config: JudgeConfig) -> Ask | None:
    """A judge that is there and answers, so that votes may be thrown away for its own.

    Raises OpdkitError when it is not.
    """
    if config.judge != "endpoint":
        return _open_judge(config)
    load_function("opdkit.judge.endpoint:try_server")(config)
    return None  # it is opened when the name is gone that the old votes bear


def _open_judge(config: JudgeConfig) -> Ask | None:
    """None for the rules, which are not asked."""
    if config.judge == "rules":
        return None
    ask: Ask = load_function(JUDGES[config.judge])(config)
    return ask


def _cases(config: JudgeConfig, part: int, counters: Counters) -> list[Case]:
    """The turns of a part to judge, within `--limit`. The others are counted as dropped, by their reason."""
    outcomes, cases = Outcomes(config.good, config.bad), []
    turns = joined_turns(config.run, part, LOGGED, limit=config.limit, reviews={})
    for _, session_turns in groupby(turns, key=lambda turn: turn.session_id):
        outcome_of = None
        for joined in session_turns:
            counters.rows_in += 1
            outcome_of = outcome_of or outcomes.told(joined.session)
            turn, case = joined.turn, Case(joined.turn, joined.session["messages"], outcome_of(joined.index))
            if turn["trainable"] or (case.outcome and turn["skip_reason"] == NO_NEXT):  # an outcome is a reaction, too
                cases.append(case)
            else:
                counters.drop(turn["skip_reason"] or "not trainable")
    return cases


# -- votes ----------------------------------------------------------------------------------------------------------


def _by_rules(case: Case) -> Votes:
    hint_vote, reward_vote = rules.votes(case.messages, case.index, case.next_count)
    asked = case.questions
    return [hint_vote] if "hint" in asked else [], [reward_vote] if "reward" in asked else []


def _ask(config: JudgeConfig, ask: Ask, cases: Sequence[Case]) -> list[Votes]:
    questions = []
    for case in cases:
        common = turn_text(case.messages, case.index, case.next_count, config.max_section_chars)
        for name in case.questions:
            questions.append(Question(case.turn["turn_id"], name, judge_messages(common, name)))
    answers = iter(ask(questions)) if questions else iter(())
    given = [{name: next(answers) for name in case.questions} for case in cases]
    return [
        ([parse_hint(a) for a in some.get("hint", ())], [parse_reward(a) for a in some.get("reward", ())])
        for some in given
    ]


def _verdict(
    config: JudgeConfig, case: Case, hint_votes: list[HintVote], reward_votes: list[RewardVote], counters: Counters
) -> JSON:
    """One row of `verdicts`."""
    reward = case.outcome or reward_of([v.score for v in reward_votes])
    choice = hints.choose(
        [v.decision for v in hint_votes],
        [v.hint for v in hint_votes],
        case.not_to_be_quoted(config.judge),
        select=config.hint_select,
        max_chars=config.max_hint_chars,
    )
    shown = flags(case.messages, case.index, case.next_count, case.turn["finish_reason"])
    count_votes(counters, [*hint_votes, *reward_votes])
    count_reward(counters, reward.reward)
    counters.count(_OUTCOMES, int(bool(case.outcome)))
    counters.count("hints", int(choice.hint is not None))
    for reason, count in choice.rejected.items():
        counters.count("rejected hints", count, label=reason)
    for flag in shown:
        counters.count("flags", label=flag)
        counters.count("flags on turns rewarded +1", int(reward.reward == 1), label=flag)
    return {
        "turn_id": case.turn["turn_id"],
        "hint_votes": [v.row() for v in hint_votes],
        "reward_votes": [v.row() for v in reward_votes],
        "reward": reward.reward,
        "reward_status": reward.status,
        "reward_agreement": reward.agreement,
        "hints": choice.hints,
        "hint": choice.hint,
        "hint_status": choice.status,
    }


# -- counting, and what it shows ------------------------------------------------------------------------------------


def count_votes(counters: Counters, votes: Sequence[HintVote | RewardVote]) -> None:
    """Count the votes of a question, and those that failed by their kind."""
    counters.count("votes", len(votes))
    for vote in votes:
        if vote.error:
            counters.count("failed votes", label=vote.error.partition(":")[0])  # what follows is about the one vote


def count_reward(counters: Counters, reward: int | None) -> None:
    """Count one reward by its value, "-1", "0" or "+1"."""
    if reward is None:
        counters.count("no reward")
    else:
        counters.count("rewards", label=f"{reward:+d}" if reward else "0")


def warnings(counters: Counters) -> list[str]:
    """In words, what looks wrong with a stage's verdicts as a whole."""
    found = list[str]()
    if not counters.rows_out:
        return []
    found += mostly_dropped("judge", counters)
    votes, failed = counters.total("votes"), counters.total("failed votes")
    if 2 * failed > votes:
        kind = counters.labels("failed votes").most_common(1)[0][0]
        share = "all" if failed == votes else f"{failed:,} of"
        found.append(
            f"{share} {counted(votes, 'vote')} failed, most often: {kind}. {_REMEDIES.get(kind, _ANOTHER_MODEL)}"
        )
    if not counters.total("hints"):
        found.append("no turn got a hint: the teacher has nothing to tell the student, only rewards can train it")
    found += all_alike(counters)
    for flag, words in _FLAGGED.items():
        rewarded, shown = counters.labels("flags on turns rewarded +1")[flag], counters.labels("flags")[flag]
        if 2 * rewarded > shown:
            found.append(
                f"{rewarded:,} of {counted(shown, 'turn')} {words} {verb(rewarded, 'was', 'were')} rewarded +1: look "
                "at some before training on them"
            )
    return found


def _no_outcome(config: JudgeConfig, counters: Counters) -> list[str]:
    """In words, when conditions on outcomes hold nowhere: a misspelt field is the usual reason."""
    asked = [f"{flag} {text}" for flag, texts in (("--good", config.good), ("--bad", config.bad)) for text in texts]
    if not asked or not counters.rows_out or counters.total(_OUTCOMES):
        return []
    return [f"{' and '.join(asked)}: true of no turn, so that votes decide everywhere. What logs say is in the "
            "column metadata of the table sessions"]  # fmt: skip


def all_alike(counters: Counters) -> list[str]:
    """In words, when many rewards have one value."""
    rewards = counters.labels("rewards")
    if len(rewards) != 1 or rewards.total() < _FEW_REWARDS:
        return []
    return [f"all {rewards.total():,} rewards are {next(iter(rewards))}: they tell no reply from another"]


_REMEDIES = {CUT_OFF: "Raise --max-new-tokens.", TOO_LONG: "Lower --max-section-chars."}
_ANOTHER_MODEL = "Is it the right model? A judge must be a chat model that does as it is told."
_FLAGGED = {
    "tool_error": "after which a tool failed",
    "truncation": "that were cut off",
    "duplicate_call": "that repeat a tool call",
    "loop": "that end in a loop",
}
