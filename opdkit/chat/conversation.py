"""Conversations, as every reader of a log format returns them."""

from dataclasses import dataclass, field
from typing import Any

from opdkit.config.fields import JSON

NO_DECISION: JSON = {"rating": None, "comment": None, "tags": [], "edited": None, "kept": None}
# Prefix of the reasons for records that were read but not kept; these are counted, not rejected.
LEFT_OUT = "left out: "


@dataclass(eq=False)
class Unreadable(Exception):  # noqa: N818 - it becomes a row of the rejected table, not an error a user meets
    """Problem with a line or a whole input. `reason` is a few words, the same for all problems of a kind."""

    reason: str
    detail: str = ""


@dataclass(slots=True)
class Note:
    """Facts that a log holds about one assistant message. A skip reason here outranks the general rules."""

    finish_reason: str | None = None
    skip_reason: str | None = None
    kind: str = "main"
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    decision: JSON | None = None  # `decision` of tables.toml
    # Id of the message in a tree. Each branch through the message holds a copy of it; the first copy counts.
    message_id: str | None = None

    def add_decision(self, **fields: Any) -> None:
        """Add fields of `decision` in tables.toml. None, [] and blank text add nothing."""
        known = {name: value for name, value in fields.items() if value not in (None, []) and str(value).strip()}
        before = self.decision or NO_DECISION
        if before["rating"] is not None and known.get("rating", before["rating"]) != before["rating"]:
            before = before | {"comment": None, "tags": []}  # they belong to the old rating
        if known:
            self.decision = before | known

    def drop_unchanged(self, content: str | None) -> None:
        """Drop an edited reply, or a reply kept instead, that equals the logged reply: nobody wanted another reply."""
        for name in ("edited", "kept"):
            if self.decision and (self.decision[name] or "").strip() == (content or "").strip():
                self.decision = self.decision | {name: None}
        if self.decision == NO_DECISION:
            self.decision = None


@dataclass(slots=True)
class Conversation:
    """Session as a reader returns it."""

    source: str
    line: int  # where it starts, from 1
    messages: list[JSON]  # `message` of tables.toml
    model: str | None = None
    tools: str | None = None
    metadata: JSON = field(default_factory=dict)
    notes: dict[int, Note] = field(default_factory=dict)  # message index -> what the log says about that turn
    machine: set[int] = field(default_factory=set)  # indices of user messages that a program wrote, not a person
    branch: int = 0  # number in its tree, from 1; a reader returns the branches of a tree consecutively. 0: no branch
