"""Which format a file has: what its first lines say, never its name. Two answers are none."""

from collections.abc import Iterable
from itertools import islice

from opdkit.errors import ConfigError
from opdkit.logs import READERS
from opdkit.logs.conversation import JSON, Line, Unreadable
from opdkit.logs.openclaw_rl import VOTES, is_votes
from opdkit.logs.parse import COMMENT, parse

_LOOKED_AT = 20  # records
NO_LINES = "no JSON lines"
UNKNOWN = "unknown format"
_TRIED = 1_000  # lines: a log may begin with a page of comments or of damage


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
                problem = _document(line) or Unreadable(NO_LINES, f"line {line.number}: {why.reason}, {why.detail}")
    return records, problem


def _document(line: Line) -> Unreadable | None:
    """The problem of a file that is one JSON document, as many tools write it; None where it is not."""
    start = line.data.strip()
    if line.data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Unreadable("not UTF-8", "this is UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`")
    if start.startswith(b"["):
        return Unreadable("one JSON array, not JSON lines", "make it one record a line: `jq -c '.[]' FILE > NEW.jsonl`")
    if start == b"{" and line.number == 1:
        return Unreadable("one JSON object over several lines", "make it one line: `jq -c . FILE > NEW.jsonl`")
    return None
