"""Ids of turns and sessions. A turn's id begins with its session's, a rollout session's with the turn that it answers.

chat:17               a session of the log chat.jsonl
chat:17:3             the turn whose reply is message 3 of that session
chat:17:3/rollout-0   the session of `opdkit rollout` that answers the prompt of that turn again
chat:17#branch-2      another branch of the conversation of session chat:17
"""

import re

from opdkit.store.stable_hash import stable_hash

_SAMPLED = "/rollout-"
_ROLLOUTS = re.compile(rf"(?::\d+{_SAMPLED}\d+)+\Z")
_BRANCH = re.compile(r"#branch-\d+\Z")  # a `#` of the log's own is escaped
_NUMBERS = re.compile(r"(#\d+)?(#branch-\d+)?\Z")


def turn_id(session_id: str, message_index: int) -> str:
    return f"{session_id}:{message_index}"


def session_of(turn: str) -> str:
    """Return the id of the session that a turn is in."""
    return turn.rpartition(":")[0]


def message_index_of(turn: str) -> int:
    """Return the index of a turn's reply among the messages of its session."""
    return int(turn.rpartition(":")[2])


def rollout_session_id(answered: str, sample: int) -> str:
    """Return the id of the session with rollout reply number `sample`, from 0, to the prompt of turn `answered`."""
    return f"{answered}{_SAMPLED}{sample}"


def answered_turn_id(session_id: str) -> str:
    """Return the id of the turn whose prompt a rollout session answers again."""
    return session_id.rpartition(_SAMPLED)[0]


def prompt_turn_id(turn: str) -> str:
    """Return the id of the turn whose prompt a turn answers: its own, or for a rollout the one that it answers again.

    >>> prompt_turn_id("chat:17:3/rollout-0:3")
    'chat:17:3'
    """
    return answered_turn_id(session_of(turn)) or turn


def logged_session_id(session_id: str) -> str:
    """Return the id of the logged session that a session comes from, through any number of rollouts.

    >>> logged_session_id("chat:17:3/rollout-0:3/rollout-2")
    'chat:17'
    """
    return _ROLLOUTS.sub("", session_id)


def branch_session_id(first: str, branch: int) -> str:
    """Return the session id of branch number `branch`, from 1, of the conversation whose first branch is `first`."""
    return first if branch < 2 else f"{first}#branch-{branch}"


def first_branch(session_id: str) -> str:
    """Return the id of the first branch of the session's conversation; the same id if the session is no branch."""
    return _BRANCH.sub("", session_id)


def strip_numbers(session_id: str) -> str:
    """Return a session id without the numbers of its conversation and branch, which may change as the log grows.

    >>> strip_numbers("chat:17#2#branch-3")
    'chat:17'
    """
    return _NUMBERS.sub("", session_id)


def conversation_id(session_id: str) -> str:
    """Return the id of the logged session that a session comes from; if that is a branch, of its first branch.

    >>> conversation_id("chat:17#branch-2:3/rollout-0")
    'chat:17'
    """
    return first_branch(logged_session_id(session_id))


def is_held_out(session_id: str, share: float) -> bool:
    """Return True for a session that is kept out of training; the answer is the same in every stage, process and run.

    It depends only on a hash of the session's id: adding sessions to the logs changes no answer, and a larger `share`
    only adds sessions. A rollout session gets the answer of the logged session whose prompt it answers, and a branch
    gets that of the first branch of its conversation.
    """
    return stable_hash(f"holdout:{conversation_id(session_id)}", bits=64) < share * 2**64
