"""Files that are complete or absent: written beside their final path, synced, and moved there in one step.

The name of a temporary file holds its host and process id, ".manifest.json-5f3a9c1e-node7-4711". So the next command on
the run, and `opdkit check --clean`, can tell what a killed process left from what a live process is about to move.
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
_ABANDONED = 3600.0  # seconds without a change after which a file of another host counts as left behind


@cache
def host_name() -> str:
    """Return a name for the processes that share pids with this one: of a machine, or of a container with own pids."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()}.{Path('/proc/self/ns/pid').stat().st_ino}"
    return socket.gethostname()


def make_owned_name(name: str, suffix: str = "") -> str:
    """Return a new name for a temporary file of this process."""
    return f"{name}-{uuid.uuid4().hex[:8]}-{host_name()}-{os.getpid()}{suffix}"


def is_gone(host: str, pid: int) -> bool:
    """Return True if a process ran on this host and has ended."""
    try:
        os.kill(pid, 0)
    except OSError as error:  # PermissionError: it lives, and belongs to another user
        return host == host_name() and isinstance(error, ProcessLookupError)
    return False


def find_left_overs(folder: Path, pattern: str | None = None) -> list[Path]:
    """Return the entries of a folder that killed processes left: half-written, or moved away to be removed.

    Without `pattern`, only hidden entries and those of a folder `.tmp` count: users may use any other name.
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
    """Yield a path to write to, hidden beside `final` unless it is given. The file is removed when the block ends."""
    temporary = temporary or final.with_name(make_owned_name(f".{final.name}"))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def move_into_place(temporary: Path, final: Path, *, replace: bool = True) -> bool:
    """Move a complete file to `final`, synced to disk. Return False if a file is there and stays.

    Without `replace`, if two processes write the file, that of the first one stays.
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
    """Yield a path to write to, and move the file to `final` if the block succeeds; otherwise the old file stays.

    If `final` is a link, its target is written. Raises ConfigError if `final` is a device or a folder or, without
    `replace`, exists by then; OpdkitError if the disk is full or read-only.
    """
    place = final.resolve() if final.is_symlink() else final
    if final.exists() and not final.is_file():  # not `place`: /dev/stdout is a link to a name that does not exist
        raise ConfigError(f"{final} is a folder, a device or a pipe; name a file")
    missing = [folder for folder in place.parents if not folder.exists()]
    try:
        with disk_errors_explained(place), temporary_file(place) as temporary:
            place.parent.mkdir(parents=True, exist_ok=True)
            remove_entries(find_left_overs(place.parent, f".{glob.escape(place.name)}-*"))  # left by killed processes
            yield temporary
            if not move_into_place(temporary, place, replace=replace):
                raise ConfigError(f"{final} already exists; name another file, or pass --overwrite to replace it")
    except BaseException:
        for folder in missing:  # created for nothing, unless another process has put something there
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def write_text(path: Path, text: str, *, replace: bool = True) -> bool:
    """Write a text file that others may read at any time. Return False if a file is there and stays.

    Bytes of a file name that are not UTF-8 are written as backslash escapes, which JSON can read.
    """
    with temporary_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        return move_into_place(temporary, path, replace=replace)


def remove_folder(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove what a stage wrote. If the process is killed half-way, no part is left without its manifest.

    Without `keep`, the folder is moved away in one rename. Otherwise all other entries are moved away, the manifest
    last. The kept entries are never moved, since people may be adding to them. A folder that is a link or a mount point
    stays, and is emptied in the same way.
    """
    if keep or folder.is_symlink() or folder.is_mount():
        trash = folder / make_owned_name(f".{folder.name}")  # in the folder, so on the same disk
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
    """Yield a new folder beside `final`, and move it there if the block succeeds: readers find only a complete folder.

    If the block fails, the old folder stays, and the new folder is removed: a full disk gets its room back.
    Files get the permissions of the umask, not those that the library that wrote them chose.
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
    if final.exists():  # until the rename below, the new folder is the only copy
        shutil.rmtree(final)
    temporary.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
