"""Tasks of Cline and Roo Code: `api_conversation_history.json`, an array of messages with Anthropic's content blocks.

If the model wrote its calls as text, their results stay user messages, as in the prompt that the model answered.
"""

import re

from opdkit.chat.conversation import JSON, Conversation
from opdkit.chat.messages import as_list, find_key, first_text, require_list
from opdkit.extract.formats.claude_code import SYNTHETIC, mark_reactions
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader, read_pieces
from opdkit.extract.mapping import value_at
from opdkit.store.skip_reasons import ABORTED

_DETAILS = re.compile(r"<environment_details>(?:(?!<environment_details>).)*?</environment_details>", re.DOTALL)
_BY_PERSON = re.compile(r"<(task|feedback|user_message|answer)>")
_RESULT = re.compile(r"\[(\w+)[^\n]*\] Result:")  # of a call, logged as text
_INTERRUPTED = re.compile(r"\[Response interrupted by [^\[\]]+\]\s*+\Z")


def recognises(record: JSON) -> bool:
    """Return whether the record holds only messages, the first with a time or the client's view of the editor."""
    is_plain = record.keys() <= {"messages", "version"} and find_key(record, ("messages",)) is not None
    first: JSON = record["messages"][0] if is_plain else {}
    return isinstance(first.get("ts"), (int, float)) or "<environment_details>" in str(first.get("content"))


def read_record(line: Line, record: JSON) -> list[Conversation]:
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
    for index, message in enumerate(messages):
        text = message["content"] or ""
        if message["role"] == "assistant":
            synthetic = SYNTHETIC if text == "Failure: I did not provide a response." else notes[index].skip_reason
            notes[index].skip_reason = ABORTED if _INTERRUPTED.search(text) else synthetic
        elif message["role"] == "user" and index and not _BY_PERSON.search(text):
            conversation.machine.add(index)
            notices |= {index} if _DETAILS.sub("", text).strip()[:17] in ("", "[TASK RESUMPTION]") else set()
    mark_reactions(conversation, notices)
    conversation.model = first_text(*(value_at(item, ("modelInfo", "modelId")) for item in items))
    logged = {"timestamp": value_at(items, (0, "ts")), "summaries": len(items) - len(shown)}
    conversation.metadata = {key: value for key, value in logged.items() if value}
    return [conversation]


READER = line_reader("cline", recognises, read_record, closer_than=("openai", "anthropic"))
