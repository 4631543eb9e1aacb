"""Decisions of people in the log as signal: ratings, edits, and replies given up in favour of another one.

A decision gives a reward without a vote: a rating is the reward; a reply that was edited, or regenerated and not kept,
gets -1. The reply that the person wanted (the edit or the kept reply) is a hint, also without a vote. A comment is a
reaction, like a next message.
"""

from opdkit.chat.conversation import JSON
from opdkit.config.wording import Texts
from opdkit.judge.hints import Choice
from opdkit.judge.votes import CONFLICT, EDITED, KEPT_REPLY, OUTCOME, Reward


def choose_decided_reward(decision: JSON) -> Reward | None:
    """Return the reward that a decision gives; None for a comment or tags alone."""
    reward = decision["rating"]
    if reward is None and (decision["edited"] or decision["kept"]):
        reward = -1
    return None if reward is None else Reward(reward, OUTCOME, None)


def choose_decided_hint(decision: JSON, choice: Choice, texts: Texts) -> Choice:
    """Return the hint with the reply that a person wanted: the edit alone, or the voted hint, then the kept reply."""
    if decision["edited"]:
        hint, status = texts["edited"].replace("{reply}", decision["edited"]), EDITED
    elif decision["kept"]:
        kept = texts["kept"].replace("{reply}", decision["kept"])
        hint, status = f"{choice.hint}\n\n{kept}" if choice.hint else kept, KEPT_REPLY
    else:
        return choice
    return Choice([hint], hint, status, choice.rejected)


def resolve_conflict(reward: Reward, choice: Choice, rule: str) -> tuple[Reward, Choice]:
    """Return reward and hint of a reply rated +1 whose hint asks for another reply. `rule` is --conflicts."""
    if rule == "hint":
        return Reward(-1, CONFLICT, None), choice
    none = Choice(choice.hints, None, CONFLICT, choice.rejected)
    return Reward(reward.reward if rule == "rating" else None, CONFLICT, None), none
