"""Digests of committed parts, recorded where damage to a part cannot reach its digest.

    judge/.digests/verdicts-00003-<xxh3_128>      an empty file: the name is the record

A digest in the part would not help: whatever replaces the file also replaces its footer. So the xxh3_128 of the whole
file is recorded beside the table, before the part is renamed into place. An empty file's name is a good record because:

- creating a name is atomic: no kill, full disk or second machine can leave half a record, and no lock is needed;
- two processes that compute the same part record two names (the footers hold different seconds), and the part that
  stays has one of them, in whatever order they finish;
- if the process is killed in between, a record without a part says only that the part was begun.
"""

import hashlib
import re
from collections import defaultdict
from pathlib import Path

import xxhash

from opdkit.store.atomic import sync

_NAME = re.compile(r"(?P<table>[a-z_]+)-(?P<part>\d{5,})-(?P<digest>[0-9a-f]{32})")


def digest_file(path: Path) -> str:
    """Return the xxh3_128 of a file as hex. It detects damage, and is about as fast as memory."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, xxhash.xxh3_128).hexdigest()


def record_digest(home: Path, table: str, part: int, digest: str) -> Path | None:
    """Record a part's digest in the folder of its stage, durably. Return None if it is recorded already."""
    folder = home / ".digests"
    folder.mkdir(exist_ok=True)
    record = folder / f"{table}-{part:05d}-{digest}"
    try:
        record.touch(exist_ok=False)
    except FileExistsError:
        return None
    try:
        sync(folder)
    except BaseException:  # Ctrl-C, too: the part is not there yet
        record.unlink(missing_ok=True)
        raise
    return record


def read_digests(home: Path) -> dict[tuple[str, int], set[str]]:
    """Return (table, part) -> the digests that are recorded in the folder of a stage."""
    digests: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    folder = home / ".digests"
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            digests[match["table"], int(match["part"])].add(match["digest"])
    return dict(digests)


def forget_digest(home: Path, table: str, part: int, digest: str = "*") -> None:
    """Remove one digest of a part from the records, or all of its digests."""
    for path in (home / ".digests").glob(f"{table}-{part:05d}-{digest}"):
        path.unlink(missing_ok=True)
