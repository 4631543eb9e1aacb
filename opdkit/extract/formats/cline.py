"""Sessions of Cline, `ID.messages.json`, and tasks of older releases and of Roo Code, `api_conversation_history.json`.

Both hold messages with Anthropic's content blocks; Cline documents those of a session (messages-contract-v1.md). If the
model wrote its calls as text, their results stay user messages, as in the prompt that the model answered.
"""

import re
from itertools import count
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, dump, find_key, first_text, join_content, message, read_messages, require_list
from opdkit.extract.formats.claude_code import SYNTHETIC, mark_reactions
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader, read_pieces
from opdkit.extract.mapping import value_at
from opdkit.store.skip_reasons import ABORTED

_DETAILS = re.compile(r"<environment_details>(?:(?!<environment_details>).)*?</environment_details>", re.DOTALL)
_BY_PERSON = re.compile(r"<(task|feedback|user_message|answer)>")
_RESULT = re.compile(r"\[(\w+)[^\n]*\] Result:")  # of a call, logged as text
_INTERRUPTED = re.compile(r"\[Response interrupted by [^\[\]]+\]\s*+\Z")
# What a session has before the words of its user. It matches at the beginning of every text.
_WRAPPER = re.compile(r"(?:\s*<mode_notice>.*?</mode_notice>)*\s*(?:<user_input\b[^>]*>)?\s*", re.DOTALL)
_NOTICES = ("[TASK RESUMPTION]", "The user approved switching to act mode.", "<hook_context", "System-delivered ")
_REMINDERS = ("completion_reminder", "recovery_notice")  # kinds of messages
_REMINDER, _NOTICE = "reminder", "notice"
_LEFT_OUT = ("messages", "system_prompt", "version", "updated_at")
_BLOCKS = ("text", "image", "file", "media")  # types of the parts of a tool's result that are not data


def recognises(record: JSON) -> bool:
    """Return whether the record is a session or its summary, or holds only messages as the client logs them.

    Then the first has a time or the client's view of the editor.
    """
    if "updated_at" in record and "messages" in record and ("sessionId" in record or "source_message_count" in record):
        return isinstance(record.get("version"), int) and not record.keys() & {"model", "tools"}
    is_plain = record.keys() <= {"messages", "version"} and find_key(record, ("messages",)) is not None
    first: JSON = record["messages"][0] if is_plain else {}
    return isinstance(first.get("ts"), (int, float)) or "<environment_details>" in str(first.get("content"))


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read a session or a task. Raises Unreadable."""
    if "source_message_count" in record:
        raise Unreadable("copy of a session", "a session's messages after Cline summarised the first ones")
    return [_read_session(line, record) if "sessionId" in record else _read_task(line, record)]


def _read_session(line: Line, record: JSON) -> Conversation:
    """Read a session, without messages that only the client shows."""
    conversation = Conversation(line.source, line.number, [])
    messages, notices = conversation.messages, set[int]()
    if system := first_text(record.get("system_prompt")):
        messages.append(message("system", system))
    for position, item in enumerate(require_list(record.get("messages"), "messages")):
        if value_at(item, ("role",)) == "error" or value_at(item, ("metadata", "displayOnly")) is True:
            continue
        if isinstance(blocks := value_at(item, ("content",)), list):
            item = item | {"content": list(map(_write_data_as_text, blocks))}
        read, notes = read_messages([item], position)
        for index, (read_message, place) in enumerate(zip(read, count(len(messages)), strict=False)):
            if read_message["role"] == "assistant":
                conversation.notes[place] = notes.get(index, Note())
            elif read_message["role"] == "user" and (writer := _find_client_text(item, read_message["content"] or "")):
                conversation.machine.add(place)
                notices |= {place} if writer == _NOTICE else set()
        messages.extend(read)
        conversation.model = conversation.model or first_text(value_at(item, ("modelInfo", "id")))
    mark_reactions(conversation, notices)
    conversation.metadata = {key: value for key, value in record.items() if key not in _LEFT_OUT}
    if time := value_at(record, ("messages", 0, "ts")):
        conversation.metadata["timestamp"] = time
    return conversation


def _find_client_text(item: Any, text: str) -> str | None:
    """Return what Cline itself says in a user's message: a reminder, in which it judges a reply, a notice, or None."""
    text, kind = _WRAPPER.sub("", text, count=1), value_at(item, ("metadata", "kind"))
    if text.startswith("[SYSTEM]") or kind in _REMINDERS:
        return _REMINDER
    is_hidden = value_at(item, ("metadata", "displayRole")) == "system"
    return _NOTICE if is_hidden or isinstance(kind, str) or text.startswith(_NOTICES) else None


