"""News of growing logs: what was appended or rewritten since the last night, copied to files that no longer change.

    collect_news(...)   NIGHT/chat@12.jsonl   new lines of a format with one conversation per line
                        NIGHT/agent.jsonl     sessions that continued, whole; their ids begin with the file's name
                        NIGHT/news.sqlite     changes to the ledger, and the turns of these sessions that are known
    commit_news(...)    applies the changes to the ledger

The folder is renamed into place as a whole, and its changes are applied in one transaction. A caller that was killed in
between calls both functions again. A file is read from where the last night stopped if it still begins with the same
bytes, even under another name. Only the first and the last 16 KiB of these bytes are compared. In a file that grew, an
edit between them is noticed only if it moves the bytes after it.
"""

import os
import shutil
import sqlite3
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import chain
from pathlib import Path

import orjson
from xxhash import xxh3_128_digest

from opdkit.chat.conversation import Unreadable
from opdkit.console import warn
from opdkit.errors import ConfigError
from opdkit.extract.formats import READERS
from opdkit.extract.formats.detect import NO_LINES, detect, explain_problem
from opdkit.extract.formats.json_lines import find_id
from opdkit.extract.formats.reader import Reader
from opdkit.extract.inputs.files import LogFile, add_name, scratch_folder
from opdkit.extract.inputs.first_pass import AUTO
from opdkit.extract.inputs.growing import (
    START,
    KnownInput,
    LogFiles,
    Source,
    begins_with,
    digest_ends,
    find_changed_files,
    leaving_to_next_night,
    list_sessions,
    match_sources,
    naming_lost_files,
    open_sources,
    read_head,
    read_whole_lines,
)
from opdkit.extract.known_turns import BY_LINE
from opdkit.extract.ledger import apply_changes, copy_records, open_news, read_news
from opdkit.extract.pieces import Piece, split_records, write_pieces
from opdkit.store.atomic import replaced_folder, sync

NEWS = "news.sqlite"  # in the folder of a night
_LONGEST_NAME = 180  # bytes of a log's name, to which the night's number and a suffix are added
_TOUCH = "INSERT OR IGNORE INTO touched VALUES (?, ?)"


@dataclass(frozen=True)
class News:
    """Counts of what one night found."""

    night: int = 0  # its number, from 1; 0: there was no news
    inputs: int = 0  # files, and members of archives, with news
    records: int = 0  # new lines, events or calls


def collect_news(
    ledger: Path, logs: Sequence[str], folder: Path, log_format: str | Reader = AUTO, line_limit: int = 64_000_000
) -> News:
    """Write what is new in `logs` to `folder`, with the changes to the ledger. Return the counts.

    Without news no folder is written, and the changes are applied at once. If the folder exists, no log is read. Files
    with the size, time and inode of the last night are not opened. Raises ConfigError for logs that cannot grow or do
    not exist, and for named files of no known format; OpdkitError for a file that is rotated or rewritten meanwhile.
    """
    if (folder / NEWS).exists():
        with read_news(folder / NEWS) as connection:
            return News(**orjson.loads(connection.execute("SELECT counts FROM night").fetchone()[0]))
    files = find_changed_files(ledger, logs, folder)
    if not files.changed:
        return News()
    with naming_lost_files(), scratch_folder() as scratch:
        with open_news(scratch / NEWS, ledger) as changes:
            changes.executemany("INSERT INTO file VALUES (?, ?)", files.states.items())
            night = _Night(changes, scratch, log_format, line_limit, files.names)
            sources = night.read_files(files)
            night.find_records_of_ids()
            news = News()
            if night.pieces:
                inputs = {known.name: known for known in night.inputs.values()}
                for name, known_format in night.formats.items():
                    known = inputs[name.partition(BY_LINE)[0]]
                    origin = night.files.get(known.path, known.name) + known.member
                    log = f"{name}.jsonl", known_format, origin, known.number
                    changes.execute("INSERT INTO log VALUES (?, ?, ?, ?)", log)
                news = News(night.number, night.inputs_with_news, night.records)
                row = news.night, uuid.uuid4().hex, orjson.dumps(asdict(news)).decode()
                changes.execute("INSERT INTO night VALUES (?, ?, ?)", row)
        if not news.night:
            for source in sources:
                source.check_unchanged()
            apply_changes(ledger, scratch / NEWS)
            return news
        with replaced_folder(folder) as temporary:
            for name in night.pieces:
                write_pieces(night.pieces[name], temporary / f"{name}.jsonl", night.readers, line_limit)
            for source in sources:
                source.check_unchanged()
            shutil.copyfile(scratch / NEWS, temporary / NEWS)
            for path in (*temporary.iterdir(), temporary):
                sync(path)
    sync(folder.parent)
    return news


