"""Count real logs without the readers, from the raw JSON.

A person has read the four files of Claude Code: the lines in `ABANDONED` are on branches that the conversation left
(a question that was withdrawn, and a user message that was recorded twice). Everything else can be counted line by
line: a reply is a `message.id`, however many lines it has; a result is a `tool_use_id`.
"""

import json
from dataclasses import astuple, dataclass
from pathlib import Path

ABANDONED = {
    "0ccf1a04-1b4c-43b6-8aa5-79e41db43a68": {82, 83},
    "images-in-user-messages": {5, 16},
}


@dataclass
class Counts:
    sessions: int = 0
    messages: int = 0
    turns: int = 0
    results: int = 0
    calls: int = 0
    images: int = 0
    next_states: int = 0
    sidechains: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def claude_code(path: Path) -> Counts:
    """Count one session file."""
    seen: set[str] = set()
    sessions: set[str] = set()
    counts = Counts()
    ends_with_reply = None
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line or line.startswith("//") or number in ABANDONED.get(path.stem, ()):
            continue
        event = json.loads(line)
        sessions |= {event["sessionId"]} if "sessionId" in event else set()
        counts.sidechains += bool(event.get("isSidechain"))
        if event["type"] not in ("user", "assistant"):
            continue
        content = event["message"]["content"]
        blocks = [{"type": "text"}] if isinstance(content, str) else content
        if event["type"] == "assistant":
            new = event["message"]["id"] not in seen
            seen.add(event["message"]["id"])
            counts.turns += new
            fresh = {b["id"] for b in blocks if b["type"] == "tool_use"} - seen
            counts.calls += len(fresh)
            seen |= fresh
            ends_with_reply = True if new else ends_with_reply
            continue
        results = {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}
        counts.results += len(results)
        counts.messages += len(results) or 1
        counts.images += sum(b["type"] == "image" for b in blocks)
        counts.next_states += ends_with_reply is True
        ends_with_reply = False
    counts.messages += counts.turns
    counts.sessions = len(sessions)
    return counts


def sweagent(path: Path) -> Counts:
    """Count a file of trajectories."""
    counts = Counts()
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        history = json.loads(line)["history"]
        roles = "".join(item["role"][0] for item in history)
        counts.sessions += 1
        counts.messages += len(roles)
        counts.turns += roles.count("a")
        counts.results += roles.count("t")
        counts.calls += sum(len(item.get("tool_calls") or []) for item in history)
        counts.next_states += roles.count("au") + roles.count("at")
    return counts
