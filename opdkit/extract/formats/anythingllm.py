"""Chats of AnythingLLM (each a prompt with its response): its JSON export, or rows of its table `workspace_chats`."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, dump, message, read_messages
from opdkit.extract.formats.chains import REPEATED
from opdkit.extract.formats.feedback import read_rating
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line, Reader, Rejected
from opdkit.extract.formats.sessions import mark_gaps
from opdkit.extract.formats.spans import parse_text
from opdkit.extract.mapping import value_at

_OF_SESSION = ("workspaceId", "thread_id", "user_id", "workspace", "username")
_OF_CHAT = ("id", "sent_at", "createdAt")  # together they identify a chat
_NO_USERS = (None, "", "API")


def recognises(record: JSON) -> bool:
    """Return whether the record is a chat that names its workspace."""
    of_export = "workspace" in record and "sent_at" in record
    return "prompt" in record and "response" in record and (of_export or "workspaceId" in record)


def id_of(record: JSON) -> str | None:
    """Return the key that a session's chats share; if a chat is a session of its own (API calls), its own key."""
    in_table = "workspaceId" in record and record.get("api_session_id") is None
    if in_table or record.get("username") not in _NO_USERS:
        return dump([record.get(key) for key in _OF_SESSION])
    return dump([record.get(key) for key in _OF_CHAT]) if "id" in record else None


class _Chat(NamedTuple):
    """Line of a session: a prompt with its response."""

    at: float  # sort key: its id, or that of the chat before it
    line: Line
    record: JSON
    messages: list[JSON]  # empty if it could not be read
    note: Note


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """Read the chats of a session, by id, as up to two conversations: what the model no longer sees, and the rest."""
    chats: dict[str, _Chat] = {}
    at = 0.0
    for position, line in enumerate(unit):
        name, chat = str(position), _Chat(at, line, {}, [], Note())
        try:
            record = parse(line)
            at = float(record["id"]) if isinstance(record.get("id"), int) else at
            chat = _Chat(at, line, record, *_read_chat(record))
            name = dump([record.get(key) for key in _OF_CHAT]) if "id" in record else name
            if name in chats:  # two exports may hold a chat, one of them with a rating
                other, chat = sorted((chats[name], chat), key=lambda one: one.note.decision is not None)
                yield other.line.reject(Unreadable(REPEATED))
        except Unreadable as problem:
            yield line.reject(problem)
        chats[name] = chat
    in_order = sorted(chats.values(), key=lambda chat: chat.at)
    for is_hidden in (True, False):  # `include` is false for chats that the model no longer sees
        own = [c for c in in_order if not c.messages or (c.record.get("include") in (False, 0)) == is_hidden]
        whole = [chat for chat in own if chat.messages]
        if not whole:
            continue
        line, first = whole[0].line, whole[0].record
        conversation = Conversation(line.source, line.number, [])
        gaps: set[int] = set()
        for chat in own:
            if chat.messages:
                conversation.messages += chat.messages
                conversation.notes[len(conversation.messages) - 1] = chat.note
            else:
                gaps.add(len(conversation.messages))
        mark_gaps(conversation, gaps)
        conversation.metadata = {key: first[key] for key in (*_OF_SESSION, "sent_at", "createdAt") if key in first}
        conversation.metadata["chats"] = [chat.record.get("id") for chat in whole]
        yield conversation


def _read_chat(record: JSON) -> tuple[list[JSON], Note]:
    """Return (messages of prompt and response, note on the response). Raises Unreadable."""
    prompt, response = record.get("prompt"), parse_text(record.get("response"))
    text = value_at(response, ("text",))
    if text is None and not (isinstance(response, dict) and "workspaceId" in record):  # a row of the table has `text`
        text = record.get("response")  # which may be JSON
    if not isinstance(prompt, str) or not isinstance(text, str):
        raise Unreadable("content of unknown shape", "prompt and response are texts")
    images = record.get("attachments") or value_at(response, ("attachments",))
    parts = [{"type": "image"} for _ in as_list(images)]
    messages, _ = read_messages([{"role": "user", "content": [*parts, {"text": prompt}]}])
    note = Note()
    note.add_decision(rating=read_rating(record.get("feedbackScore", record.get("rating"))))
    return [*messages, message("assistant", text)], note


READER = Reader("anythingllm", "id", recognises, read, id_of)
