"""Runs whose extract stage is written directly, as the input of the later stages."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opdkit.config.extract import ExtractConfig
from opdkit.judge.reply_in_context import ReplyInContext, reply_in_context
from opdkit.store.part_writer import Stage
from opdkit.store.tables import REJECTED, SESSIONS, TURNS

Messages = list[dict[str, Any]]
HINT_HEADER = "[user's hint / instruction]"


def message(role: str, content: str | None, *, name: str | None = None, calls: Sequence[tuple[str, str]] = ()) -> dict:
    """Return one message row. `calls` are (name, arguments)."""
    tool_calls = [{"id": f"call-{n}", "name": called, "arguments": a} for n, (called, a) in enumerate(calls)]
    return {
        "role": role,
        "content": content,
        "reasoning": None,
        "name": name,
        "tool_call_id": None,
        "tool_calls": tool_calls,
    }


def in_context(messages: Messages, index: int = 1, next_count: int = 1) -> ReplyInContext:
    """Return the reply at `index` with the messages of its next state."""
    return reply_in_context(messages, {"message_index": index, "next_count": next_count, "decision": None})


def talk(*contents: str) -> Messages:
    """Return messages of user and assistant in alternation, the user first."""
    return [message("user" if n % 2 == 0 else "assistant", content) for n, content in enumerate(contents)]


def write_extract(
    run: Path,
    sessions: Mapping[str, Messages],
    *,
    per_part: int = 2,
    turns: Mapping[str, Mapping[str, Any]] | None = None,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write sessions (id -> messages) and a turn for every assistant message; return `run`.

    A turn is trainable when a next state follows; `turns` (turn_id -> fields) overrides that and any other field.
    `metadata` (session id -> fields) is what the log says about a session besides its messages.
    """
    ids = list(sessions)
    config = ExtractConfig(run=run, logs=("written by a test",), part_mb=per_part, shard="0/1")
    parts = max(1, -(-len(ids) // per_part))
    stage = Stage.open(config, "extract", [SESSIONS, TURNS, REJECTED], parts=parts)
    for part in stage.todo():
        with stage.writing(part) as out:
            for line, session_id in enumerate(ids[part * per_part : (part + 1) * per_part], 1):
                out.add_rows("sessions", [_session(session_id, line, sessions[session_id], metadata or {})])
                rows = _turns(session_id, sessions[session_id])
                out.add_rows("turns", [row | dict((turns or {}).get(row["turn_id"], {})) for row in rows])
    return run


def _session(
    session_id: str, line: int, messages: Messages, metadata: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "source": "test",
        "line": line,
        "format": "openai",
        "model": None,
        "messages": messages,
        "tools": None,
        "metadata": json.dumps({"written": "by a test", **metadata.get(session_id, {})}),
        "tree": None,
    }


def _turns(session_id: str, messages: Messages) -> list[dict[str, Any]]:
    rows = []
    for index in (i for i, m in enumerate(messages) if m["role"] == "assistant"):
        end = next((i for i in range(index + 1, len(messages)) if messages[i]["role"] == "assistant"), len(messages))
        count = end - index - 1
        rows.append({
            "turn_id": f"{session_id}:{index}",
            "session_id": session_id,
            "message_index": index,
            "next_count": count,
            "next_role": messages[index + 1]["role"] if count else None,
            "kind": "main",
            "trainable": count > 0,
            "skip_reason": None if count else "no next state",
            "finish_reason": None,
            "response_token_ids": None,
            "behavior_logprobs": None,
            "decision": None,
        })  # fmt: skip
    return rows


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return path -> (time of last change in ns, content) of everything in a folder; {} if there is no folder."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
