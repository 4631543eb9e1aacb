"""Rewards that the log brings along: what `--good` and `--bad` say of a session, in place of votes."""

import json
from collections.abc import Sequence

from opdkit.config import JSON
from opdkit.judge.votes import OUTCOME, Reward
from opdkit.logs.conversation import Conversation
from opdkit.logs.filters import parse_filters, refused


class Outcomes:
    """Conditions on a session, as for `opdkit extract --filter`; of several on one side all must hold.

    Raises ConfigError where one is none.
    """

    def __init__(self, good: Sequence[str], bad: Sequence[str]) -> None:
        self._conditions = {1: parse_filters(good, "--good"), -1: parse_filters(bad, "--bad")}

    def reward(self, session: JSON) -> Reward | None:
        """Of every turn of a row of `sessions`; None where neither side holds, or both do: then votes decide."""
        if not any(self._conditions.values()):
            return None
        told = Conversation(session["source"], session["line"], [], session["model"],
                            metadata=json.loads(session["metadata"] or "{}"))  # fmt: skip
        found = [
            reward
            for reward, conditions in self._conditions.items()
            if conditions and refused(conditions, told, session["format"]) is None
        ]
        return Reward(found[0], OUTCOME, None) if len(found) == 1 else None
