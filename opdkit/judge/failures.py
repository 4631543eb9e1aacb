"""Counts of votes and failed votes, and the message for a run in which all votes failed."""

from collections.abc import Sequence
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.console import counted
from opdkit.judge.votes import HintVote, Reward, RewardVote
from opdkit.judge.warnings import remedy_for
from opdkit.store.counters import Counters
from opdkit.store.reading import read_all


def count_votes(counters: Counters, votes: Sequence[HintVote | RewardVote], reward: Reward) -> None:
    """Count the votes on a turn, those that failed by their kind, and the reward by its value, "-1", "0" or "+1"."""
    counters.count("votes", len(votes))
    for vote in votes:
        if vote.error:
            counters.count("failed votes", label=vote.error.partition(":")[0])  # what follows is about the one vote
    if reward.reward is None:
        counters.count("no reward")
    else:
        counters.count("rewards", label=f"{reward.reward:+d}" if reward.reward else "0")


def describe_failure(run: Path, counters: Counters) -> str:
    """Return that all votes of a run failed, and why the first one did; "" where that is not so, or the log rewards."""
    votes = counters.total("votes")
    if not 0 < votes == counters.total("failed votes") or counters.total("rewards"):
        return ""
    votes_of = ([*row["hint_votes"], *row["reward_votes"]] for row in read_all(run, "verdicts"))
    reason = next((vote["error"] for row in votes_of for vote in row), None)
    if reason is None:  # `opdkit forget` removed all of them
        return ""
    remedy = "" if ":" in reason else f" {remedy_for(reason)}"  # details are clearer than any advice
    return (f"all {counted(votes, 'vote')} failed, the first one with: {reason}.{remedy} `opdkit show {quote(run)} "
            "--status failed --whole` shows the answers")  # fmt: skip
