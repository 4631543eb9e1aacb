"""Rewards that the log brings along: what `--good` and `--bad` find in its metadata, in place of votes."""

import json
from collections.abc import Callable, Sequence

from opdkit.chat.conversation import Conversation
from opdkit.config.conditions import find_rejection, parse_filters
from opdkit.config.fields import JSON
from opdkit.judge.votes import OUTCOME, Reward


class Outcomes:
    """Conditions on a turn, as `opdkit extract --filter` has them on a session; of several on one side all must hold.

    Raises ConfigError for text that is not a condition.
    """

    def __init__(self, good: Sequence[str], bad: Sequence[str]) -> None:
        self._conditions = {1: parse_filters(good, "--good"), -1: parse_filters(bad, "--bad")}

    def of_session(self, session: JSON) -> Callable[[int], Reward | None]:
        """Return message_index -> the reward of that turn of a row of `sessions`.

        Where a session was put together from logged calls, a turn is rewarded by the call that wrote it and by what is
        said of the session; elsewhere what is said of the session holds for each of its turns. None where neither side
        holds, or both do: then votes decide.
        """
        if not any(self._conditions.values()):
            return lambda index: None
        metadata: JSON = json.loads(session["metadata"] or "{}")
        records = metadata["records"] if isinstance(metadata.get("records"), list) else []
        calls = {
            record["message_index"]: record
            for record in records
            if isinstance(record, dict) and isinstance(record.get("message_index"), int)
        }
        whole = {key: value for key, value in metadata.items() if key != "records"} if calls else metadata

        def reward_of_turn(index: int) -> Reward | None:
            said = Conversation(
                session["source"], session["line"], [], session["model"], metadata=whole | calls.get(index, {})
            )
            holding = [
                reward
                for reward, conditions in self._conditions.items()
                if conditions and find_rejection(conditions, said, session["format"]) is None
            ]
            return Reward(holding[0], OUTCOME, None) if len(holding) == 1 else None

        return reward_of_turn
