"""The reader that a mapping makes (`--map FILE.toml`, opdkit.extract.mapping): the format `mapped`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import message, read_messages, read_tools, refuse_too_many
from opdkit.config.conditions import parse_time
from opdkit.extract.formats.chains import Call, read_chains, unit_of
from opdkit.extract.formats.gaps import mark_gaps
from opdkit.extract.formats.json_lines import one_by_one, parse
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected, rejected
from opdkit.extract.mapping import KNOWN_ROLES, FieldMap, value_at

NAME = "mapped"


def reader_of(fields: FieldMap) -> Reader:
    """The reader of logs whose fields are where `fields` says."""
    if fields.messages is not None:
        return Reader(NAME, "line", _recognises, partial(_read_lines, fields))
    if fields.prompt is not None and not fields.link:
        return Reader(NAME, "line", _recognises, partial(_read_pairs, fields))
    if fields.prompt is not None:
        return Reader(NAME, "id", _recognises, partial(_read_linked, fields), id_of=partial(_linked_id, fields))
    return Reader(NAME, "id", _recognises, partial(_read_session, fields), id_of=partial(_session_id, fields))


def _recognises(record: JSON) -> bool:
    return True


# -- one message -----------------------------------------------------------------------------------------------------


def _items(fields: FieldMap, logged: Sequence[Any], first: int = 0) -> list[JSON]:
    """Logged messages in OpenAI's shape, those of dropped roles left out. Raises Unreadable."""
    refuse_too_many(logged)
    found = (_item(fields, item, position) for position, item in enumerate(logged, first))
    return [item for item in found if item is not None]


def _item(fields: FieldMap, logged: Any, position: int) -> JSON | None:
    if not isinstance(logged, dict):
        raise Unreadable("message is no object", f"message {position} is a {type(logged).__name__}")
    role = value_at(logged, fields.role)
    if role is None:
        raise Unreadable("message without a role", f"message {position}: nothing at {_written(fields.role)}")
    told = dict(fields.roles).get(str(role)) or (KNOWN_ROLES.get(role) if isinstance(role, str) else None)
    if told is None:
        raise Unreadable("unknown role", f"message {position} has role {str(role)[:100]!r}; [roles] can say what it is")
    if told == "drop":
        return None
    item: JSON = {"role": told, "content": value_at(logged, fields.content)}
    for key in ("reasoning", "name", "tool_call_id", "finish_reason"):
        value = value_at(logged, getattr(fields, key))
        if value is not None:
            item[key] = value if isinstance(value, str) else str(value)
    calls = value_at(logged, fields.tool_calls)
    if calls:
        item["tool_calls"] = _calls(fields, calls)
    return item


def _calls(fields: FieldMap, calls: Any) -> Any:
    """Tool calls as the mapping names their fields."""
    if not fields.tool_call:
        return calls
    return [{key: value_at(call, path) for key, path in fields.tool_call}
            for call in (calls if isinstance(calls, list) else [calls])]  # fmt: skip


def _written(steps: Sequence[str | int]) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")


# -- one line --------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _opening(fields: FieldMap, record: JSON) -> list[JSON]:
    system = _text(value_at(record, fields.system))
    return [message("system", system)] if system else []


def _metadata(fields: FieldMap, record: JSON) -> JSON:
    """What is kept of a line: what the mapping names, or every field that it does not use; time and language apart."""
    if fields.metadata is None:
        found = {key: value for key, value in record.items() if key not in fields.used}
    else:
        named = ((name, value_at(record, path)) for name, path in fields.metadata)
        found = {name: value for name, value in named if value is not None}
    at, language = value_at(record, fields.time), value_at(record, fields.language)
    time = parse_time(at)
    if at is not None:
        found["timestamp"] = time.isoformat() if time is not None else at
    return found | ({"language": language} if language is not None else {})


def _told(fields: FieldMap, line: Line, record: JSON, messages: list[JSON], notes: dict[int, Note]) -> Conversation:
    """A conversation with what the line says of it; `notes` by index in `messages`."""
    opening = [] if messages and messages[0]["role"] == "system" else _opening(fields, record)
    return Conversation(
        line.source,
        line.number,
        opening + messages,
        model=_text(value_at(record, fields.model)),
        tools=read_tools(value_at(record, fields.tools)),
        metadata=_metadata(fields, record),
        notes={index + len(opening): note for index, note in notes.items()},
    )


