"""Cascade of two judges: a small first judge answers all questions, the second one those that the first leaves open.

The votes of the first judge decide the reward if all of them are equal. On the hint they can only decide that there is
none: agreement says nothing about the text of a hint, which small models write worst. So the second judge writes all
hints, and gives the rewards on which the first judge's votes differ. A failed vote agrees with no other.
"""

from collections.abc import Sequence

from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import Texts
from opdkit.judge.parse import parse_hint, parse_reward, read_decisions
from opdkit.judge.rounds import ask_in_rounds
from opdkit.judge.votes import USAGE, Answer, Answers, Ask, Question, Votes
from opdkit.store.counters import Counters

# Counters of a cascade, in addition to those of tokens, and their labels.
DECIDED, GIVEN, UNREAD = "questions decided", "votes given", "failed votes of the first judge"
FIRST, SECOND = "first judge", "second judge"


def ask_judges(
    questions: list[Question], config: JudgeConfig, ask: Ask, texts: Texts, counters: Counters, ask_first: Ask | None
) -> tuple[Answers, list[JSON]]:
    """Return the answers to each question, and the rows of `escalated`. Count the tokens of the answers.

    With `ask_first`, the first judge answers all questions, and the second judge (`ask`) those left open; the rows are
    the first judge's votes on the latter. Without it, `ask` answers all questions, and there are no rows.
    """
    if not (ask_first and config.first):
        return _ask_judge(questions, config, ask, texts, counters), []
    first = _ask_judge(questions, config.first, ask_first, texts, counters, FIRST)
    left = [question for question in questions if leaves_open(question.name, first[question.key], texts)]
    counters.count(DECIDED, len(questions) - len(left), label=FIRST)
    counters.count(DECIDED, len(left), label=SECOND)
    second, escalated = _ask_judge(left, config, ask, texts, counters, SECOND), list[JSON]()
    overruled = {key: first[key] for key in second}
    for turn_id in dict.fromkeys(question.turn_id for question in left):
        votes = list_votes_on(turn_id, overruled, texts)
        for error in filter(None, [vote.error for vote in votes.hint] + [vote.error for vote in votes.reward]):
            counters.count(UNREAD, label=error.partition(":")[0])
        escalated.append(votes.columns(turn_id))
    return first | second, escalated


def _ask_judge(
    questions: Sequence[Question], config: JudgeConfig, ask: Ask, texts: Texts, counters: Counters, who: str = ""
) -> Answers:
    """Return the answers of one judge. Count their tokens and, in a cascade, the votes, under the label `who`."""
    answers = dict(zip([q.key for q in questions], ask_in_rounds(ask, questions, config, texts), strict=True))
    if who:
        counters.count(GIVEN, sum(map(len, answers.values())), label=who)
    for usage in (answer.usage for votes in answers.values() for answer in votes if answer.usage):
        for name, number in zip(USAGE, usage, strict=True):
            counters.count(name, number, label=who)
    return answers


def list_votes_on(turn_id: str, answers: Answers, texts: Texts) -> Votes:
    """Return the votes in the answers about a turn; none on a question that was not asked."""
    hint_votes = [parse_hint(answer, texts["hint"]) for answer in answers.get((turn_id, "hint"), ())]
    reward_votes = [parse_reward(answer, texts["reward"]) for answer in answers.get((turn_id, "reward"), ())]
    return Votes(hint_votes, reward_votes)


def leaves_open(name: str, answers: Sequence[Answer], texts: Texts) -> bool:
    """Return whether the first judge's answers to a question (hint or reward) leave it to the second judge."""
    decisions = {decision for decision, _ in read_decisions(answers, name, texts)}
    return bool(decisions - {-1}) if name == "hint" else len(decisions) != 1 or None in decisions
