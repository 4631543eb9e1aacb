"""Tasks of Cline and Roo Code: `api_conversation_history.json`, an array of messages with Anthropic's content blocks.

Where the model writes its calls into the text, what came of them is text of the next user message, and stays there:
that is the prompt that the model answered. The client adds the state of the editor, reminders and notices. A person
wrote the task, and what the client wraps as feedback or as an answer. Summaries, which the client puts between the
messages when a prompt is too long, are no messages; the metadata says where they stood.
"""

import re
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note
from opdkit.chat.messages import as_list, first_text, message_key, require_list
from opdkit.extract.formats.claude_code import CLIENT_ONLY, SYNTHETIC
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader, read_pieces
from opdkit.extract.mapping import value_at
from opdkit.store.skip_reasons import ABORTED

_NO_RESPONSE = "Failure: I did not provide a response."
_DETAILS = re.compile(r"<environment_details>.*?</environment_details>", re.DOTALL)
_BY_PERSON = re.compile(r"<(task|feedback|user_message|answer)>")
_RESULT = re.compile(r"\[(\w+)[^\n]*\] Result:")  # of a call, as text
_INTERRUPTED = re.compile(r"\[Response interrupted by [^\]]+\]\s*\Z")  # written by the client behind what there was


def recognises(record: JSON) -> bool:
    """Return whether the record is messages alone, with times or with the client's view of the editor."""
    if not record.keys() <= {"messages", "version"} or message_key(record, ("messages",)) is None:
        return False
    first = record["messages"][0]
    return isinstance(first.get("ts"), (int, float)) or "<environment_details>" in str(first.get("content"))


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one task."""
    conversation = Conversation(line.source, line.number, [])
    messages, notes = conversation.messages, conversation.notes
    compacted: list[int] = []
    thoughts: list[JSON] = []  # of the next reply
    reply: int | None = None  # index of the last one
    for item in require_list(record.get("messages"), "messages"):
        if value_at(item, ("isSummary",)) or value_at(item, ("isTruncationMarker",)):
            compacted.append(len(messages))
        elif value_at(item, ("type",)) == "reasoning" and "role" not in item:
            thoughts.append({"role": "assistant", "content": [item]})
        else:
            calls = messages[reply]["tool_calls"] if reply is not None else []
            read, own = read_pieces([*thoughts, _pair_results(item, calls)])
            thoughts = []
            for index, message in enumerate(read):
                text = message["content"] or ""
                if message["role"] == "assistant":
                    reply, note = len(messages), own.get(index) or Note()
                    notes[reply] = note
                    note.skip_reason = SYNTHETIC if text == _NO_RESPONSE else note.skip_reason
                    note.skip_reason = ABORTED if _INTERRUPTED.search(text) else note.skip_reason
                elif message["role"] == "user" and messages and not _BY_PERSON.search(text):
                    conversation.machine.add(len(messages))
                    notice = _DETAILS.sub("", text).strip()
                    if reply == len(messages) - 1 and (not notice or notice.startswith("[TASK RESUMPTION]")):
                        notes[reply].skip_reason = notes[reply].skip_reason or CLIENT_ONLY
                messages.append(message)
            conversation.model = conversation.model or first_text(value_at(item, ("modelInfo", "modelId")))
    times = {"timestamp": value_at(record, ("messages", 0, "ts")), "compacted_before": compacted}
    conversation.metadata = {key: value for key, value in times.items() if value}
    return [conversation]


def _pair_results(item: Any, calls: list[JSON]) -> Any:
    """Return a user message with a block per result of a call, where the client wrote them as text all the same."""
    blocks, left = as_list(value_at(item, ("content",))), list(calls)
    for index, block in enumerate(blocks):
        match = _RESULT.match(first_text(value_at(block, ("text",))) or "") if item.get("role") == "user" else None
        call = next((call for call in left if match and call["name"].endswith(match[1])), None)
        if call is not None:
            left.remove(call)
            blocks[index] = {"type": "tool_result", "tool_use_id": call["id"], "content": block["text"]}
    return item


READER = line_reader("cline", recognises, read_record, closer_than=("openai", "anthropic"))
