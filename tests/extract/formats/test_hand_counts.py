"""Tests that the readers find in real logs what can be counted in the files without them."""

from collections.abc import Iterable

import pytest
from extract.formats import counted_by_hand
from extract.formats.counted_by_hand import Counts

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats import READERS
from opdkit.extract.formats.reader import Line
from opdkit.extract.turns import turns

FILES = {
    "claude_code": ("0ccf1a04-1b4c-43b6-8aa5-79e41db43a68", "4b2030ed-5563-49ea-b703-6a002f2d3cc8", "cctrace_main",
                    "images-in-user-messages"),
    "sweagent": ("sweagent_demos",),
}  # fmt: skip


def counted(conversations: Iterable[Conversation]) -> Counts:
    total = Counts()
    for session in conversations:
        rows = turns("s", session)
        roles = [m["role"] for m in session.messages]
        calls = sum(len(m["tool_calls"]) for m in session.messages)
        images = sum((m["content"] or "").count("[image: image/") for m in session.messages if m["role"] == "user")
        with_next = sum(row[3] > 0 for row in rows)
        side = sum(note.kind == "side" for note in session.notes.values())
        total += Counts(1, len(roles), len(rows), roles.count("tool"), calls, images, with_next, side)
    return total


@pytest.mark.parametrize(("name", "stem"), [(name, stem) for name, stems in FILES.items() for stem in stems])
def test_real_files(shared_data, name, stem):
    path = shared_data / name / f"{stem}.jsonl"
    lines = [Line(stem, n, data) for n, data in enumerate(path.read_bytes().splitlines(keepends=True), 1)]
    session = [item for item in READERS[name].read(lines) if isinstance(item, Conversation)]
    by_hand = getattr(counted_by_hand, name)(path)
    assert by_hand.turns > 0
    assert counted(session) == by_hand
