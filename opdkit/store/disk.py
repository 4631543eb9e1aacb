"""The disk of a run: text files replaced whole, and in words what goes wrong: it is full, it is read-only, not ours."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from opdkit.errors import OpdkitError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# Libraries written in Rust and C++ raise errors of their own, which only quote the system's.
_QUOTED = {"No space left on device": errno.ENOSPC, "os error 28": errno.ENOSPC, "Disk quota exceeded": errno.EDQUOT,
           "disk is full": errno.ENOSPC, "Read-only file system": errno.EROFS}  # fmt: skip


@contextlib.contextmanager
def disk_errors_explained(where: Path) -> Iterator[None]:
    """Raise OpdkitError, naming the path and what to do, when the block could not write at `where`.

    Every other error goes through as it is.
    """
    try:
        yield
    except OpdkitError:
        raise
    except Exception as error:
        message = disk_error_message(error, where)
        if message is None:
            raise
        raise OpdkitError(message) from error


def replace_text(path: Path, text: str) -> None:
    """Write a text file that others may read at any time: they see the one before or this one, whole."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def disk_error_message(error: BaseException, where: Path | None = None) -> str | None:
    """What to do about an error of the disk; None when the error is of another kind.

    `where` is what was being written, in case the error does not name a file itself.
    """
    found = _cause(error)
    if found is None:
        return None
    code, named = found
    path = named.parent if named and named.name.startswith(".") else named or where  # a file of ours beside its place
    if code in _FULL:
        what = f"no space left on the disk of {path}" if path else "no space left on the disk of the run or of TMPDIR"
        return f"{what}: make room there, then start the same command again; what is finished is kept"
    if where is None or (code != errno.EROFS and named and os.access(named, os.F_OK)):
        return None  # a file that may not be read, for all we know
    return f"{path} cannot be written (read-only, or another owner's): make it writable, then start the command again"


def _cause(error: BaseException) -> tuple[int, Path | None] | None:
    """The error number of the disk's in a chain of errors, and the file that it names."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        seen.append(link)
        code = link.errno if isinstance(link, OSError) else None
        quoted = (number for text, number in _QUOTED.items() if text in str(link))
        code = code if code in (*_FULL, *_REFUSED) else next(quoted, None)
        if code is not None:
            name = link.filename if isinstance(link, OSError) else None
            return code, Path(name) if isinstance(name, str) else None
        link = link.__cause__ or link.__context__
    return None
