"""Turns that the report lists, and turns that it shows whole."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

import numpy as np

from opdkit.commands.turns.line import TurnLine
from opdkit.commands.turns.of_run import STATES
from opdkit.config.fields import JSON
from opdkit.store.reviews import order_of_draw
from opdkit.store.stable_hash import stable_hash


def order_typical(lines: Sequence[TurnLine], groups: Mapping[str, int]) -> list[TurnLine]:
    """Return the turns with advantages, one from each group of hints, then the next of each, the largest group first.

    In a group: reward -1 first, then by distance of the summed |advantages| from the median of those with reward -1.
    """
    members = defaultdict[int, list[tuple[TurnLine, float]]](list)
    for line in lines:
        if line.strength is not None and line.tokens:
            members[groups.get(line.hint or "", len(groups))].append((line, line.strength * line.tokens))
    ranked = []
    for _, group in sorted(members.items()):
        median = np.median([size for line, size in group if line.reward == -1] or [0.0])
        ranked.append(sorted(group, key=lambda one: (one[0].reward != -1, abs(one[1] - median), one[0].number)))
    return [one[0] for rank in zip_longest(*ranked) for one in rank if one is not None]


def choose_whole(lines: Sequence[TurnLine], most: int, groups: Mapping[str, int]) -> list[str]:
    """Choose the turns to show token by token, alternating between a typical one, a large advantage and another kind.

    The kinds alternate as well, those of the furthest state first, so that a common kind does not crowd out a rare one.
    """
    typical = order_typical(lines, groups)
    strongest = sorted(typical, key=lambda line: (-(line.strength or 0.0), line.number))
    kinds: dict[tuple[Any, ...], list[TurnLine]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: stable_hash("report", line.turn_id)):
        kind = (line.state, line.source, line.reward, line.hint_status, line.skip_reason, line.review is not None)
        kinds[kind].append(line)
    ranked = sorted(kinds.values(), key=lambda group: (STATES.index(group[0].state), -len(group), group[0].turn_id))
    spread = [line for rank in zip_longest(*ranked) for line in rank if line is not None]
    rows = zip_longest(typical, strongest, spread)
    return list(dict.fromkeys(line.turn_id for row in rows for line in row if line is not None))[:most]


def make_columns(
    lines: Sequence[TurnLine], chars: int, groups: Mapping[str, int], checks: Mapping[str, str], *, reviewing: bool
) -> JSON:
    """Return the list in the order of the log, column by column, which compresses far better than row by row.

    Texts are cut to `chars` characters, but hints for reviewers are not. `groups`: hint -> number of its group, sorted
    by group; `checks`: turn id -> status of its tested hint. "asks" is the group of a turn's hint (for reviewers, of
    the hint of the votes), and "says" the position of its wording in that group, from 1. "kept" is 1 if the decided
    hint is that of the votes. For reviewers, "drawn" is the position of each judged turn in the order of the draw.
    """
    ordered = sorted(lines, key=lambda line: line.number)
    table: JSON = {"id": [line.turn_id for line in ordered]}
    coded = {name: [getattr(line, name) for line in ordered]
             for name in ("source", "state", "skip_reason", "reward_status", "hint_status")}  # fmt: skip
    for name, values in (coded | {"checked": [checks.get(line.turn_id) for line in ordered]}).items():
        words = sorted({value for value in values if value is not None})
        places = {word: place for place, word in enumerate(words)}
        table[name] = {"words": words, "rows": [places.get(value) for value in values]}
    for name in ("reward", "tokens", "scored_reward"):
        table[name] = [getattr(line, name) for line in ordered]
    hints = [line.hint if line.review is None else line.review.get("hint", line.hint) for line in ordered]
    table["hinted"] = [int(line.hint is not None) for line in ordered]
    table["hint_length"] = [None if hint is None else len(hint) for hint in hints]  # of the decision in force
    typical = {line.turn_id: place for place, line in enumerate(order_typical(lines, groups))}
    table["typical"] = [typical.get(line.turn_id) for line in ordered]
    grouped = [line.hint for line in ordered] if reviewing else hints
    table["asks"] = [None if hint is None else groups.get(hint) for hint in grouped]
    says = {hint: place for _, alike in groupby(groups, groups.get) for place, hint in enumerate(alike, 1)}
    table["says"] = [None if hint is None else says.get(hint) for hint in grouped]
    if reviewing:
        order = order_of_draw(line.turn_id for line in ordered if line.hint_status is not None)
        places = {turn_id: place for place, turn_id in enumerate(order)}
        table["drawn"] = [places.get(line.turn_id) for line in ordered]
    numeric = (("agreement", "reward_agreement", 2), ("strength", "strength", 3), ("total", "advantage", 2),
               ("certainty", "certainty", 3))  # fmt: skip
    for key, name, digits in numeric:
        numbers = [getattr(line, name) for line in ordered]
        table[key] = [None if number is None else round(number, digits) for number in numbers]
    for key, name in (("asked", "request"), ("reply", "reply"), ("answer", "next_state"), ("hint", "hint")):
        texts, is_whole = [getattr(line, name) or "" for line in ordered], reviewing and key == "hint"
        table[key] = [text if is_whole or len(text) <= chars else text[:chars] + "…" if chars else "" for text in texts]
    table["kept"] = [int(line.hint is not None and (line.review or {}).get("hint") == line.hint) for line in ordered]
    table["reviews"] = {line.turn_id: line.review for line in ordered if line.review is not None}
    return table
