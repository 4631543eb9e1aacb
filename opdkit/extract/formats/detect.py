"""Which format a file has: what its first lines say, never its name. Two answers are none."""

import re
from collections.abc import Iterable
from itertools import islice

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.errors import ConfigError
from opdkit.extract.formats import READERS
from opdkit.extract.formats.json_lines import COMMENT, parse
from opdkit.extract.formats.openclaw_rl import VOTES, is_votes
from opdkit.extract.formats.reader import Line

_LOOKED_AT = 20  # records
NO_LINES = "no JSON lines"
UNKNOWN = "unknown format"
_COLUMN = re.compile(r'"?[\w .:/#-]{1,80}"?')  # a name of one in CSV
_TRIED = 1_000  # lines: a log may begin with a page of comments or of damage


def remedy(problem: Unreadable) -> str:
    """What to do about an input that no reader knows, where its problem does not say so itself."""
    if problem.reason != UNKNOWN:
        return ""
    return (
        "; --format names the format if it is one of them, --map says where the fields of any other are, docs/logs.md"
    )


def detect(source: str, lines: Iterable[Line]) -> str:
    """The format of an input by its first records.

    Raises Unreadable when no reader knows it, with the reason under which it is set aside, and ConfigError when two do.
    """
    records, problem = _first_records(lines)
    if records and all(is_votes(record) for record in records):
        raise Unreadable(VOTES, "the record file of the judge; name the record file of the conversations instead")
    found = {name for record in records for name, reader in READERS.items() if reader.recognises(record)}
    found -= {READERS[name].closer_than for name in found}
    if len(found) > 1:
        raise ConfigError(f"{source} could be {' or '.join(sorted(found))}: say which with --format")
    if found:
        return found.pop()
    if records and (problem is None or problem.reason == NO_LINES):
        keys = ", ".join(sorted(records[-1])[:12])
        problem = Unreadable(UNKNOWN, f"no reader knows records with the keys {keys}"[:500])
    raise problem or Unreadable(NO_LINES, "nothing but blank and comment lines")


def _first_records(lines: Iterable[Line]) -> tuple[list[JSON], Unreadable | None]:
    """The first objects, and what was wrong with the first line that is none."""
    records: list[JSON] = []
    problem: Unreadable | None = None
    for line in islice(lines, _TRIED):
        if len(records) == _LOOKED_AT:
            break
        try:
            records.append(parse(line))
        except Unreadable as why:
            if problem is None and why.reason != COMMENT:
                problem = _other(line) or Unreadable(NO_LINES, f"line {line.number}: {why.reason}, {why.detail}")
    return records, problem


def _other(line: Line) -> Unreadable | None:
    """The problem of a file that is something else than JSON lines, by its first line; None where that is unknown."""
    return (_utf_16(line.data) or _document(line) or _csv(line.data)) if line.number == 1 else _document(line)


def _utf_16(data: bytes) -> Unreadable | None:
    """The problem of a file in UTF-16: with a byte-order mark, or with the zero byte that JSON begins with there."""
    marks = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"{\0": "UTF-16LE", b"[\0": "UTF-16LE", b"\0{": "UTF-16BE",
             b"\0[": "UTF-16BE"}  # fmt: skip
    name = marks.get(data[:2])
    if name is None:
        return None
    convert = f"convert it with `iconv -f {name} -t UTF-8 FILE > NEW.jsonl`"
    return Unreadable("not UTF-8", f"this is {name}; {convert}")


def _csv(data: bytes) -> Unreadable | None:
    """The problem of a table with a line of names above it."""
    header = data.decode("utf-8-sig", "replace").strip()
    found = next((mark for mark in "\t;," if mark in header), "")
    if not found or not all(_COLUMN.fullmatch(name.strip()) for name in header.split(found)):
        return None
    separator = "" if found == "," else f", sep={found!r}"
    convert = f"import pandas; pandas.read_csv('FILE'{separator}).to_parquet('NEW.parquet')"
    return Unreadable(
        "CSV, not JSON lines",
        f'its first line reads like names of columns; make it Parquet: `python -c "{convert}"`; where opdkit does not '
        "know the columns, --map says what is in them (docs/logs.md)",
    )


def _document(line: Line) -> Unreadable | None:
    """The problem of a file that is one JSON document, as many tools write it; None where it is not."""
    start = line.data.strip()
    if start.startswith(b"["):
        return Unreadable("one JSON array, not JSON lines", "make it one record a line: `jq -c '.[]' FILE > NEW.jsonl`")
    if start == b"{" and line.number == 1:
        return Unreadable("one JSON object over several lines", "make it one line: `jq -c . FILE > NEW.jsonl`")
    return None
