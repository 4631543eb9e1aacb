"""Rewards from the log itself: `--good` and `--bad` are conditions on its metadata, and replace votes."""

import json
from collections.abc import Iterable, Mapping, Sequence

from opdkit.chat.messages import as_list
from opdkit.config.conditions import Filter, find_rejection
from opdkit.config.fields import JSON
from opdkit.judge.votes import OUTCOME, Reward
from opdkit.store.logged_fields import LoggedFields


def find_outcomes(
    session: JSON, indices: Iterable[int], conditions: Mapping[int, Sequence[Filter]]
) -> dict[int, Reward]:
    """Return message index -> reward, for the turns of a session (a row of `sessions`) whose reward the log gives.

    `conditions` maps 1 and -1 to conditions on a turn, in the form of `opdkit extract --filter`; all conditions of a
    side must hold. In a session that was assembled from logged calls, they read the fields of the call that wrote the
    turn. For fields that the call lacks, they read those of the session. In other sessions, they read the session's
    fields for each turn. A turn for which neither side holds, or both do, has no outcome: votes decide.
    """
    if not any(conditions.values()):
        return {}
    metadata: JSON = json.loads(session["metadata"] or "{}")
    calls = {record["message_index"]: record for record in as_list(metadata.get("records"))
             if isinstance(record, dict) and isinstance(record.get("message_index"), int)}  # fmt: skip
    whole = {key: value for key, value in metadata.items() if key != "records"} if calls else metadata
    outcomes = {}
    for index in indices:
        logged = whole | calls.get(index, {})
        turn = LoggedFields(session["session_id"], session["source"], session["model"], session["format"], logged)
        rewards = [reward for reward, filters in conditions.items()
                   if filters and find_rejection(filters, turn, turn.format) is None]  # fmt: skip
        if len(rewards) == 1:
            outcomes[index] = Reward(rewards[0], OUTCOME, None)
    return outcomes
