"""Marks of the parts under way: one file per part and process, touched while the process lives.

    RUN/judge/.tmp/verdicts-00003-5f3a9c1e-node7-4711.running

The mark is removed when the part ends, well or not. A process that is killed leaves its mark behind. A mark is ignored
if its process was on this host and is gone, or if it has not been touched for a minute. For marks of other hosts, the
clocks must agree to within that minute.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opdkit.store.atomic import is_gone, make_owned_name

BEAT, STALE = 15.0, 60.0  # seconds between two touches; seconds without a touch after which a mark is ignored
_NAME = re.compile(r"(?P<table>[a-z_]+)-(?P<part>\d+)-[0-9a-f]{8}-(?P<host>.+)-(?P<pid>\d+)\.\w+")


@dataclass(frozen=True)
class Claim:
    """Parsed name of a file in `.tmp`: a process that works, or worked, on a part of a table."""

    table: str
    part: int
    host: str
    pid: int


def read_claim(path: Path) -> Claim | None:
    """Return the claim in a file's name; None if there is none."""
    match = _NAME.fullmatch(path.name)
    return Claim(match["table"], int(match["part"]), match["host"], int(match["pid"])) if match else None


@contextlib.contextmanager
def mark_part(folder: Path, table: str, part: int) -> Iterator[None]:
    """Show, until the block ends, that this process works on a part."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / make_owned_name(f"{table}-{part:05d}", ".running")
    path.touch()
    over = threading.Event()
    threading.Thread(target=_touch_until, args=(path, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        path.unlink(missing_ok=True)


def _touch_until(path: Path, over: threading.Event) -> None:
    while not over.wait(BEAT):
        with contextlib.suppress(OSError):  # a failed touch must not cost the part
            os.utime(path)


def find_live_claims(folder: Path) -> list[Claim]:
    """Return the claims of the processes that work on parts now, according to the marks."""
    claims = []
    for path in folder.glob("*.running"):
        with contextlib.suppress(FileNotFoundError):  # the part has just ended
            claim, age = read_claim(path), time.time() - path.stat().st_mtime
            if claim is not None and age < STALE and not is_gone(claim.host, claim.pid):
                claims.append(claim)
    return claims
