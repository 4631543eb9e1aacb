"""Detection of a file's format, from its first lines and never from its name. A file of two formats is not read."""

import re
from collections.abc import Iterable
from itertools import islice

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.extract.formats import READERS
from opdkit.extract.formats.json_lines import COMMENT, NOT_UTF_8, parse
from opdkit.extract.formats.openclaw_rl import VOTES, is_votes
from opdkit.extract.formats.reader import Line

_RECORDS = 20  # looked at
_LINES = 1_000  # looked at: a log may begin with many comment lines or damaged lines
NO_LINES = "no JSON lines"
UNKNOWN, SEVERAL = "unknown format", "several formats"
_NO_TEXT = re.compile(rb"(?P<bzip2>BZh\d)|(?P<xz>\xfd7zXZ)|(?P<SQLite>SQLite format 3)|.{257}(?P<tar>ustar)", re.DOTALL)
_COLUMN = re.compile(r'"?[\w .:/#-]{1,80}"?')  # the name of a CSV column
# A byte-order mark, or the first character of JSON with the zero byte that UTF-16 puts beside it.
_UTF_16 = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"{\0": "UTF-16LE", b"[\0": "UTF-16LE", b"\0{": "UTF-16BE",
           b"\0[": "UTF-16BE"}  # fmt: skip


def detect(lines: Iterable[Line], unit: str = "line") -> str:
    """Return the format of an input, from its first records. `unit` is the word for a line in error messages.

    Raises Unreadable, with the reason for the rejected table, for no or several formats, and for a judge's votes.
    """
    records: list[JSON] = []
    problem: Unreadable | None = None  # of the first line that is not a record
    for line in islice(lines, _LINES):
        if len(records) == _RECORDS:
            break
        if line.number == 1 and (match := _NO_TEXT.match(line.data)):
            raise Unreadable(NO_LINES, f"this is a {match.lastgroup} file: unpack it, or export its tables as JSON")
        try:
            records.append(parse(line))
        except Unreadable as error:
            if problem is None and error.reason != COMMENT:
                detail = f"{unit} {line.number}: {error.reason}, {error.detail}"
                if error.reason == NOT_UTF_8:
                    detail += "; if it is Windows' text, `iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW.jsonl` converts it"
                problem = _diagnose(line) or Unreadable(NO_LINES, detail)
    if records and all(is_votes(record) for record in records):
        raise Unreadable(VOTES, "the record file of the judge; name the record file of the conversations instead")
    names = {name for record in records for name, reader in READERS.items() if reader.recognises(record)}
    names -= {other for name in names for other in READERS[name].closer_than}
    if len(names) > 1:
        raise Unreadable(SEVERAL, f"it could be {' or '.join(sorted(names))}: say which with --format")
    if names:
        return names.pop()
    if records and (problem is None or problem.reason == NO_LINES):
        keys = ", ".join(sorted(records[-1])[:12])
        problem = Unreadable(UNKNOWN, f"no reader knows records with the keys {keys}"[:500])
    raise problem or Unreadable(NO_LINES, "nothing but blank and comment lines")


def explain_problem(source: str, problem: Unreadable) -> str:
    """Return the message about an input that is not read; for an unknown format it says what to do."""
    text = f"{source}: {problem.reason} ({problem.detail})"
    known = "pass --format if the format is one of those, else describe its fields with --map (docs/logs.md)"
    return f"{text}; {known}" if problem.reason == UNKNOWN else text


def _diagnose(line: Line) -> Unreadable | None:
    """Return the problem if this is the first line of UTF-16 text or of CSV; None otherwise."""
    if line.number != 1:
        return None
    encoding = _UTF_16.get(line.data[:2])
    if encoding is not None:
        convert = f"convert it with `iconv -f {encoding} -t UTF-8 FILE > NEW.jsonl`"
        return Unreadable(NOT_UTF_8, f"this is {encoding}; {convert}")
    header = line.data.decode("utf-8-sig", "replace").strip()
    delimiter = next((mark for mark in "\t;," if mark in header), None)
    if delimiter is None or not all(_COLUMN.fullmatch(name.strip()) for name in header.split(delimiter)):
        return None
    separator = "" if delimiter == "," else f", sep={delimiter!r}"
    convert = f"import pandas; pandas.read_csv('FILE'{separator}).to_parquet('NEW.parquet')"
    detail = f'its first line reads like names of columns; make it Parquet: `python -c "{convert}"`; if opdkit does '
    return Unreadable("CSV, not JSON lines", f"{detail}not know the columns, describe them with --map (docs/logs.md)")
