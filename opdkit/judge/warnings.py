"""Warnings about the verdicts of a stage as a whole, from its counters. Pure."""

from opdkit.config.judge import WARNINGS, JudgeConfig
from opdkit.console import counted, verb
from opdkit.judge.cascade import FIRST, GIVEN, UNREAD
from opdkit.judge.parse import CUT_OFF, EMPTY, OPEN_THINKING
from opdkit.judge.votes import TOO_LONG
from opdkit.store.counters import Counters, mostly_dropped

NO_REWARD, UNBUILT = "the function gave no reward", "the prompt cannot be built"
# Servers with a parser for thinking return it apart: what is left of an answer that does not come to its end is empty.
_THINKS = ("If the judge thinks first, raise --max-new-tokens, or turn its thinking off, as with --template-arg "
           "enable_thinking=false.")  # fmt: skip
_REMEDIES = {CUT_OFF: "Raise --max-new-tokens.", TOO_LONG: "Lower --max-section-chars.", EMPTY: _THINKS,
             OPEN_THINKING: _THINKS,
             NO_REWARD: "None is for turns that it cannot judge.",
             UNBUILT: "`opdkit show RUN --status failed --whole` says why."}  # fmt: skip
_FLAGGED = {
    "tool_error": "after which a tool failed",
    "truncation": "that were cut off",
    "duplicate_call": "that repeat a tool call",
    "loop": "that end in a loop",
}


def remedy_for(kind: str) -> str:
    """Return what to do about votes that failed in this way, most or all of them."""
    return _REMEDIES.get(kind, "Is it the right model? A judge must be a chat model that follows instructions.")


def warnings(config: JudgeConfig, counters: Counters) -> list[str]:
    """Return what looks wrong with a stage's verdicts as a whole."""
    if not counters.rows_out:
        return []
    messages = mostly_dropped("judge", counters) + ([WARNINGS["reaction"]] if config.judge == "reaction" else [])
    votes, failed = counters.total("votes"), counters.total("failed votes")
    kind = next((kind for kind, _ in counters.labels("failed votes").most_common(1)), "")
    remedy = remedy_for(kind)
    if 2 * failed > votes:
        share = "all" if failed == votes else f"{failed:,} of"
        messages.append(f"{share} {counted(votes, 'vote')} failed, most often: {kind}. {remedy}")
    elif failed and 2 * counters.total("no reward") > counters.rows_out:  # the other question went well
        messages.append(f"{counters.total('no reward'):,} of {counted(counters.rows_out, 'turn')} got no reward: too "
                        f"many votes failed, most often: {kind}. {remedy}")  # fmt: skip
    given, lost = counters.labels(GIVEN)[FIRST], counters.labels(UNREAD)
    if 2 * lost.total() > given:
        ((why, _),) = lost.most_common(1)
        messages.append(f"{lost.total():,} of {counted(given, 'vote')} of the first judge failed, most often: {why}. "
                        f"{_REMEDIES.get(why, '')}".strip())  # fmt: skip
    if not counters.total("hints"):
        messages.append("no turn got a hint: the teacher has nothing to tell the student, only rewards can train it")
    if unweighed := counters.total("questions not weighed"):
        messages.append(f"--weigh-votes: {counted(unweighed, 'question')} had a vote without a confidence; there each "
                        "vote counted as one")  # fmt: skip
    messages += equal_rewards(counters)
    unread, sessions = (counters.total(f"{things} not in English") for things in ("turns", "sessions"))
    if 20 * unread > counters.rows_out:
        messages.append(f"the rules know English alone: {counted(unread, 'reaction')} in "
                        f"{counted(sessions, 'session')} {verb(unread, 'is', 'are')} in another language, which gave "
                        "reward 0 and no hint. A model reads them: --judge local or endpoint")  # fmt: skip
    for flag, words in _FLAGGED.items():
        rewarded, shown = counters.labels("flags on turns rewarded +1")[flag], counters.labels("flags")[flag]
        if 2 * rewarded > shown:
            messages.append(f"{rewarded:,} of {counted(shown, 'turn')} {words} {verb(rewarded, 'was', 'were')} "
                            "rewarded +1: look at examples before training on them")  # fmt: skip
    conditions = [*(f"--good {text}" for text in config.good), *(f"--bad {text}" for text in config.bad)]
    if conditions and not counters.total("outcomes"):  # a misspelt field is the usual reason
        messages.append(f"{' and '.join(conditions)}: true of no turn, so that votes decide everywhere. What logs say "
                        "is in the column metadata of the table sessions")  # fmt: skip
    return messages


def equal_rewards(counters: Counters) -> list[str]:
    """Return a warning when 10 rewards or more have one value; of fewer, that means nothing."""
    rewards = counters.labels("rewards")
    if len(rewards) != 1 or rewards.total() < 10:
        return []
    return [f"all {rewards.total():,} rewards are {next(iter(rewards))}: they do not tell one reply from another"]
