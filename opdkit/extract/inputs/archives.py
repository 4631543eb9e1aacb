"""Zip archives, such as the exports of chat front ends: their members are read like the files of a folder."""

import errno
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from opdkit.chat.conversation import Unreadable

DAMAGED = "damaged archive"
_OUTSIDE, _BOMB, _LOCKED, _NESTED = "path leaves the archive", "zip bomb", "encrypted", "archive in an archive"
# Packed JSON unpacks to about 10 times its size; deflate may unpack to 1,032 times.
_LARGEST_RATIO, _SMALL = 100, 10_000_000
_BLOCK = 1 << 20
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # with others, zipfile unpacks a block of any size at once
_DRIVE = re.compile(r"[A-Za-z]:")


def unpack(archive: Path, suffixes: tuple[str, ...], folder: Path) -> Iterator[tuple[str, Path, Unreadable | None]]:
    """Yield (name, path of its copy in `folder`, why it is set aside or None) for each member that may hold a log.

    The name "" stands for the whole archive. Copies are numbered, so that no member's name becomes a path. All members
    together may unpack to at most `_LARGEST_RATIO` times the archive plus `_SMALL` bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    budget = _SMALL + _LARGEST_RATIO * archive.stat().st_size
    try:
        opened = zipfile.ZipFile(archive)
    except _DAMAGE as error:
        yield "", archive, Unreadable(DAMAGED, str(error))
        return
    with opened:
        members = [m for m in opened.infolist() if m.filename.endswith((*suffixes, ".zip")) and not m.is_dir()]
        if not members:
            yield "", archive, Unreadable("nothing to read", f"it holds no {', '.join(suffixes)} files")
        for number, member in enumerate(sorted(members, key=lambda m: m.filename)):
            suffix = next(end for end in (*suffixes, ".zip") if member.filename.endswith(end))
            path = folder / f"{number}{suffix}"
            path.touch()
            problem = _find_problem(member, suffix) or _unpack_member(opened, member, path, budget)
            budget -= path.stat().st_size
            if problem is not None:
                path.write_bytes(b"")
            yield member.filename, path, problem


def _unpack_member(opened: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, budget: int) -> Unreadable | None:
    """Unpack a member to `path`. Return why it is set aside; None if it is whole and has at most `budget` bytes."""
    try:
        with opened.open(member) as packed, path.open("wb") as out:
            while block := packed.read(_BLOCK):
                out.write(block)
                budget -= len(block)
                if budget < 0:
                    return Unreadable(_BOMB, f"more than {_LARGEST_RATIO} times the archive")
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a full disk; EINVAL: wrong offset
            raise
        return Unreadable(DAMAGED, str(error))
    return None


def _find_problem(member: zipfile.ZipInfo, suffix: str) -> Unreadable | None:
    """Return why a member is not unpacked; None if it is."""
    name = member.filename.replace("\\", "/")
    if name.startswith("/") or ".." in PurePosixPath(name).parts or _DRIVE.match(name):
        return Unreadable(_OUTSIDE, name)
    if member.flag_bits & 1:
        return Unreadable(_LOCKED, "it needs a password")
    if member.compress_type not in _METHODS:
        return Unreadable("unknown compression", f"method {member.compress_type}; deflate is read")
    return Unreadable(_NESTED, "unpack it first") if suffix == ".zip" else None
