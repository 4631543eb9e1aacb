"""Rewards that the log brings along: what `--good` and `--bad` find in its metadata, in place of votes."""

import json
from collections.abc import Callable, Sequence

from opdkit.chat.conversation import Conversation
from opdkit.config.conditions import parse_filters, refused
from opdkit.config.fields import JSON
from opdkit.judge.votes import OUTCOME, Reward


class Outcomes:
    """Conditions on a turn, as `opdkit extract --filter` has them on a session; of several on one side all must hold.

    Where a session was put together of logged calls, a turn is told by the call that wrote it, and by what is said of
    the session; elsewhere what is said of the session holds for each of its turns.

    Raises ConfigError where one is none.
    """

    def __init__(self, good: Sequence[str], bad: Sequence[str]) -> None:
        self._conditions = {1: parse_filters(good, "--good"), -1: parse_filters(bad, "--bad")}

    def told(self, session: JSON) -> Callable[[int], Reward | None]:
        """message_index -> the reward of that turn of a row of `sessions`.

        None where neither side holds, or both do: then votes decide.
        """
        if not any(self._conditions.values()):
            return lambda index: None
        metadata: JSON = json.loads(session["metadata"] or "{}")
        listed = metadata.get("records")
        calls = {call["message_index"]: call for call in listed if _is_call(call)} if isinstance(listed, list) else {}
        whole = {key: value for key, value in metadata.items() if key != "records"} if calls else metadata
        return lambda index: self._reward(session, whole | calls.get(index, {}))

    def _reward(self, session: JSON, metadata: JSON) -> Reward | None:
        about = Conversation(session["source"], session["line"], [], session["model"], metadata=metadata)
        found = [
            reward
            for reward, conditions in self._conditions.items()
            if conditions and refused(conditions, about, session["format"]) is None
        ]
        return Reward(found[0], OUTCOME, None) if len(found) == 1 else None


def _is_call(told: object) -> bool:
    return isinstance(told, dict) and isinstance(told.get("message_index"), int)
