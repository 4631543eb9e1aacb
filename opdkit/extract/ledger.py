"""Ledger of growing logs: what was read of which input, in one SQLite file.

    file   path, its state (size, time of change, inode) when it was last looked at
    input  a file, or a member of a zip, under one name for good: up to which byte it was read, and how it began
    unit   digests of what was read and has no id: lines, or sessions between headers; with their multiplicity
    place  where the records of a logged id lie in an input
    home   the name under which the sessions of a logged id are extracted
    turn   digests of the turns that were extracted as trainable, per logged id
    night  nights that had news

News is collected into a file of the same tables, with `touched` and `rewritten` beside them, and in `log` the formats
of its files and the logs that they came from. It is applied in one transaction.
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
CREATE TABLE log (file TEXT PRIMARY KEY, format TEXT, source TEXT) WITHOUT ROWID;
CREATE TABLE rewritten (input INTEGER PRIMARY KEY);
"""


@contextlib.contextmanager
def open_ledger(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the ledger, created where there is none.

    Raises OpdkitError for one of another version, and for one that is damaged or cannot be opened or written.
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
        if "full" in str(error):  # which is explained with other full disks
            raise
        raise OpdkitError(f"{path}: {error}; make it and its folder writable, or put a copy of both back") from error


@contextlib.contextmanager
def open_news(path: Path, ledger: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a new file of changes, in which the ledger is the schema `old`. All of it is one commit."""
    with open_ledger(ledger), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as news:
        news.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_SCHEMA} {_OF_NEWS}")
        news.execute("ATTACH ? AS old", (str(ledger),))
        news.execute("BEGIN")
        yield news
        news.execute("COMMIT")


def copy_records(changes: sqlite3.Connection, source: int, target: int) -> None:
    """Enter what is known of one input for a copy of it as well."""
    for schema in ("old", "main"):
        changes.execute(f"INSERT OR REPLACE INTO unit SELECT ?, digest, count FROM {schema}.unit WHERE input = ?",
                        (target, source))  # fmt: skip
        changes.execute("INSERT OR REPLACE INTO place SELECT format, id, ?, offset, record, bytes, digest FROM "
                        f"{schema}.place WHERE input = ? AND (? OR input NOT IN (SELECT input FROM rewritten))",
                        (target, source, schema == "main"))  # fmt: skip


def read_news(news: Path) -> contextlib.AbstractContextManager[sqlite3.Connection]:
    """Open a file of changes for reading. The `with` block that it is used in closes it."""
    return contextlib.closing(sqlite3.connect(f"{news.resolve().as_uri()}?mode=ro", uri=True))


def describe_news(news: Path) -> dict[str, tuple[str, str]]:
    """Return, by the name of its file, the format of each log of a night, and the log as the user named it."""
    with read_news(news) as connection:
        return {row[0]: row[1:] for row in connection.execute("SELECT file, format, source FROM log")}


def apply_changes(ledger: Path, news: Path) -> None:
    """Apply a file of changes to the ledger in one transaction; nothing where it was applied before.

    Raises OpdkitError for changes that were collected from another state of the ledger.
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
