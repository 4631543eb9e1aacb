"""Turns of growing sessions: a turn that an earlier night has extracted is not judged and trained on again.

The ledger identifies a turn by the logged id of its session and a digest of its prompt, reply, next state and decision.
The digest leaves out the ids of tool calls: readers of logged calls take them from the latest prompt. The ledger keeps
only the last decision about a reply, so a user who takes a thumb back changes the turn again.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import xxhash

from opdkit.chat.conversation import JSON
from opdkit.extract.ledger import open_ledger
from opdkit.extract.turns import TurnRow
from opdkit.store.skip_reasons import READ_BEFORE

_REPLY = 16  # length of the first half of a digest, which covers all but the decision
BY_LINE = "@"  # in chat@12, the name of a log of night 12 whose lines have no ids


def find_id_in_log(session_id: str) -> str:
    """Return the part of a session id that comes from the log; all branches of a conversation share it."""
    return session_id.partition(":")[2].partition("#")[0]


def skip_known(
    session: JSON, rows: Sequence[TurnRow], known: sqlite3.Connection, seen: Counter[bytes]
) -> list[TurnRow]:
    """Return the rows of tables.TURNS of a session, with turns that are in `known` marked as not trainable.

    `seen` counts the trainable turns of the unit, by digest. If `known` holds n equal turns, the first n are known.
    """
    scope = session["format"], find_id_in_log(session["session_id"])
    # Ledgers of earlier versions hold only the second half of each digest.
    query = "SELECT max(count) FROM turn WHERE format = ? AND id = ? AND digest IN (?, ?)"
    marked = []
    digests = _digest_replies(session["messages"], [(row.message_index, row.next_count, row.decision) for row in rows])
    for row, digest in zip(rows, digests, strict=True):
        if row.trainable:
            seen[digest] += 1
            (count,) = known.execute(query, (*scope, digest, digest[_REPLY:])).fetchone()
            if seen[digest] <= (count or 0):
                row = row._replace(trainable=False, skip_reason=READ_BEFORE)
        marked.append(row)
    return marked


def record_turns(ledger: Path, run: Path) -> None:
    """Add the turns of an extracted run to the ledger. A turn replaces the same turn with another decision.

    A second call changes nothing. Sessions without a logged id cannot continue, and are left out.
    """
    from opdkit.store.joined_turns import all_joined_turns, by_session  # pyarrow is slow to import

    columns = {"sessions": ["session_id", "format", "messages"], "turns": None}
    counts: Counter[tuple[str, str, bytes]] = Counter()
    replies = set[tuple[str, str, bytes]]()
    for turns in by_session(all_joined_turns(run, columns, stage="extract", reviews={})):
        name, scope = turns[0].session_id, (turns[0].session["format"], find_id_in_log(turns[0].session_id))
        if BY_LINE in name.partition(":")[0]:
            continue
        for turn, digest in zip(turns, digest_turns(turns), strict=True):
            replies.add((*scope, digest[:_REPLY]))
            if turn.turn["skip_reason"] in (None, READ_BEFORE):
                counts[*scope, digest] += 1
    of_session = "FROM turn WHERE format = ? AND id = ?"
    upsert = "INSERT INTO turn VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = max(count, excluded.count)"
    with open_ledger(ledger) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for scope in {(log_format, name) for log_format, name, _ in replies}:
            for (digest,) in connection.execute(f"SELECT digest {of_session}", scope).fetchall():
                if (*scope, digest[:_REPLY]) in replies and (*scope, digest) not in counts:
                    connection.execute(f"DELETE {of_session} AND digest = ?", (*scope, digest))
        connection.executemany(upsert, [(*key, n) for key, n in counts.items()])
        connection.execute("COMMIT")


def digest_turns(turns: Sequence[Any], *, reactions: bool = True) -> Iterator[bytes]:
    """Yield the digest of each JoinedTurn of one session; without `reactions`, of its prompt and reply only."""
    facts = [(turn.index, turn.turn["next_count"], turn.turn["decision"]) if reactions else (turn.index, 0, None)
             for turn in turns]  # fmt: skip
    return _digest_replies(turns[0].session["messages"], facts)


def digest_replies(messages: Sequence[JSON]) -> Iterator[bytes]:
    """Yield the digest of each reply in the messages of a session, with all messages before it."""
    return _digest_replies(messages, [(n, 0, None) for n, message in enumerate(messages)
                                      if message["role"] == "assistant"])  # fmt: skip


def forget_turns(ledger: Path, sessions: Mapping[str, str]) -> None:
    """Remove the turns of these sessions (id -> format) from the ledger, and from the free pages of its file."""
    with open_ledger(ledger) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.executemany("DELETE FROM turn WHERE format = ? AND id = ?",
                               [(log_format, find_id_in_log(name)) for name, log_format in sessions.items()
                                if BY_LINE not in name.partition(":")[0]])  # fmt: skip
        connection.execute("VACUUM")


def _digest_replies(messages: Sequence[JSON], turns: Sequence[tuple[int, int, JSON | None]]) -> Iterator[bytes]:
    """Yield the digest of each turn, in order. `turns`: (index of the reply, messages in its next state, decision)."""
    read, done = xxhash.xxh3_128(), 0
    for index, next_count, decision in turns:
        for message in messages[done : index + 1 + next_count]:
            calls = [(call["name"], call["arguments"]) for call in message["tool_calls"] or ()]
            read.update(orjson.dumps([*map(message.get, ("role", "content", "reasoning", "name")), calls]))
        done = index + 1 + next_count
        reply, turn = read.copy(), read.copy()
        reply.update(orjson.dumps(index))
        turn.update(orjson.dumps([index, decision], option=orjson.OPT_SORT_KEYS))
        yield reply.digest() + turn.digest()
