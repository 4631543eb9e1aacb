"""Format `mapped`: readers for logs whose fields a mapping names (`--map FILE.toml`, opdkit.extract.mapping)."""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from opdkit.chat.conversation import JSON, LEFT_OUT, Conversation, Note, Unreadable
from opdkit.chat.messages import (
    ROLES,
    as_list,
    check_message_count,
    first_text,
    is_part,
    message,
    read_messages,
    read_tools,
)
from opdkit.config.conditions import parse_number, parse_time
from opdkit.extract.formats.chains import Call, call_reader
from opdkit.extract.formats.feedback import read_rating
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.openai import split_steps
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected
from opdkit.extract.formats.sessions import line_reader, mark_gaps
from opdkit.extract.formats.sharegpt import ROLES as SHAREGPT_ROLES
from opdkit.extract.formats.spans import parse_text
from opdkit.extract.mapping import FieldMap, value_at

NAME = "mapped"
NO_THUMB = f"{LEFT_OUT}rating that is not a thumb"
_KNOWN_ROLES = ROLES | {name: role for name, role in SHAREGPT_ROLES.items() if role != "call"}
# A time or a date. As text, 10:05 comes before 9:00, and 1/2/2027 before 31/12/2026.
_TIME = re.compile(r"\d:\d\d|\d[/.]\d{1,2}[/.]\d\d")
_THUMBS = {"true": 1, "false": -1, "👍": 1, "👎": -1}  # in addition to the words of read_rating


def make_mapped_reader(fields: FieldMap) -> Reader:
    """Return the reader of logs whose fields are where `fields` says."""
    if fields.messages is None and fields.prompt is None:
        reader = Reader(NAME, "id", bool, partial(_read_session, fields), id_of=partial(_find_session_id, fields))
    elif fields.link:
        reader = call_reader(NAME, bool, partial(_read_call, fields))
    else:
        reader = line_reader(NAME, bool, partial(_read_conversation, fields))
    return replace(reader, read=partial(_read_and_count, fields, reader)) if fields.rating else reader


def _find_role(fields: FieldMap, logged: Any) -> str | None:
    """Return the role that a logged one stands for, None if it is unknown."""
    return dict(fields.roles).get(str(logged)) or (_KNOWN_ROLES.get(logged) if isinstance(logged, str) else None)


def _convert_messages(fields: FieldMap, items: Any, first: int = 0, role: str = "user") -> list[JSON]:
    """Return logged messages in OpenAI's form, without those whose role the mapping drops.

    A string, or a single object without a role, is one message of `role`; so is a reply's list of content parts, as
    Anthropic's API returns it. A list may be logged as JSON text, as in a column of a table. Raises Unreadable,
    numbered from `first`.
    """
    if isinstance(items, str):
        listed = as_list(parse_text(items))
        is_chat = bool(listed) and all(_find_role(fields, value_at(item, fields.role)) for item in listed)
        items = listed if is_chat else items
    parts = as_list(items) if role == "assistant" else []
    if isinstance(items, str) or (parts and all(is_part(p) and value_at(p, fields.role) is None for p in parts)):
        return [{"role": role, "content": items}]
    is_single = isinstance(items, dict)
    items = [items] if is_single else items
    if not isinstance(items, list):
        raise Unreadable("content of unknown shape", f"a {type(items).__name__} where a {role} message should be")
    check_message_count(items)
    messages: list[JSON] = []
    for position, item in enumerate(items, first):
        if not isinstance(item, dict):
            raise Unreadable("message is not an object", f"message {position} is a {type(item).__name__}")
        logged = value_at(item, fields.role)
        logged = role if logged is None and is_single else logged
        if logged is None:
            raise Unreadable("message without a role", f"message {position}: nothing at {_format_path(fields.role)}")
        known = _find_role(fields, logged)
        if known is None:
            detail = f"message {position} has role {str(logged)[:100]!r}; map it under [roles]"
            raise Unreadable("unknown role", detail)
        if known == "drop":
            continue
        read: JSON = {"role": known, "content": value_at(item, fields.content)}
        for key in ("reasoning", "name", "tool_call_id", "finish_reason"):
            value = value_at(item, getattr(fields, key))
            if value is not None:
                read[key] = value if isinstance(value, str) else str(value)
        if known == "assistant" and (decision := _read_decision(fields, item)):
            read["decision"] = decision
        calls = value_at(item, fields.tool_calls)
        if calls and fields.tool_call:
            calls = [{key: value_at(call, path) for key, path in fields.tool_call}
                     for call in (calls if isinstance(calls, list) else [calls])]  # fmt: skip
        read |= {"tool_calls": calls} if calls else {}
        messages += split_steps(read | ({"parts": read["content"]} if fields.content[-1:] == ("parts",) else {}))
    return messages