def commit_news(ledger: Path, folder: Path) -> None:
    """Apply the changes in `folder` to the ledger. A second call changes nothing.

    Raises OpdkitError if other news was committed since these changes were collected.
    """
    apply_changes(ledger, folder / NEWS)


@dataclass
class _Night:
    """Search for what is new. It reads the ledger (schema `old` of `changes`) and writes to schema `main`."""

    changes: sqlite3.Connection
    scratch: Path
    log_format: str | Reader
    line_limit: int
    files: dict[bytes, str]  # path of every file behind the logs, in order -> its name
    readers: Mapping[str, Reader] = field(init=False)  # by format
    inputs: dict[int, KnownInput] = field(init=False)  # by number, from 1
    names: dict[str, int] = field(init=False)  # of all inputs, see `add_name`
    number: int = field(init=False)
    inputs_with_news: int = 0
    records: int = 0
    pieces: defaultdict[str, list[Piece]] = field(default_factory=lambda: defaultdict(list))  # log -> its lines
    formats: dict[str, str] = field(default_factory=dict)  # log -> its format
    starts: dict[int, dict[bytes, set[int]]] = field(default_factory=lambda: defaultdict(dict))  # by length and digest
    heads: dict[int, bytes] = field(default_factory=dict)  # input -> its first block, if a new one was compared with it
    paths: dict[int, Path | None] = field(default_factory=dict)  # input -> file with its plain JSON lines; None: gone

    def __post_init__(self) -> None:
        self.readers = READERS if isinstance(self.log_format, str) else {self.log_format.name: self.log_format}
        self.inputs = {row[0]: KnownInput(*row) for row in self.changes.execute("SELECT * FROM old.input")}
        self.names = {known.name: 1 for known in self.inputs.values()}
        (self.number,) = self.changes.execute("SELECT coalesce(max(number), 0) + 1 FROM old.night").fetchone()
        for known in self.inputs.values():
            self.starts[min(known.read, START)].setdefault(known.start, set()).add(known.number)

    def save(self, known: KnownInput, file: bytes, member: str) -> None:
        """Record where an input is, and up to which byte it was read."""
        known.path, known.member = file, member
        self.inputs[known.number] = known
        self.starts[min(known.read, START)].setdefault(known.start, set()).add(known.number)
        self.changes.execute(f"INSERT OR REPLACE INTO input VALUES ({', '.join('?' * 11)})", astuple(known))

    def forget_state(self, file: bytes) -> None:
        """Make the next night open a file even if it has not changed."""
        self.changes.execute("DELETE FROM file WHERE path = ?", (file,))

    def read_files(self, files: LogFiles) -> list[Source]:
        """Collect what is new in the changed files. Return their readable inputs."""
        plain = {known.path: known for known in self.inputs.values() if known.is_plain and not known.member}
        sources: list[Source] = []
        for log in files.changed:
            opened: list[Source] = []
            with leaving_to_next_night(log):
                opened += open_sources(log, plain, self.scratch, self.line_limit)
            sources += (source for source in opened if source.input.problem is None)
            if not opened or any(source.input.problem for source in opened):
                self.forget_state(os.fsencode(log.path))
        for known in match_sources(sources, self.inputs, files):
            self.save(known, b"", "")
        for source in sorted(sources, key=lambda source: source.known is None):  # known inputs before their copies
            self.read_source(source)
        return sources

    def read_source(self, source: Source) -> None:
        """Collect what is new in an input, and record up to where it was read."""
        log_format = self.find_format(source)
        if log_format is None:
            source.known = None  # no whole line yet, or no known format
            return
        if source.known is not None and source.known.format != log_format:  # another input has its place
            self.save(source.known, b"", "")
            source.known, source.is_rewritten = None, False
        known = source.known or self.begin_input(source, log_format)
        if known is None:  # a copy of another input
            return
        left: Counter[bytes] = Counter()  # units that the input held before it was rewritten
        if source.is_rewritten:
            query = "SELECT digest, count FROM old.unit WHERE input = ?"
            left.update(dict(self.changes.execute(query, (known.number,)).fetchall()))
            self.changes.execute("INSERT INTO rewritten VALUES (?)", (known.number,))
            known = KnownInput(known.number, b"", "", known.name, log_format, True)
        known.is_plain, self.paths[known.number] = source.is_plain, source.path
        reader, records = self.readers[log_format], self.records
        read = self.read_sessions if reader.grouping == "session" else self.read_records
        read(source, known, reader, left)
        self.inputs_with_news += self.records > records
        known.start = digest_ends(source.path, min(known.read, START), START)
        known.seal = digest_ends(source.path, known.read)
        source.known = known
        self.save(known, source.file, source.member)

    def begin_input(self, source: Source, log_format: str) -> KnownInput | None:
        """Return a new input; None for a copy of a known one. What it shares with one (its twin) counts as read."""
        size = source.path.stat().st_size
        seal, twins = digest_ends(source.path, size), list[tuple[KnownInput, bool]]()
        head = read_head(source.path)
        for length in [length for length in self.starts if 0 < length <= size]:
            for number in self.starts[length].get(digest_ends(source.path, length, START), ()):
                known, path = self.inputs[number], self.find_path(number)
                if number not in self.heads:
                    self.heads[number] = read_head(path)[: known.read] if path is not None else b""
                if not (head.startswith(self.heads[number]) or self.heads[number].startswith(head)):
                    continue  # without opening a file: many logs may begin with the same prompt
                is_copy = path is not None and begins_with(path, size, seal)
                is_twin = is_copy or (path is not None and begins_with(source.path, known.read, known.seal))
                if is_twin and known.format == log_format:
                    twins.append((known, is_copy))
        twin, is_copy = max(twins, key=lambda pair: pair[0].read, default=(None, False))
        if twin is not None and is_copy:
            warn(f"{source.input.source} is a copy of {os.fsdecode(twin.path)}: it is not read")
            self.forget_state(source.file)  # it is read once the other file is gone
            return None
        stem = source.input.name.replace(BY_LINE, "_").encode()[:_LONGEST_NAME].decode(errors="ignore")
        number, name = len(self.inputs) + 1, add_name(stem, self.names)
        if twin is None:
            return KnownInput(number, b"", "", name, log_format, True)
        copy_records(self.changes, twin.number, number)
        return replace(twin, number=number, name=name)

    def find_format(self, source: Source) -> str | None:
        """Return the format of an input; None if it has no whole line yet, or no reader knows it."""
        if self.log_format != AUTO:
            return self.log_format.name if isinstance(self.log_format, Reader) else self.log_format
        if source.known is not None and not source.is_rewritten:
            if source.known.format not in READERS:
                raise ConfigError(f"{source.input.source} was read with --map before: name that mapping again")
            return source.known.format
        whole = (line for _, _, line in read_whole_lines(source, 0, self.line_limit))
        if (first := next(whole, None)) is None:
            return None
        try:
            return detect(chain([first], whole))
        except Unreadable as error:
            self.forget_state(source.file)
            problem = explain_problem(source.input.source, error)
            if source.input.given and error.reason != NO_LINES:
                raise ConfigError(problem) from None
            warn(problem)
            return None

    def adds_unit(self, known: KnownInput, name: str, piece: Piece, digest: bytes, left: Counter[bytes]) -> bool:
        """Add a session, or a record without id, to log `name`; if it is in `left`, take it out and return False."""
        if left[digest] > 0:
            left[digest] -= 1
            return False
        pieces, self.formats[name] = self.pieces[name], known.format
        last = pieces[-1] if pieces else None
        if last and (last.path, last.stop, last.digest, piece.digest) == (piece.path, piece.start, b"", b""):
            pieces[-1] = last._replace(stop=piece.stop)
        else:
            pieces.append(piece)
        query = "SELECT coalesce(sum(count), 0) + 1 FROM old.unit WHERE input = ? AND digest = ?"
        (first,) = self.changes.execute(query, (known.number, digest)).fetchone()
        upsert = "INSERT INTO unit VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + 1"
        self.changes.execute(upsert, (known.number, digest, first))
        return True

    def read_sessions(self, source: Source, known: KnownInput, reader: Reader, left: Counter[bytes]) -> None:
        """Collect the sessions between headers that have new lines. The last session of the night before may continue.

        If sessions lack ids or share one, they are named by line number, and the whole file is extracted.
        """
        for begin in dict.fromkeys((known.session, 0)):  # from the last session on; else the whole file
            sessions = list_sessions(source, reader, begin, known.read, self.line_limit)
            have_ids = len({session.id for session in sessions if session.id}) == len(sessions)
            # A session that reappears after others is read from its beginning.
            query = "SELECT 1 FROM old.home WHERE format = ? AND id = ? AND name = ?"
            later = [(reader.name, session.name, known.name) for session in sessions[1:]]
            if have_ids and not (begin and any(self.changes.execute(query, row).fetchone() for row in later)):
                break
        new_lines = sum(session.new_lines for session in sessions)
        if not new_lines:
            return
        has_news, end = False, 0
        for session in sessions:
            # If line numbers are names, the blank lines between sessions count, too.
            piece = Piece(source.path, session.start if have_ids else end, session.stop)
            end = session.stop
            self.record_home(known, reader, session.name)
            if self.adds_unit(known, known.name, piece, session.digest.digest(), left if have_ids else Counter()):
                self.changes.execute(_TOUCH, (reader.name, session.name))
                has_news = True
        self.records += new_lines if has_news else 0
        known.read, known.session = end, sessions[-1].start if have_ids else 0

    def read_records(self, source: Source, known: KnownInput, reader: Reader, left: Counter[bytes]) -> None:
        """Collect the new records. Of records with an id, record the places, and mark their ids as touched.

        In a file that was rewritten, only the ids whose records in it have changed are touched.
        """
        pending: list[tuple[int, int, int, bytes]] = []  # places of a session's first records, until an id follows
        digests: defaultdict[str, list[bytes]] = defaultdict(list)
        stop = known.read
        for offset, stop, line in read_whole_lines(source, known.read, self.line_limit):
            records = split_records(reader, line)
            for number, data in enumerate(records):
                digest = xxh3_128_digest(data.strip())
                logged = find_id(reader, line._replace(data=data))
                if logged is None and not reader.carries:
                    piece = Piece(source.path, offset, stop)
                    if len(records) > 1:
                        piece = piece._replace(format=reader.name, record=number, digest=digest)
                    self.records += self.adds_unit(known, f"{known.name}{BY_LINE}{self.number}", piece, digest, left)
                    continue
                known.last = known.last if logged is None else logged
                pending.append((offset, number, stop - offset, digest))
                if known.last is not None:
                    rows = [(reader.name, known.last, known.number, *place) for place in pending]
                    self.changes.executemany("INSERT INTO place VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                    digests[known.last] += [place[-1] for place in pending]
                    pending.clear()
        if not pending:
            known.read = stop
        before: defaultdict[str, list[bytes]] = defaultdict(list)
        if source.is_rewritten and reader.grouping == "id":
            query = "SELECT id, digest FROM old.place WHERE input = ? ORDER BY id, offset, record"
            for name, digest in self.changes.execute(query, (known.number,)):
                before[name].append(digest)
        for name, own in digests.items():
            if own != before[name]:
                self.records += sum((Counter(own) - Counter(before[name])).values())
                self.changes.execute(_TOUCH, (reader.name, name))
            self.record_home(known, reader, name)

    def record_home(self, known: KnownInput, reader: Reader, name: str) -> None:
        """Record that the sessions of an id are extracted under an input's name, unless they have a name already."""
        self.changes.execute("INSERT OR IGNORE INTO home SELECT ?1, ?2, ?3 WHERE NOT EXISTS "
                             "(SELECT 1 FROM old.home WHERE format = ?1 AND id = ?2)",
                             (reader.name, name, known.name))  # fmt: skip

    def find_records_of_ids(self) -> None:
        """Collect all records of the touched ids, and copy the known turns of these ids from the ledger."""
        self.changes.execute("INSERT INTO turn SELECT turn.* FROM touched CROSS JOIN old.turn USING (format, id)")
        rows = []
        for schema in ("main", "old"):
            rows += self.changes.execute(
                "SELECT coalesce((SELECT name FROM old.home WHERE format = touched.format AND id = touched.id), "
                "(SELECT name FROM main.home WHERE format = touched.format AND id = touched.id)), "
                "input, offset, record, bytes, digest, format "
                f"FROM touched CROSS JOIN {schema}.place USING (format, id) "
                "WHERE ? OR input NOT IN (SELECT input FROM rewritten)", (schema == "main",)
            ).fetchall()  # fmt: skip
        order = {file: n for n, file in enumerate(self.files)}  # records of files that are gone come first
        rows.sort(key=lambda row: (row[0], order.get(self.inputs[row[1]].path, -1), *row[1:4]))
        seen = set()  # places: a record has the same place in a copy of its file
        for name, number, offset, record, size, digest, log_format in rows:
            place = name, offset, record, digest
            if place not in seen and (path := self.find_path(number)) is not None:
                seen.add(place)
                self.formats[name] = log_format
                self.pieces[name].append(Piece(path, offset, offset + size, log_format, record, digest))

    def find_path(self, number: int) -> Path | None:
        """Return the file with the plain JSON lines of an input that has not changed; None if it is gone."""
        if number not in self.paths:
            known, self.paths[number] = self.inputs[number], None
            file = Path(os.fsdecode(known.path))
            if known.is_plain and not known.member:
                self.paths[number] = file if file.is_file() else None
            elif file.is_file():
                for source in open_sources(LogFile(str(file), file, False), {}, self.scratch, self.line_limit):
                    if source.member == known.member and source.input.problem is None:
                        self.paths[number] = source.path
        return self.paths[number]