def _write_data_as_text(block: Any) -> Any:
    """Return a block; data in a tool's result, such as [{"query": ..., "result": ...}], becomes JSON text."""
    content = value_at(block, ("content",))
    if value_at(block, ("type",)) != "tool_result" or content is None or isinstance(content, str):
        return block
    if not isinstance(content, list):
        return block | {"content": dump(content)}
    if all(value_at(part, ("type",)) in _BLOCKS for part in content):
        return block
    return block | {"content": dump(list(map(_drop_bytes, content)))}


def _drop_bytes(part: Any) -> Any:
    """Return an entry of a tool's result, without the bytes of its pictures and files."""
    if value_at(part, ("type",)) in _BLOCKS:
        return join_content([part])
    if (parts := as_list(value_at(part, ("result",)))) and all(value_at(p, ("type",)) in _BLOCKS for p in parts):
        return part | {"result": join_content(parts)}
    return part


def _read_task(line: Line, record: JSON) -> Conversation:
    """Read one task, without the summaries and truncation marks that the client inserts between the messages."""
    items = require_list(record.get("messages"), "messages")
    shown = [i for i in items if not (value_at(i, ("isSummary",)) or value_at(i, ("isTruncationMarker",)))]
    calls: list[JSON] = []
    for number, item in enumerate(shown):
        blocks = as_list(value_at(item, ("content",)))
        for index, block in enumerate(blocks):  # results may be text even if the calls are blocks
            match = _RESULT.match(first_text(value_at(block, ("text",))) or "")
            call = next((c for c in calls if match and str(c.get("name")).endswith(match[1])), None)
            if call is not None:
                calls.remove(call)
                blocks[index] = {"type": "tool_result", "tool_use_id": call.get("id"), "content": block["text"]}
        calls = [block for block in blocks if value_at(block, ("type",)) == "tool_use"]
        if value_at(item, ("type",)) == "reasoning" and "role" not in item:
            shown[number] = {"role": "assistant", "content": [item]}
    messages, notes = read_pieces(shown)
    conversation = Conversation(line.source, line.number, messages, notes=notes)
    notices: set[int] = set()
    for index, logged_message in enumerate(messages):
        text = logged_message["content"] or ""
        if logged_message["role"] == "assistant":
            synthetic = SYNTHETIC if text == "Failure: I did not provide a response." else notes[index].skip_reason
            notes[index].skip_reason = ABORTED if _INTERRUPTED.search(text) else synthetic
        elif logged_message["role"] == "user" and index and not _BY_PERSON.search(text):
            conversation.machine.add(index)
            notices |= {index} if _DETAILS.sub("", text).strip()[:17] in ("", "[TASK RESUMPTION]") else set()
    mark_reactions(conversation, notices)
    conversation.model = first_text(*(value_at(item, ("modelInfo", "modelId")) for item in items))
    logged = {"timestamp": value_at(items, (0, "ts")), "summaries": len(items) - len(shown)}
    conversation.metadata = {key: value for key, value in logged.items() if value}
    return conversation


READER = line_reader("cline", recognises, read_record, closer_than=("openai", "anthropic"))
