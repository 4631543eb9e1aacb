"""Counts of votes, and warnings about the verdicts of a stage as a whole."""

from collections.abc import Sequence
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.config.judge import WARNINGS, JudgeConfig
from opdkit.console import counted, verb
from opdkit.judge.cascade import FIRST, GIVEN, UNREAD
from opdkit.judge.parse import CUT_OFF, EMPTY, OPEN_THINKING
from opdkit.judge.votes import NO_ANSWER, TOO_LONG, HintVote, Reward, RewardVote
from opdkit.store.counters import Counters, mostly_dropped
from opdkit.store.reading import read_all

NO_REWARD, UNBUILT = "the function gave no reward", "the prompt cannot be built"
_REMEDIES = {
    CUT_OFF: "Raise --max-new-tokens.",
    TOO_LONG: "Lower --max-section-chars or, for a judge on a server, --max-new-tokens.",
    NO_REWARD: "Return None only for turns that the function cannot judge.",
    # Servers that parse thinking return it separately: if it never ends, the text of the answer is empty.
    **dict.fromkeys((EMPTY, OPEN_THINKING), "If the judge thinks first, raise --max-new-tokens, or turn its thinking "
                    "off, as with --template-arg enable_thinking=false."),
    **dict.fromkeys((UNBUILT, NO_ANSWER), "`opdkit show RUN --status failed --whole` says why."),
}  # fmt: skip
_FLAGGED = {
    "tool_error": "after which a tool failed",
    "truncation": "that were cut off",
    "duplicate_call": "that repeat a tool call",
    "loop": "that end in a loop",
}


def count_votes(counters: Counters, votes: Sequence[HintVote | RewardVote], reward: Reward) -> None:
    """Count the votes on a turn, failed votes by kind of error, and the reward by value: "-1", "0" or "+1"."""
    counters.count("votes", len(votes))
    for vote in votes:
        if vote.error:
            counters.count("failed votes", label=vote.error.partition(":")[0])  # the rest is about this vote alone
    if reward.reward is None:
        counters.count("no reward")
    else:
        counters.count("rewards", label=f"{reward.reward:+d}" if reward.reward else "0")


def find_remedy(kind: str) -> str:
    """Return what to do if most votes failed with this kind of error."""
    return _REMEDIES.get(kind, "Is it the right model? A judge must be a chat model that follows instructions.")


def describe_failure(run: Path, counters: Counters) -> str:
    """Return a message if all votes of a run failed, with the first error; "" if not, or if the log gave rewards."""
    votes = counters.total("votes")
    if not 0 < votes == counters.total("failed votes") or counters.total("rewards"):
        return ""
    votes_of = ([*row["hint_votes"], *row["reward_votes"]] for row in read_all(run, "verdicts"))
    reason = next((vote["error"] for row in votes_of for vote in row), None)
    if reason is None:  # `opdkit forget` removed all of them
        return ""
    remedy = "" if ":" in reason else f" {find_remedy(reason)}"  # details are clearer than any advice
    return (f"all {counted(votes, 'vote')} failed, the first one with: {reason}.{remedy} `opdkit show {quote(run)} "
            "--status failed --whole` shows the answers")  # fmt: skip


def find_warnings(config: JudgeConfig, counters: Counters) -> list[str]:
    if not counters.rows_out:
        return []
    messages = mostly_dropped("judge", counters) + ([WARNINGS["reaction"]] if config.judge == "reaction" else [])
    votes, failed = counters.total("votes"), counters.total("failed votes")
    kind = next((kind for kind, _ in counters.labels("failed votes").most_common(1)), "")
    remedy = find_remedy(kind)
    if 2 * failed > votes:
        share = "all" if failed == votes else f"{failed:,} of"
        messages.append(f"{share} {counted(votes, 'vote')} failed, most often: {kind}. {remedy}")
    elif failed and 2 * counters.total("no reward") > counters.rows_out:  # mostly the votes on rewards failed
        messages.append(f"{counters.total('no reward'):,} of {counted(counters.rows_out, 'turn')} got no reward: too "
                        f"many votes failed, most often: {kind}. {remedy}")  # fmt: skip
    given, lost = counters.labels(GIVEN)[FIRST], counters.labels(UNREAD)
    if 2 * lost.total() > given:
        ((why, _),) = lost.most_common(1)
        messages.append(f"{lost.total():,} of {counted(given, 'vote')} of the first judge failed, most often: {why}. "
                        f"{_REMEDIES.get(why, '')}".strip())  # fmt: skip
    if not counters.total("hints"):
        messages.append("no turn got a hint: only objectives that use rewards can train on this run")
    if unweighed := counters.total("questions not weighed"):
        messages.append(f"--weigh-votes: {counted(unweighed, 'question')} had a vote without a confidence; there each "
                        "vote counted as one")  # fmt: skip
    messages += find_equal_rewards(counters)
    unread, sessions = (counters.total(f"{things} not in English") for things in ("turns", "sessions"))
    if 20 * unread > counters.rows_out:
        messages.append(f"the rules read only English: {counted(unread, 'reaction')} in "
                        f"{counted(sessions, 'session')} {verb(unread, 'is', 'are')} in another language, which gave "
                        "reward 0 and no hint. A model reads them: --judge local or endpoint")  # fmt: skip
    for flag, words in _FLAGGED.items():
        rewarded, shown = counters.labels("flags on turns rewarded +1")[flag], counters.labels("flags")[flag]
        if 2 * rewarded > shown:
            messages.append(f"{rewarded:,} of {counted(shown, 'turn')} {words} {verb(rewarded, 'was', 'were')} "
                            "rewarded +1: look at examples before training on them")  # fmt: skip
    conditions = [*(f"--good {text}" for text in config.good), *(f"--bad {text}" for text in config.bad)]
    if conditions and not counters.total("outcomes"):  # a misspelt field is the usual reason
        messages.append(f"{' and '.join(conditions)}: true of no turn, so all rewards come from votes. What logs say "
                        "is in the column metadata of the table sessions")  # fmt: skip
    return messages


def find_equal_rewards(counters: Counters) -> list[str]:
    """Return a warning if all rewards are equal and there are 10 or more: fewer equal ones mean nothing."""
    rewards = counters.labels("rewards")
    if len(rewards) != 1 or rewards.total() < 10:
        return []
    return [f"all {rewards.total():,} rewards are {next(iter(rewards))}: they do not tell one reply from another"]
