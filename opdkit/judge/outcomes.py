"""Rewards that the log brings along: what `--good` and `--bad` find in its metadata, in place of votes."""

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
    """Return message index -> reward of those turns of a row of `sessions` for which the log says one.

    `conditions` maps 1 and -1 to conditions on a turn, as `opdkit extract --filter` has them on a session; all of one
    side must hold. Where a session was put together from logged calls, a turn is rewarded by the call that wrote it
    and by what is said of the session; elsewhere what is said of the session holds for each of its turns. A turn for
    which neither side holds, or both do, has no outcome: votes decide.
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
