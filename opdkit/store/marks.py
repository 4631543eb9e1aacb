"""Which parts are under way, and where: a file a part and process, touched while the process lives.

    RUN/judge/.tmp/verdicts-00003-5f3a9c1e-node7-4711.running

It is removed when the part ends, well or not. A process that is killed leaves it behind: it counts for nothing once
its process is gone (on this host) or it has not been touched for a minute (on another one, where the clocks of the
hosts must agree to that much).
"""

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BEAT, STALE = 15.0, 60.0  # seconds between two touches; without one for so long a mark counts for nothing


@dataclass(frozen=True)
class Claim:
    """What the name of a file in `.tmp` says: who works, or worked, on which part of which table."""

    table: str
    part: int
    host: str
    pid: int

    @property
    def dead(self) -> bool:
        """True when the process was one of this host and is gone."""
        return self.host == socket.gethostname() and not _alive(self.pid)


def claim_name(table: str, part: int, suffix: str) -> str:
    """A name for a file of this process, another one each time: "verdicts-00003-5f3a9c1e-node7-4711.running"."""
    return f"{table}-{part:05d}-{uuid.uuid4().hex[:8]}-{socket.gethostname()}-{os.getpid()}{suffix}"


def read_claim(path: Path) -> Claim | None:
    """The claim in a file's name, None where there is none."""
    table, _, rest = path.stem.partition("-")
    part, _, rest = rest.partition("-")
    _token, _, rest = rest.partition("-")
    host, _, pid = rest.rpartition("-")
    return Claim(table, int(part), host, int(pid)) if part.isdecimal() and pid.isdecimal() else None


@contextlib.contextmanager
def marked(folder: Path, table: str, part: int) -> Iterator[None]:
    """Show, while the block lasts, that this process works on a part."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / claim_name(table, part, ".running")
    path.touch()
    over = threading.Event()
    threading.Thread(target=_beat, args=(path, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        path.unlink(missing_ok=True)


def _beat(path: Path, over: threading.Event) -> None:
    while not over.wait(BEAT):
        with contextlib.suppress(OSError):  # a sign of life is not worth a part
            os.utime(path)


def parts_under_way(folder: Path) -> set[int]:
    """The parts that processes work on now, as far as their marks tell."""
    return {claim.part for claim in at_work(folder)}


def at_work(folder: Path) -> list[Claim]:
    """Who works on a part now, as far as the marks tell."""
    found = []
    for path in folder.glob("*.running"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            claim, age = read_claim(path), time.time() - path.stat().st_mtime
            if claim is not None and not claim.dead and age < STALE:
                found.append(claim)
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