def _read_decision(fields: FieldMap, record: JSON) -> JSON:
    """Return a person's decision on a reply (rating, comment, edited text), as logged with a message or a pair."""
    rating = _read_rating(value_at(record, fields.rating))
    texts = {name: first_text(value_at(record, getattr(fields, name))) for name in ("comment", "edited")}
    return {name: value for name, value in (texts | {"rating": rating}).items() if value is not None}


def _read_rating(logged: Any) -> int | None:
    """Return a rating, which may be logged as text, as 1, 0 or -1; None if it is not a thumbs up or down."""
    if isinstance(logged, str):
        number = parse_number(logged)
        logged = _THUMBS.get(logged.lower(), logged) if number is None else number
    return 0 if logged == 0 and not isinstance(logged, bool) else read_rating(logged)  # false is a thumbs-down


def _read_and_count(
    fields: FieldMap, reader: Reader, unit: Sequence[Line]
) -> Iterator[Conversation | Rejected | LeftOut]:
    """Yield what `reader` reads and, if that includes a conversation, a LeftOut per rating that is not a thumb."""
    has_conversation = False
    for item in reader.read(unit):
        has_conversation = has_conversation or isinstance(item, Conversation)
        yield item
    for line in unit if has_conversation else ():
        with contextlib.suppress(Unreadable):
            record = parse(line)
            holders = [record] if fields.messages is None else as_list(parse_text(value_at(record, fields.messages)))
            given = [logged for holder in holders if (logged := value_at(holder, fields.rating)) not in (None, "")]
            yield from (LeftOut(NO_THUMB) for logged in given if _read_rating(logged) is None)


def _format_path(steps: Sequence[str | int] | None) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps or ()).lstrip(".")


def _read_context(
    fields: FieldMap, record: JSON, messages: list[JSON]
) -> tuple[list[JSON], str | None, str | None, JSON]:
    """Return (messages, model, tools, metadata) of a record.

    A system prompt logged beside the messages becomes the first message, unless they begin with one. The metadata are
    the fields that the mapping names for them, else all fields that the mapping does not use; plus time and language.
    """
    system = first_text(value_at(record, fields.system))
    if system and (not messages or messages[0]["role"] != "system"):
        messages = [message("system", system), *messages]
    if fields.metadata is None:
        metadata = {key: value for key, value in record.items() if key not in fields.used}
    else:
        named = ((name, value_at(record, path)) for name, path in fields.metadata)
        metadata = {name: value for name, value in named if value is not None}
    logged, language = value_at(record, fields.time), value_at(record, fields.language)
    if logged is not None:
        time = parse_time(logged)
        metadata["timestamp"] = logged if time is None else time.isoformat()
    if language is not None:
        metadata["language"] = language
    return messages, first_text(value_at(record, fields.model)), read_tools(value_at(record, fields.tools)), metadata


def _make_conversation(
    fields: FieldMap, line: Line, record: JSON, messages: list[JSON], notes: dict[int, Note]
) -> Conversation:
    """Return a conversation with the context that its record holds. `notes` are by index in `messages`."""
    whole, model, tools, metadata = _read_context(fields, record, messages)
    notes = {index + len(whole) - len(messages): note for index, note in notes.items()}
    return Conversation(line.source, line.number, whole, model, tools, metadata, notes)


def _find_session_id(fields: FieldMap, record: JSON) -> str | None:
    value = value_at(record, fields.session)
    if isinstance(value, float) and value.is_integer():  # pandas makes integers floats if a row lacks one
        value = int(value)
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "" else None


def _read_conversation(fields: FieldMap, line: Line, record: JSON) -> list[Conversation]:
    """Read a line that holds a list of messages, or a prompt and a reply. Raises Unreadable."""
    if fields.messages is None:
        prompt, reply, note, following = _split_pair(fields, record)
        return [_make_conversation(fields, line, record, [*prompt, reply, *following], {len(prompt): note})]
    items = parse_text(value_at(record, fields.messages))
    if not isinstance(items, list) or not items:
        shape = "nothing" if items is None else "an empty list" if items == [] else f"a {type(items).__name__}"
        raise Unreadable("no messages", f"{shape} at {_format_path(fields.messages)}")
    messages, notes = read_messages(_convert_messages(fields, items))
    if not messages:
        raise Unreadable("no messages", "all of them are of roles that the mapping drops")
    return [_make_conversation(fields, line, record, messages, notes)]


