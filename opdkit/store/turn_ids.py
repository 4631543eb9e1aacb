"""Names of turns and sessions: a turn after its session, a sampled session after the turn that it answers.

chat.jsonl:17               a session of a log
chat.jsonl:17:3             its message 3
chat.jsonl:17:3/rollout-0   the session of `opdkit rollout` that answers the prompt of message 3 again
"""

import re

_SAMPLED = "/rollout-"
_ROLLOUTS = re.compile(rf"(?::\d+{_SAMPLED}\d+)+\Z")


def turn_id(session_id: str, message_index: int) -> str:
    return f"{session_id}:{message_index}"


def rollout_session_id(answered: str, sample: int) -> str:
    """Return the session of reply number `sample`, from 0, to the prompt of turn `answered`."""
    return f"{answered}{_SAMPLED}{sample}"


def answered_turn_id(session_id: str) -> str:
    """Return the turn whose prompt a rollout's session answers again."""
    return session_id.rpartition(_SAMPLED)[0]


def logged_session_id(session_id: str) -> str:
    """Return the session of the log that a session goes back to, over any number of rollouts.

    >>> logged_session_id("chat.jsonl:17:3/rollout-0:3/rollout-2")
    'chat.jsonl:17'
    """
    return _ROLLOUTS.sub("", session_id)
