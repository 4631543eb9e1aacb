"""Turns of a session that continues: those that an earlier night has extracted are not judged and trained on again.

A turn is known by the logged id of its session and a digest of its prompt, reply, next state and decision. The ids of
calls are not part of it: readers of logged calls take them from the latest prompt. Of the decisions about a reply the
last one is known: whoever takes a thumb back changes the turn again.
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

_REPLY = 16  # bytes of a digest, the first ones: of all but the decision
BY_LINE = "@"  # in the name of a snapshot whose lines have no ids, before the number of the night


def find_id_in_log(session_id: str) -> str:
    """Return the part of a session id that the log itself gives: the same for all branches of a conversation."""
    return session_id.partition(":")[2].partition("#")[0]


def skip_known(
    session: JSON, rows: Sequence[TurnRow], known: sqlite3.Connection, seen: Counter[bytes]
) -> list[TurnRow]:
    """Return the rows of tables.TURNS of a session, those that are in `known` as not trainable.

    `seen` counts the trainable turns of the unit, by digest. Where `known` holds n equal turns, the first n are known.
    """
    scope = session["format"], find_id_in_log(session["session_id"])
    # Ledgers of earlier versions hold the last bytes alone.
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
    """Add the turns of an extracted run to the ledger, in place of those with other decisions.

    Calling it again changes nothing. Sessions that a log gives no id do not continue, and are left out.
    """
    from opdkit.store.joined_turns import joined_sessions  # pyarrow is slow to import
    from opdkit.store.reading import count_parts

    columns = {"sessions": ["session_id", "format", "messages"], "turns": None}
    counts: Counter[tuple[str, str, bytes]] = Counter()
    replies = set[tuple[str, str, bytes]]()
    for part in range(count_parts(run, "extract")):
        for turns in joined_sessions(run, part, columns, reviews={}):
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
    """Yield the digest of each JoinedTurn of one session; without `reactions`, of its prompt and reply alone."""
    facts = [(turn.index, turn.turn["next_count"], turn.turn["decision"]) if reactions else (turn.index, 0, None)
             for turn in turns]  # fmt: skip
    return _digest_replies(turns[0].session["messages"], facts)


def forget_turns(ledger: Path, sessions: Mapping[str, str]) -> None:
    """Remove the digests of the turns of these sessions (id -> format) from the ledger, and from its free pages."""
    with open_ledger(ledger) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.executemany("DELETE FROM turn WHERE format = ? AND id = ?",
                               [(log_format, find_id_in_log(name)) for name, log_format in sessions.items()
                                if BY_LINE not in name.partition(":")[0]])  # fmt: skip
        connection.execute("VACUUM")


def _digest_replies(messages: Sequence[JSON], turns: Sequence[tuple[int, int, JSON | None]]) -> Iterator[bytes]:
    """Yield the digest of each turn, given as (index of its reply, messages in its next state, decision), in order."""
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
