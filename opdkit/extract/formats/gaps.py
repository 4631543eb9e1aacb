"""Turns beside a line that could not be read: what they lack is not known, so nothing is learned from them."""

import bisect

from opdkit.chat.conversation import Conversation, Note

GAP = "unreadable line beside it"


def mark_gaps(told: Conversation, at_gap: set[int]) -> None:
    """The reply before a line that could not be read lacks part of its next state, the one after it of its prompt."""
    replies = [i for i, message in enumerate(told.messages) if message["role"] == "assistant"]
    for gap in at_gap:
        after = bisect.bisect_left(replies, gap)
        for index in replies[max(0, after - 1) : after + 1]:
            note = told.notes.setdefault(index, Note())
            note.skip_reason = note.skip_reason or GAP
