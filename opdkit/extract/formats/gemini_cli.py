"""Gemini CLI chats: a header with the messages in it (older versions) or in the lines after it; and checkpoints.

A line may also replace a message, take messages back (`$rewindTo`) or change the header (`$set`). Messages of `$set`,
and what `$patch` changes, are a prompt that the client shortened, and ignored. A checkpoint (`/chat save`) is a list of
contents of Google's API.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, dump, find_key, first_text, read_messages
from opdkit.extract.formats.claude_code import SYNTHETIC, mark_reactions
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.otel import openai_messages
from opdkit.extract.formats.reader import Line, Reader, Rejected
from opdkit.extract.formats.sessions import mark_gaps
from opdkit.extract.formats.trees import find_object
from opdkit.extract.mapping import value_at

_LISTS = ("messages", "history", "clientHistory")
_ROLES = {"user": "user", "gemini": "model", "model": "model", "function": "tool"}
_NOTICES = ("info", "warning", "error")  # shown to the user, not to the model
_OF_CLIENT = ("<session_context>", "<hook_context>", "<state_snapshot>", "Here is the user's editor context",
              "This is the Gemini CLI. We are setting up the context", "System: Please continue.",
              "Please continue.", "I ran the following shell command:\n")  # fmt: skip
_ANSWERS = ("Got it. Thanks for the context!", "Got it. Thanks for the additional context!")  # made up by the client


def recognises(record: JSON) -> bool:
    """Return whether the record is a header, a message of a session, or a checkpoint."""
    is_message = record.get("type") in ("user", "gemini") and {"id", "timestamp", "content"} <= record.keys()
    return is_message or id_of(record) is not None


def id_of(record: JSON) -> str | None:
    """Return the session id of a header, "" for a checkpoint and None for other lines."""
    if isinstance(record.get("projectHash"), str) and "sessionId" in record:
        return first_text(record["sessionId"]) or ""
    key = find_key(record, _LISTS, "parts")
    parts = as_list(record[key][0]["parts"]) if key and "role" in record[key][0] else [None]
    return "" if all(isinstance(part, dict) and "type" not in part for part in parts) else None


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """Read all lines of one session, or one checkpoint."""
    conversation = Conversation(unit[0].source, unit[0].number, [])
    header, lost, gaps, answered = conversation.metadata, list[Any](), set[int](), set[str]()
    items: dict[Any, tuple[Line, Any]] = {}  # by id; for an unreadable line, its problem
    for line in unit:
        try:
            record = parse(line)
        except Unreadable as problem:
            items[line.number] = line, problem
            continue
        changes = find_object(record, "$set") or record
        logged = next((as_list(changes[key]) for key in _LISTS if key in changes), [])
        if "$rewindTo" in record:
            names = [*items]
            start = names.index(record["$rewindTo"]) if record["$rewindTo"] in names else 0
            lost += [item for name in names[start:] if value_at(item := items.pop(name)[1], ("type",)) == "gemini"]
        elif "$patch" in record:
            continue
        elif changes is record and not logged and id_of(record) is None:
            logged = [record]
        else:
            header |= {name: value for name, value in changes.items() if name not in _LISTS}
            logged = [] if items else logged
        for number, item in enumerate(logged):
            items[first_text(value_at(item, ("id",))) or (line.number, number)] = line, item
    for line, item in items.values():
        try:
            _add(conversation, item, answered)
        except Unreadable as problem:
            with contextlib.suppress(Unreadable):  # reject the message, not the session that its line may hold
                line = line if item is problem else line._replace(data=dump(item).encode())
            yield line.reject(problem)
            gaps.add(len(conversation.messages))
    mark_gaps(conversation, gaps)
    mark_reactions(conversation, conversation.machine)
    header |= {"other_branches": len(lost)} if lost else {}
    if conversation.messages:
        yield conversation
    elif not gaps:
        yield unit[0].reject(Unreadable("no messages", "a session without messages"))


def _add(conversation: Conversation, item: Any, answered: set[str]) -> None:
    """Add a logged message: a user's message, or a reply with its calls and their results. Raises Unreadable.

    `answered` holds the ids of the calls with a result. Newer versions log a result a second time, as a user message.
    """
    if isinstance(item, Unreadable):
        raise item
    kind = first_text(value_at(item, ("role",)), value_at(item, ("type",))) or ""
    if kind in _NOTICES:
        return
    if kind not in _ROLES:
        raise Unreadable("unknown role", f"a message of type {kind[:100]!r}")
    calls = [call for call in as_list(item.get("toolCalls")) if isinstance(call, dict)]
    thoughts = [": ".join(map(str, map(thought.get, ("subject", "description"))))
                for thought in as_list(item.get("thoughts")) if isinstance(thought, dict)]  # fmt: skip
    made: list[JSON] = []
    results = [("tool", call["result"], {"tool_call_id": call.get("id")}) for call in calls if call.get("result")]
    for role, content, fields in [(_ROLES[kind], item.get("parts") or item.get("content") or "", {}), *results]:
        parts = [{"text": p} if isinstance(p, str) else p for p in (as_list(content) or [content])]
        said = openai_messages({"role": role, "parts": parts})
        made += [m | fields for m in said if fields or first_text(m.get("tool_call_id")) not in answered]
        if made and not fields and (calls or thoughts):
            made[-1] |= {"tool_calls": calls, "reasoning": "\n".join(thoughts)}
    read, notes = read_messages(made)
    answered -= {call["id"] for m in read for call in m["tool_calls"]}  # checkpoints use ids again
    answered |= {m["tool_call_id"] for m in read if m["tool_call_id"] is not None}
    for index, message in enumerate(read):
        place, text = len(conversation.messages), message["content"] or ""
        if message["role"] == "assistant":
            note = conversation.notes[place] = notes.get(index) or Note()
            note.skip_reason = SYNTHETIC if text in _ANSWERS else note.skip_reason
            note.kind = "side" if conversation.metadata.get("kind") == "subagent" else "main"
        elif message["role"] == "user" and text.lstrip().startswith(_OF_CLIENT):
            conversation.machine.add(place)
        elif message["role"] == "tool" and conversation.notes:
            # The API gives calls no ids. The client gives ids to the results, which are in the order of the calls.
            calls = conversation.messages[max(conversation.notes)]["tool_calls"]
            if message["tool_call_id"] not in [None, *(call["id"] for call in calls)]:
                next((call for call in calls if not call["id"]), JSON())["id"] = message["tool_call_id"]
        conversation.messages.append(message)
    conversation.model = first_text(item.get("model")) or conversation.model


READER = Reader("gemini_cli", "session", recognises, read, id_of, closer_than=("openai", "anthropic"))
