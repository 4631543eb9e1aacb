"""Chats of AnythingLLM, a prompt with its response each: its JSON export, and rows of the table `workspace_chats`."""

from collections.abc import Iterator, Sequence

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, dump, message, read_messages
from opdkit.extract.formats.feedback import rating_of
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line, Reader, Rejected
from opdkit.extract.formats.sessions import mark_gaps
from opdkit.extract.formats.spans import parse_text
from opdkit.extract.mapping import value_at

_OF_SESSION = ("workspaceId", "thread_id", "user_id", "workspace", "username")
_NO_USERS = (None, "", "API")


def recognises(record: JSON) -> bool:
    """Return whether the record is a chat with its workspace."""
    of_export = "workspace" in record and "sent_at" in record
    return "prompt" in record and "response" in record and (of_export or "workspaceId" in record)


def id_of(record: JSON) -> str | None:
    """Return what the chats of one session share; None where nobody can say which belong together."""
    in_table = "workspaceId" in record and record.get("api_session_id") is None
    if in_table or record.get("username") not in _NO_USERS:
        return dump([record.get(key) for key in _OF_SESSION])
    return None


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """Read the chats of one session in the order of their ids: those that the model no longer sees, and the others."""
    chats: list[tuple[float, Line, JSON, list[JSON], dict[int, Note]]] = []  # without messages: could not be read
    at = 0.0
    for line in unit:
        try:
            record = parse(line)
            at = float(record["id"]) if isinstance(record.get("id"), int) else at
            chats.append((at, line, record, *_read_chat(record)))
        except Unreadable as problem:
            yield line.reject(problem)
            chats.append((at, line, {}, [], {}))
    chats.sort(key=lambda chat: chat[0])
    for is_hidden in (True, False):  # `include` is false for what the model no longer sees
        own = [chat for chat in chats if not chat[3] or (chat[2].get("include") in (False, 0)) == is_hidden]
        whole = [chat for chat in own if chat[3]]
        if not whole:
            continue
        _, line, first, _, _ = whole[0]
        conversation = Conversation(line.source, line.number, [])
        gaps: set[int] = set()
        for _, _, _, messages, notes in own:
            if not messages:
                gaps.add(len(conversation.messages))
            conversation.notes |= {index + len(conversation.messages): note for index, note in notes.items()}
            conversation.messages += messages
        mark_gaps(conversation, gaps)
        conversation.metadata = {key: first[key] for key in (*_OF_SESSION, "sent_at", "createdAt") if key in first}
        conversation.metadata["chats"] = [record.get("id") for _, _, record, _, _ in whole]
        yield conversation


def _read_chat(record: JSON) -> tuple[list[JSON], dict[int, Note]]:
    """Return prompt and response, with a note on the response."""
    prompt, response = record.get("prompt"), parse_text(record.get("response"))
    text = value_at(response, ("text",)) if isinstance(response, dict) else response
    if not isinstance(prompt, str) or not isinstance(text, str):
        raise Unreadable("content of unknown shape", "prompt and response are texts")
    images = record.get("attachments") or value_at(response, ("attachments",))
    parts = [{"type": "image"} for _ in as_list(images)]
    messages, _ = read_messages([{"role": "user", "content": [*parts, {"text": prompt}]}])
    note = Note()
    note.add_decision(rating=rating_of(record.get("feedbackScore", record.get("rating"))))
    return [*messages, message("assistant", text)], {len(messages): note}


READER = Reader("anythingllm", "id", recognises, read, id_of)
