"""Turns to judge, read from the logs of a run, and the questions to ask about them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opdkit.chat.conversation import NO_DECISION
from opdkit.config.conditions import parse_filters
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import Texts
from opdkit.judge.decisions import choose_decided_reward
from opdkit.judge.flags import find_repeated_calls
from opdkit.judge.outcomes import find_outcomes
from opdkit.judge.prompts import judge_messages, write_turn
from opdkit.judge.reply_in_context import ReplyInContext, reply_in_context
from opdkit.judge.votes import Question, Reward
from opdkit.store.counters import Counters
from opdkit.store.joined_turns import LOGGED, JoinedTurn, by_session, joined_turns
from opdkit.store.skip_reasons import NO_NEXT


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


def write_questions(turns: Sequence[TurnToJudge], config: JudgeConfig, texts: Texts) -> list[Question]:
    """Return the questions to ask a model, in the wording of `texts`; questions about one turn are adjacent."""
    questions = []
    for turn in turns:
        common = write_turn(turn.reply, config.max_section_chars)
        asked = {name: judge_messages(common, name, texts) for name in turn.questions}
        questions += [Question(turn.joined.turn_id, name, messages) for name, messages in asked.items()]
    return questions