def _split_pair(fields: FieldMap, record: JSON) -> tuple[list[JSON], JSON, Note, list[JSON]]:
    """Return (prompt, reply, note on the reply, next state) of a record. Raises Unreadable."""
    prompt_items, reply_items = value_at(record, fields.prompt), value_at(record, fields.reply)
    if prompt_items in (None, "", []):
        raise Unreadable("no messages", f"nothing at {_format_path(fields.prompt)}")
    if reply_items in (None, "", []):
        raise Unreadable("no reply", f"nothing at {_format_path(fields.reply)}")
    prompt, _ = read_messages(_convert_messages(fields, prompt_items))
    items = _convert_messages(fields, reply_items, role="assistant")
    prompt += read_messages(items[:-1])[0]  # what precedes the last message of the reply: calls and their results
    replies, notes = read_messages(items[-1:])
    if not replies or replies[0]["role"] != "assistant":
        raise Unreadable("no reply", "the last message is not of the assistant")
    note = notes.get(0) or Note()
    note.finish_reason = note.finish_reason or first_text(value_at(record, fields.finish_reason))
    note.add_decision(**_read_decision(fields, record))
    following = value_at(record, fields.next)
    if following in (None, "", []):
        return prompt, replies[0], note, []
    return prompt, replies[0], note, read_messages(_convert_messages(fields, following, role=fields.next_role))[0]


def _read_call(fields: FieldMap, record: JSON) -> Call:
    """Read a pair of prompt and reply whose prompt repeats the conversation so far."""
    prompt, reply, note, following = _split_pair(fields, record)
    prompt, model, tools, logged = _read_context(fields, record, prompt)
    return Call(prompt, reply, note, following, None, model, tools, logged, _find_session_id(fields, record))


@dataclass(slots=True)
class _Message:
    """Line of a session. Its record is empty if it could not be read."""

    rank: tuple[int, float, str]
    line: int
    record: JSON = field(default_factory=dict)
    messages: list[JSON] = field(default_factory=list)
    notes: dict[int, Note] = field(default_factory=dict)


def _read_session(fields: FieldMap, unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """Read all lines of one session as one conversation, ordered by the field `order` or else as in the file.

    Of each other field, the first value that is not empty counts: a score may be only on the last line.
    """
    items: list[_Message] = []
    for position, line in enumerate(unit):
        item = _Message((0, 0.0, "") if fields.order is None or not items else items[-1].rank, line.number)
        try:
            record = parse(line)
            if _find_session_id(fields, record) is None:
                value = value_at(record, fields.session)
                shape = "nothing" if value in (None, "") else f"a {type(value).__name__}"
                raise Unreadable("no session", f"{shape} at {_format_path(fields.session)}")
            item.rank = _rank(fields, record)
            item.messages, item.notes = read_messages(_convert_messages(fields, [record], position))
            item.record = record
        except Unreadable as problem:
            yield line.reject(problem)
        items.append(item)
    items.sort(key=lambda item: item.rank)
    with_messages = [item for item in items if item.messages]
    if not with_messages:
        if any(item.record for item in items):
            yield unit[0].reject(Unreadable("no messages", "all of them are of roles that the mapping drops"))
        return
    begin = Line(unit[0].source, min(item.line for item in with_messages), b"")
    conversation = _make_conversation(fields, begin, with_messages[0].record, [], {})
    gaps: set[int] = set()
    for item in items:
        if not item.record:
            gaps.add(len(conversation.messages))
        conversation.notes |= {index + len(conversation.messages): note for index, note in item.notes.items()}
        conversation.messages += item.messages
        with contextlib.suppress(Unreadable):  # tools
            _, model, tools, metadata = _read_context(fields, item.record, [])
            conversation.model, conversation.tools = conversation.model or model, conversation.tools or tools
            known = {key for key, value in conversation.metadata.items() if value not in (None, "", [], {})}
            conversation.metadata |= {key: value for key, value in metadata.items() if key not in known}
    mark_gaps(conversation, gaps)
    yield conversation


def _rank(fields: FieldMap, record: JSON) -> tuple[int, float, str]:
    """Return the sort key of a message in its session, from a number, a time or a text. Raises Unreadable."""
    if fields.order is None:
        return 0, 0.0, ""
    value = value_at(record, fields.order)
    number = parse_number(value) if isinstance(value, str) else value
    if isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) < math.inf:
        return 0, number, ""
    time = parse_time(value)
    if time is not None:
        return 0, time.timestamp(), ""
    if isinstance(value, str) and not _TIME.search(value):
        return 1, 0.0, value
    found = "nothing" if value is None else f"{str(value)[:100]!r}, which is no ISO time,"
    raise Unreadable("no order", f"{found} at {_format_path(fields.order)}")
