"""Files that are complete or absent: written beside their place, synced, and moved there in one step."""

import os
import shutil
import uuid
from collections.abc import Collection
from pathlib import Path

from opdkit.store.disk import disk_errors_explained


def move_first(temporary: Path, final: Path) -> bool:
    """Move a file into place unless one is there: of two processes that write it, the first one's stays."""
    try:
        os.link(temporary, final)  # fails where a rename would silently replace
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: the rename is whole too, but the last one wins
        temporary.replace(final)
    return True


def discard(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove what a stage wrote: killed half-way, no part may outlive the manifest that says what it is.

    At one blow; or, where `keep` names what people have put there, everything else, the manifest last. What is kept is
    never moved: somebody may be adding to it.
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


def write_first(path: Path, text: str) -> bool:
    """Write a text file that is not there yet, whole; False when another process was faster."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with disk_errors_explained(path):
            temporary.write_text(text, encoding="utf-8")
            sync(temporary)
            return move_first(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
