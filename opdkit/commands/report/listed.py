"""Which turns the report lists, which of them it shows whole, and what it says of each in the list."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import xxhash

from opdkit.commands.report.joined import STATES, JoinedTurn
from opdkit.commands.report.tallies import Largest
from opdkit.config.fields import JSON

CHARS = 300  # of each text, at most


@dataclass(frozen=True)
class ListedTurn:
    """One line of the list. Texts are cut to CHARS characters."""

    number: int  # its place among all turns of the run
    turn_id: str
    source: str
    state: str
    skip_reason: str | None
    reward: int | None
    reward_status: str | None
    agreement: float | None
    hint_status: str | None
    tokens: int | None  # sampled ones of the logged reply's target
    strength: float | None  # mean absolute advantage (nats)
    total: float | None  # sum of the advantages (nats)
    asked: str
    reply: str
    answer: str  # the next state
    hint: str
    review: JSON | None  # what a person decided; the fields above are the votes'

    @property
    def kind(self) -> tuple[Any, ...]:
        """Turns of one kind are alike to who wants to see some of every kind."""
        return self.state, self.source, self.reward, self.hint_status, self.skip_reason, self.review is not None


class Listing:
    """The turns that matter and a fair draw of the others: at most `most`, whatever the length of the run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._strongest: Largest[ListedTurn] = Largest(most // 2, lambda t: t.strength or 0.0)
        self._drawn: Largest[ListedTurn] = Largest(most, lambda t: (t.hint_status is not None, _draw(t.turn_id)))
        self.total = 0

    def add(self, joined: JoinedTurn) -> None:
        row = listed(self.total, joined)
        self.total += 1
        if row.strength is not None:
            self._strongest.add(row)
        self._drawn.add(row)

    def rows(self) -> list[ListedTurn]:
        """Those that matter most first."""
        strongest = self._strongest.items()
        taken = {row.number for row in strongest}
        others = (row for row in self._drawn.items() if row.number not in taken)
        return [*strongest, *others][: self._most]


def _draw(turn_id: str) -> int:
    """A number that depends on nothing but the id: the draw is the same in every report of a run."""
    return xxhash.xxh64_intdigest(turn_id.encode())


def listed(number: int, joined: JoinedTurn) -> ListedTurn:
    turn, verdict, messages = joined.turn, joined.verdict or {}, joined.session["messages"]
    index = turn["message_index"]
    target = next((t for t in joined.targets if t.written is None), None)
    advantages = None if target is None else target.advantages
    asked = next((m for m in reversed(messages[:index]) if m["role"] == "user"), None)
    return ListedTurn(
        number=number,
        turn_id=joined.turn_id,
        source=joined.session["source"],
        state=joined.state,
        skip_reason=turn["skip_reason"],
        reward=verdict.get("reward"),
        reward_status=verdict.get("reward_status"),
        agreement=verdict.get("reward_agreement"),
        hint_status=verdict.get("hint_status"),
        tokens=None if target is None else target.sampled,
        strength=None if target is None else target.strength,
        total=None if advantages is None else float(advantages.sum()),
        asked=_text([asked] if asked else []),
        reply=_text([messages[index]]),
        answer=_text(messages[index + 1 : index + 1 + turn["next_count"]]),
        hint=(verdict.get("hint") or "")[:CHARS],
        review=None if joined.review is None else joined.review.to_json(),
    )


def _text(messages: Sequence[JSON]) -> str:
    """What the messages say, in one line; calls, where a reply is nothing else."""
    said = []
    for message in messages:
        calls = (f"{call['name']}({call['arguments'][:CHARS]})" for call in message["tool_calls"])
        said += [(message["content"] or message["reasoning"] or "")[: 4 * CHARS], *calls]
    return " ".join(" ".join(said).split())[:CHARS]


# -- shown whole -------------------------------------------------------------------------------------------------------


def shown_whole(rows: Sequence[ListedTurn], most: int) -> list[str]:
    """The turns to show token by token: in turn one with a large advantage and one of another kind.

    The kinds take turns as well, those that came furthest first, so that a rare one is not drowned by a common one.
    """
    strongest = sorted((r for r in rows if r.strength is not None), key=lambda r: (-(r.strength or 0.0), r.number))
    kinds: dict[tuple[Any, ...], list[ListedTurn]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: _draw(r.turn_id)):
        kinds[row.kind].append(row)
    groups = sorted(kinds.values(), key=lambda g: (STATES.index(g[0].state), -len(g), g[0].turn_id))
    spread = [row for rank in zip_longest(*groups) for row in rank if row is not None]
    wanted: dict[str, None] = {}
    for pair in zip_longest(strongest, spread):
        for row in pair:
            if row is not None and len(wanted) < most:
                wanted.setdefault(row.turn_id)
    return list(wanted)


# -- columns -----------------------------------------------------------------------------------------------------------


def columns(rows: Sequence[ListedTurn], chars: int) -> JSON:
    """The list in the order of the log, column by column, which packs far better than row by row."""
    ordered = sorted(rows, key=lambda row: row.number)
    found: JSON = {"id": [row.turn_id for row in ordered]}
    for name in ("source", "state", "skip_reason", "reward_status", "hint_status"):
        words = sorted({str(getattr(row, name)) for row in ordered if getattr(row, name) is not None})
        places = {word: place for place, word in enumerate(words)}
        found[name] = {"words": words, "rows": [places.get(getattr(row, name)) for row in ordered]}
    for name in ("reward", "tokens"):
        found[name] = [getattr(row, name) for row in ordered]
    for name, digits in (("agreement", 2), ("strength", 3), ("total", 2)):
        values = (getattr(row, name) for row in ordered)
        found[name] = [None if value is None else round(value, digits) for value in values]
    for name in ("asked", "reply", "answer", "hint"):
        found[name] = [_cut(getattr(row, name), chars) for row in ordered]
    found["reviews"] = {row.turn_id: row.review for row in ordered if row.review is not None}
    return found


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "…" if chars else ""
