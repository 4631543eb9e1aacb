"""Names of turns and sessions: a turn after its session, a sampled session after the turn that it answers.

chat.jsonl:17               a session of a log
chat.jsonl:17:3             its message 3
chat.jsonl:17:3/rollout-0   the session of `opdkit rollout` that answers the prompt of message 3 again
chat.jsonl:17#branch-2      another branch of the conversation of session chat.jsonl:17
"""

import re

from opdkit.store.stable_hash import stable_hash

_SAMPLED = "/rollout-"
_ROLLOUTS = re.compile(rf"(?::\d+{_SAMPLED}\d+)+\Z")
_BRANCH = re.compile(r"#branch-\d+\Z")  # a `#` of the log's own is escaped


def turn_id(session_id: str, message_index: int) -> str:
    return f"{session_id}:{message_index}"


def session_of(turn: str) -> str:
    """Return the session that a turn is in."""
    return turn.rpartition(":")[0]


def message_index_of(turn: str) -> int:
    """Return the index of a turn's reply among the messages of its session."""
    return int(turn.rpartition(":")[2])


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


def branch_session_id(first: str, branch: int) -> str:
    """Return the session of branch number `branch`, from 1, of the conversation whose first branch is `first`."""
    return first if branch < 2 else f"{first}#branch-{branch}"


def first_branch(session_id: str) -> str:
    """Return the first branch of the conversation that a session is a branch of; any other session itself."""
    return _BRANCH.sub("", session_id)


def conversation_id(session_id: str) -> str:
    """Return the session of the log that a session goes back to; of the branches of one conversation, the first.

    >>> conversation_id("chat.jsonl:17#branch-2:3/rollout-0")
    'chat.jsonl:17'
    """
    return first_branch(logged_session_id(session_id))


def is_held_out(session_id: str, share: float) -> bool:
    """Return True for a session that is kept out of training; the answer is the same in every stage, process and run.

    It depends on a hash of the session's id: adding sessions to the logs changes no answer, and a larger `share` only
    adds sessions. Replies of `opdkit rollout` follow the session of the log whose prompts they answer, and the
    branches of one conversation its first branch.
    """
    return stable_hash(f"holdout:{conversation_id(session_id)}", bits=64) < share * 2**64