def _read_lines(fields: FieldMap, unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """A conversation a line."""

    def tell(line: Line, record: JSON) -> Conversation:
        logged = value_at(record, fields.messages)
        if not isinstance(logged, list) or not logged:
            found = "nothing" if logged is None else "an empty list" if logged == [] else f"a {type(logged).__name__}"
            raise Unreadable("no messages", f"{found} at {_written(fields.messages or ())}")
        messages, notes = read_messages(_items(fields, logged))
        if not messages:
            raise Unreadable("no messages", "all of them are of roles that the mapping drops")
        return _told(fields, line, record, messages, notes)

    return one_by_one(unit, tell)


# -- prompt, reply and what came of it ---------------------------------------------------------------------------------


def _pair(fields: FieldMap, record: JSON) -> tuple[list[JSON], JSON, Note, list[JSON]]:
    """(prompt, reply, note, next state) of a line."""
    prompt, reply = value_at(record, fields.prompt), value_at(record, fields.reply)
    if prompt in (None, "", []):
        raise Unreadable("no messages", f"nothing at {_written(fields.prompt or ())}")
    if reply in (None, "", []):
        raise Unreadable("no reply", f"nothing at {_written(fields.reply or ())}")
    asked, _ = read_messages(_said(fields, prompt, "user"))
    answered, notes = read_messages(_said(fields, reply, "assistant")[-1:])
    if not answered or answered[0]["role"] != "assistant":
        raise Unreadable("no reply", "it is of another role")
    note = notes.get(0) or Note()
    note.finish_reason = note.finish_reason or _text(value_at(record, fields.finish_reason))
    came = value_at(record, fields.next)
    following = read_messages(_said(fields, came, fields.next_role))[0] if came not in (None, "", []) else []
    return asked, answered[0], note, following


def _said(fields: FieldMap, logged: Any, role: str) -> list[JSON]:
    """A text, a message, or a list of messages."""
    if isinstance(logged, str):
        return [{"role": role, "content": logged}]
    if isinstance(logged, dict):
        steps = fields.role
        logged = [logged if value_at(logged, steps) is not None else logged | {str(steps[0]): role}]
    if not isinstance(logged, list):
        raise Unreadable("content of unknown shape", f"a {type(logged).__name__} where a {role} message should be")
    return _items(fields, logged)


def _read_pairs(fields: FieldMap, unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """A prompt with its reply a line."""

    def tell(line: Line, record: JSON) -> Conversation:
        prompt, reply, note, following = _pair(fields, record)
        return _told(fields, line, record, [*prompt, reply, *following], {len(prompt): note})

    return one_by_one(unit, tell)


def _call(fields: FieldMap, record: JSON) -> Call:
    prompt, reply, note, following = _pair(fields, record)
    opening = [] if prompt[0]["role"] == "system" else _opening(fields, record)
    return Call(
        opening + prompt,
        reply,
        note,
        following,
        model=_text(value_at(record, fields.model)),
        tools=read_tools(value_at(record, fields.tools)),
        logged=_metadata(fields, record),
        session=_session_id(fields, record),
    )


def _linked_id(fields: FieldMap, record: JSON) -> str | None:
    return unit_of(_call(fields, record))


def _read_linked(fields: FieldMap, unit: Sequence[Line]) -> Iterator[Conversation | Rejected | LeftOut]:
    """Calls whose prompts repeat the conversation so far."""
    return read_chains(unit, partial(_call, fields))


# -- a message a line --------------------------------------------------------------------------------------------------


def _session_id(fields: FieldMap, record: JSON) -> str | None:
    value = value_at(record, fields.session)
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "" else None


def _read_session(fields: FieldMap, unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """All lines of one session: one conversation."""
    found: list[_Said] = []
    for position, line in enumerate(unit):
        said = _Said((0, 0.0, "") if fields.order is None or not found else found[-1].rank, line.number)
        try:
            record = parse(line)
            if _session_id(fields, record) is None:
                raise Unreadable("no session", f"nothing at {_written(fields.session or ())}")
            said.rank = _rank(fields, record)
            said.messages, said.notes = read_messages(_items(fields, [record], position))
            said.record = record
        except Unreadable as why:
            yield rejected(line, why)
        found.append(said)
    found.sort(key=lambda said: said.rank)
    spoken = [said for said in found if said.messages]
    if spoken:
        yield _conversation(fields, unit[0].source, found, spoken[0].record)
    elif any(said.record for said in found):
        yield rejected(unit[0], Unreadable("no messages", "all of them are of roles that the mapping drops"))


def _conversation(fields: FieldMap, source: str, found: Sequence["_Said"], opens: JSON) -> Conversation:
    """The messages of a session, in order; `opens` is the line of the first."""
    line = min(said.number for said in found if said.messages)
    told = _told(fields, Line(source, line, b""), opens, [], {})
    gaps: set[int] = set()
    for said in found:
        if not said.record:
            gaps.add(len(told.messages))
        told.notes |= {index + len(told.messages): note for index, note in said.notes.items()}
        told.messages += said.messages
        told.model = told.model or _text(value_at(said.record, fields.model))
    mark_gaps(told, gaps)
    return told


@dataclass(slots=True)
class _Said:
    """One line of a session. Without a record it could not be read."""

    rank: tuple[int, float, str]
    number: int
    record: JSON = field(default_factory=dict)
    messages: list[JSON] = field(default_factory=list)
    notes: dict[int, Note] = field(default_factory=dict)


def _rank(fields: FieldMap, record: JSON) -> tuple[int, float, str]:
    """Where a message stands in its session: by number, by time, by text."""
    if fields.order is None:
        return 0, 0.0, ""
    value = value_at(record, fields.order)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0, float(value), ""
    at = parse_time(value)
    if at is not None:
        return 0, at.timestamp(), ""
    if isinstance(value, str):
        return 1, 0.0, value
    raise Unreadable("no order", f"nothing at {_written(fields.order)}")
