"""Files that are complete or absent: written beside their place, synced, and moved there in one step."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path


@contextlib.contextmanager
def temporary_file(final: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield a path to write to, beside `final` and hidden unless it is given. It is gone when the block ends."""
    temporary = temporary or final.with_name(f".{final.name}-{uuid.uuid4().hex}")
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


def write_text(path: Path, text: str, *, replace: bool = True) -> bool:
    """Write a text file that others may read at any time. Return False if one is there and stays.

    With `replace` nothing is synced: such a file is rewritten often, and the run does not depend on it.
    """
    with temporary_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        if not replace:
            return move_into_place(temporary, path, replace=False)
        temporary.replace(path)
        return True


def remove_folder(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove what a stage wrote. If the process is killed half-way, no part outlives the manifest that describes it.

    Without `keep` this is one rename. Otherwise everything but these entries is moved away, the manifest last; people
    may be adding to the kept entries, which are never moved.
    """
    trash = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    if not keep:
        folder.replace(trash)
    else:
        trash.mkdir()
        for path in sorted(folder.iterdir(), key=lambda path: (path.name == "manifest.json", path.name)):
            if path.name not in keep:
                path.replace(trash / path.name)
    shutil.rmtree(trash)


@contextlib.contextmanager
def replaced_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder beside `final`, and move it there when the block ends well: readers find all of it.

    Its files get the permissions of the umask, whatever the library that wrote them gave them.
    """
    temporary = final.with_name(f".{final.name}-{os.getpid()}")
    final.parent.mkdir(parents=True, exist_ok=True)
    for left_over in final.parent.glob(f".{final.name}-*"):
        shutil.rmtree(left_over)
    yield temporary
    with temporary_file(temporary / "mode") as plain:
        plain.touch()
        mode = plain.stat().st_mode
    for path in temporary.rglob("*"):
        if path.is_file():
            path.chmod(mode)
    if final.exists():
        shutil.rmtree(final)
    temporary.replace(final)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
