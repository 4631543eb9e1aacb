"""Rounds of votes from a server: a question gets no further votes once they cannot change its outcome.

The first round asks for the fewest votes that can decide a question (three of five), each later round for the fewest
that still can. So each question gets its votes in order until they decide it, regardless of the size of the part. Vote
k has the same seed whether or not others are asked for, so rewards and hints are the same as with all votes.
"""

from collections.abc import Sequence
from dataclasses import replace

from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import Texts
from opdkit.judge.parse import read_decisions
from opdkit.judge.votes import Answer, Ask, Question, count_missing


def ask_in_rounds(ask: Ask, questions: Sequence[Question], config: JudgeConfig, texts: Texts) -> list[list[Answer]]:
    """Return the answers to each question, up to the vote that decides it."""
    answers = [list[Answer]() for _ in questions]
    while more := {
        i: n for i, question in enumerate(questions) if (n := count_missing_votes(question, answers[i], config, texts))
    }:
        # Only a server reads `votes`. A local judge gives all votes at once, and is asked for all of them.
        asked = [replace(questions[i], votes=range(len(answers[i]), len(answers[i]) + n)) for i, n in more.items()]
        for i, new in zip(more, ask(asked), strict=True):
            answers[i] += new
    return answers


def count_missing_votes(question: Question, answers: Sequence[Answer], config: JudgeConfig, texts: Texts) -> int:
    """Return how many more votes to ask for on a question: see `count_missing`.

    All remaining votes are asked for with `--all-votes`, from a local judge, and in a batch. A local judge reads a
    prompt once for all its votes, and the answers of a batch come together.
    """
    if config.all_votes or config.judge != "endpoint":
        return config.votes - len(answers)
    votes = read_decisions(answers, question.name, texts)
    return count_missing(votes, question.name, config.votes, config.weigh_votes)
