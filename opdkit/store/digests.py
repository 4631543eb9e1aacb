"""The digest of every committed part, recorded where damage to the part cannot reach it.

    judge/.digests/verdicts-00003-<xxh3_128>      an empty file: its name says all

A part cannot vouch for itself: whoever replaces the file replaces its footer too. So the xxh3_128 of the whole file is
recorded beside the table, before the part is renamed into place. Why as a name:

- creating a name is atomic: no kill, full disk or second machine can leave half a record, and no lock is needed;
- two processes that compute the same part record two names (the footers hold other seconds), and the part that stays
  is one of them, in whatever order they finish;
- killed in between, the record of a part that is not there makes nobody believe that it is.

Against damage of the medium each page has a CRC beside, which every stage verifies as it reads; the digest is for
`opdkit check`, which reads a file as a whole.
"""

import hashlib
import re
from collections import defaultdict
from pathlib import Path

import xxhash

from opdkit.store.atomic import sync

_NAME = re.compile(r"(?P<table>[a-z]+)-(?P<part>\d{5,})-(?P<digest>[0-9a-f]{32})")


def file_digest(path: Path) -> str:
    """xxh3_128 of a whole file, as hex: it finds damage, at the speed of the memory."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, xxhash.xxh3_128).hexdigest()


def record(home: Path, table: str, part: int, digest: str) -> Path | None:
    """Record a part's digest in the folder of its stage, durably; None when it stood there already."""
    folder = home / ".digests"
    folder.mkdir(exist_ok=True)
    name = folder / f"{table}-{part:05d}-{digest}"
    try:
        name.touch(exist_ok=False)
    except FileExistsError:
        return None
    sync(folder)
    return name


def recorded(home: Path) -> dict[tuple[str, int], set[str]]:
    """(table, part) -> the digests that were recorded in the folder of a stage."""
    found: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    folder = home / ".digests"
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            found[match["table"], int(match["part"])].add(match["digest"])
    return dict(found)


def forget(home: Path, table: str, part: int, digest: str = "*") -> None:
    """Remove what is recorded of a part; of a file that it was, where its `digest` is given."""
    for path in (home / ".digests").glob(f"{table}-{part:05d}-{digest}"):
        path.unlink(missing_ok=True)
