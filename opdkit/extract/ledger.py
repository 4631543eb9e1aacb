"""Ledger of growing logs: which input was read up to where, in one SQLite file.

    file   path of a file, and its state (size, time of change, inode) in the last night
    input  a file or a zip member, under a name that never changes: up to which byte it was read, and how it began
    unit   digests of what was read, with counts: records without an id, and sessions between headers
    place  where the records of a logged id lie in an input
    home   the name under which the sessions of a logged id are extracted
    turn   digests of the turns that were extracted as trainable, per logged id
    night  nights that had news

The changes of a night are collected in a file with the same tables and three more: `touched` (ids with news),
`rewritten` (inputs) and `log` (format, origin and input of each log of the night). They are applied in one transaction.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from opdkit.errors import OpdkitError

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS file (path BLOB PRIMARY KEY, state TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS input (number INTEGER PRIMARY KEY, path BLOB, member TEXT, name TEXT, format TEXT,
    is_plain INTEGER, read INTEGER, start BLOB, seal BLOB, session INTEGER, last TEXT);
CREATE TABLE IF NOT EXISTS unit (input INTEGER, digest BLOB, count INTEGER, PRIMARY KEY (input, digest)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (format TEXT, id TEXT, input INTEGER, offset INTEGER, record INTEGER, bytes INTEGER,
    digest BLOB, PRIMARY KEY (format, id, input, offset, record)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS place_in_input ON place (input);
CREATE TABLE IF NOT EXISTS home (format TEXT, id TEXT, name TEXT, PRIMARY KEY (format, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turn (format TEXT, id TEXT, digest BLOB, count INTEGER, PRIMARY KEY (format, id, digest))
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS night (number INTEGER PRIMARY KEY, token TEXT, counts TEXT);
"""
_OF_NEWS = """
CREATE TABLE touched (format TEXT, id TEXT, PRIMARY KEY (format, id)) WITHOUT ROWID;
CREATE TABLE log (file TEXT PRIMARY KEY, format TEXT, source TEXT, input INTEGER) WITHOUT ROWID;
CREATE TABLE rewritten (input INTEGER PRIMARY KEY);
"""


@contextlib.contextmanager
def open_ledger(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the ledger, which is created if it does not exist.

    Raises OpdkitError if the ledger is of another version, damaged, or cannot be opened or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as ledger:
            (version,) = ledger.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise OpdkitError(f"{path} was written by another version of opdkit: use that one, or a new HOME")
            if version == 0:
                ledger.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
            yield ledger
    except sqlite3.DatabaseError as error:
        if "full" in str(error):  # store/disk.py explains a full disk
            raise
        raise OpdkitError(f"{path}: {error}; make it and its folder writable, or restore both from a backup") from error


@contextlib.contextmanager
def open_news(path: Path, ledger: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a new file of changes, with the ledger as schema `old`. All changes are one commit."""
    with open_ledger(ledger), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as news:
        news.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_SCHEMA} {_OF_NEWS}")
        news.execute("ATTACH ? AS old", (str(ledger),))
        news.execute("BEGIN")
        yield news
        news.execute("COMMIT")


def copy_records(changes: sqlite3.Connection, source: int, target: int) -> None:
    """Record the units and places of input `source` for `target`, too: it begins with all that was read of `source`."""
    for schema in ("old", "main"):
        changes.execute(f"INSERT OR REPLACE INTO unit SELECT ?, digest, count FROM {schema}.unit WHERE input = ?",
                        (target, source))  # fmt: skip
        changes.execute("INSERT OR REPLACE INTO place SELECT format, id, ?, offset, record, bytes, digest FROM "
                        f"{schema}.place WHERE input = ? AND (? OR input NOT IN (SELECT input FROM rewritten))",
                        (target, source, schema == "main"))  # fmt: skip


def read_news(news: Path) -> contextlib.AbstractContextManager[sqlite3.Connection]:
    """Open a file of changes for reading, for use in a `with` block, whose end closes it."""
    return contextlib.closing(sqlite3.connect(f"{news.resolve().as_uri()}?mode=ro", uri=True))


def describe_news(news: Path) -> dict[str, tuple[str, str, int]]:
    """Return file name -> (format, log as the user named it, number of its input), for each log of a night."""
    with read_news(news) as connection:
        return {row[0]: row[1:] for row in connection.execute("SELECT * FROM log")}


def apply_changes(ledger: Path, news: Path) -> None:
    """Apply a file of changes to the ledger in one transaction. Do nothing if it was applied before.

    Raises OpdkitError if the changes were collected from another state of the ledger.
    """
    with open_ledger(ledger) as connection:
        connection.execute("ATTACH ? AS news", (str(news),))
        connection.execute("BEGIN IMMEDIATE")
        night = connection.execute("SELECT number, token FROM news.night").fetchone()
        known = dict(connection.execute("SELECT number, token FROM main.night"))
        if night is not None and night[0] in known:
            if known[night[0]] != night[1]:
                raise OpdkitError(f"{news.parent} was collected before other news was committed to {ledger}: remove it")
            connection.execute("ROLLBACK")
            return
        connection.execute("DELETE FROM main.place WHERE input IN (SELECT input FROM news.rewritten)")
        connection.execute("DELETE FROM main.file")
        for table in ("file", "input", "unit", "place", "home", "night"):
            connection.execute(f"INSERT OR REPLACE INTO main.{table} SELECT * FROM news.{table}")
        connection.execute("COMMIT")
