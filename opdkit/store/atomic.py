"""Files that are complete or absent: written beside their place, synced, and moved there in one step.

The name of a temporary file names its process, ".manifest.json-5f3a9c1e-node7-4711". So whoever works on the run next,
and `opdkit check --clean`, can tell what a killed process left from what another one is about to move.
"""

import contextlib
import glob
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from opdkit.errors import ConfigError
from opdkit.store.disk import disk_errors_explained

_OWNED = re.compile(r".+-[0-9a-f]{8}-(?P<host>.+)-(?P<pid>\d+)(?:\.\w+)?")
_OWNED_BY_NOBODY = re.compile(r"\..+-[0-9a-f]{32}")  # as version 0.1.0 named them
_ABANDONED = 3600.0  # seconds without a change after which a file of another host counts as left


@cache
def host_name() -> str:
    """Return a name for the processes that share process ids: those of a machine, or of a container with its own."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()}.{Path('/proc/self/ns/pid').stat().st_ino}"
    return socket.gethostname()


def make_owned_name(name: str, suffix: str = "") -> str:
    """Return a new name for a temporary file of this process."""
    return f"{name}-{uuid.uuid4().hex[:8]}-{host_name()}-{os.getpid()}{suffix}"


def is_gone(host: str, pid: int) -> bool:
    """Return True if a process was one of this host and has ended."""
    try:
        os.kill(pid, 0)
    except OSError as error:  # PermissionError: it lives, and belongs to another user
        return host == host_name() and isinstance(error, ProcessLookupError)
    return False


def find_left_overs(folder: Path, pattern: str | None = None) -> list[Path]:
    """Return the entries of a folder that killed processes left: half-written, or moved away to be removed.

    Without `pattern` these are hidden, or in a folder `.tmp`: what users put into a run may have any other name.
    """
    left = []
    for path in sorted(folder.glob(pattern or ("*" if folder.name == ".tmp" else ".*"))):
        if owner := _OWNED.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # its process has just ended
                is_old = owner["host"] != host_name() and time.time() - path.stat().st_mtime > _ABANDONED
                if is_old or is_gone(owner["host"], int(owner["pid"])):
                    left.append(path)
        elif _OWNED_BY_NOBODY.fullmatch(path.name):
            left.append(path)
    return left


def remove_entries(paths: Iterable[Path]) -> None:
    """Remove files and folders; another process may be removing them too."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_file(final: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield a path to write to, beside `final` and hidden unless it is given. It is gone when the block ends."""
    temporary = temporary or final.with_name(make_owned_name(f".{final.name}"))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def move_into_place(temporary: Path, final: Path, *, replace: bool = True) -> bool:
    """Move a complete file to its place, on the disk when this returns. Return False if one is there and stays.

    Without `replace`, of two processes that write the file, the first one's stays.
    """
    sync(temporary)
    if replace:
        temporary.replace(final)
    else:
        try:
            os.link(temporary, final)  # fails where a rename would silently replace
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: the rename is atomic too, but the last one wins
            temporary.replace(final)
    sync(final.parent)
    return True


@contextlib.contextmanager
def replaced_file(final: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path to write to, and move the file to `final` when the block ends well; else what was there stays.

    Where `final` is a link, the file that it leads to is written. Raises ConfigError for a device or a folder, and
    without `replace` when a file is there by then; OpdkitError when the disk is full or read-only.
    """
    place = final.resolve() if final.is_symlink() else final
    if place.exists() and not place.is_file():
        raise ConfigError(f"{final} is a folder, a device or a pipe; name a file")
    missing = [folder for folder in place.parents if not folder.exists()]
    try:
        with disk_errors_explained(place), temporary_file(place) as temporary:
            place.parent.mkdir(parents=True, exist_ok=True)
            remove_entries(find_left_overs(place.parent, f".{glob.escape(place.name)}-*"))  # of killed processes
            yield temporary
            if not move_into_place(temporary, place, replace=replace):
                raise ConfigError(f"{final} already exists; name another file, or pass --overwrite to replace it")
    except BaseException:
        for folder in missing:  # created in vain, unless another process has put something there
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def write_text(path: Path, text: str, *, replace: bool = True) -> bool:
    """Write a text file that others may read at any time. Return False if one is there and stays.

    In JSON, the bytes of a file name that are not UTF-8 are written as JSON escapes them.
    """
    with temporary_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        return move_into_place(temporary, path, replace=replace)


def remove_folder(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove what a stage wrote. If the process is killed half-way, no part outlives the manifest that describes it.

    Without `keep` this is one rename. Otherwise everything but these entries is moved away, the manifest last; people
    may be adding to the kept entries, which are never moved. A folder that is a link, or a disk of its own, stays and
    is emptied in the same way.
    """
    if keep or folder.is_symlink() or folder.is_mount():
        trash = folder / make_owned_name(f".{folder.name}")  # within it, so on the same disk
        trash.mkdir()
        keep = {*keep, trash.name}
        for path in sorted(folder.iterdir(), key=lambda path: (path.name == "manifest.json", path.name)):
            if path.name not in keep:
                path.replace(trash / path.name)
    else:
        trash = folder.with_name(make_owned_name(f".{folder.name}"))
        folder.replace(trash)
    shutil.rmtree(trash)


@contextlib.contextmanager
def replaced_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder beside `final`, and move it there when the block ends well: readers find all of it.

    When the block fails, what was there stays, and the new folder is removed: a full disk gets its room back.
    Its files get the permissions of the umask, whatever the library that wrote them gave them.
    """
    temporary = final.with_name(make_owned_name(f".{final.name}"))
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_entries(find_left_overs(final.parent, f".{glob.escape(final.name)}-*"))
    temporary.mkdir()
    permissions = temporary.stat().st_mode & 0o666
    try:
        yield temporary
        for path in [*temporary.rglob("*"), temporary]:
            if path.is_file():
                path.chmod(permissions)
            sync(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if final.exists():  # once it is gone, the new folder is the only one
        shutil.rmtree(final)
    temporary.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
