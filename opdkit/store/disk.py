"""Explanations of disk errors: the disk is full, a file cannot grow, or a path is read-only or somebody else's."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from opdkit.errors import OpdkitError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# Libraries written in Rust and C++ raise errors of their own that quote the system's text.
_QUOTED = {"No space left on device": errno.ENOSPC, "os error 28": errno.ENOSPC, "Disk quota exceeded": errno.EDQUOT,
           "disk is full": errno.ENOSPC, "Read-only file system": errno.EROFS, "File too large": errno.EFBIG,
           "disk I/O error": errno.EIO}  # fmt: skip


@contextlib.contextmanager
def disk_errors_explained(where: Path) -> Iterator[None]:
    """Raise OpdkitError, naming the path and the remedy, if the block could not write at `where`.

    Every other error passes through unchanged.
    """
    try:
        yield
    except OpdkitError:
        raise
    except Exception as error:
        if message := explain_disk_error(error, where):
            raise OpdkitError(message) from error
        raise


def explain_disk_error(error: BaseException, where: Path | None = None) -> str | None:
    """Return a message with the remedy for a disk error, or an error that it led to; None for any other error.

    `where` is what was being written, in case the error does not name a file itself.
    """
    code, named = None, None
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain and code is None:
        chain.append(link)
        if isinstance(link, OSError) and link.errno in (*_FULL, *_REFUSED, errno.EFBIG):
            code = link.errno
        else:
            code = next((number for text, number in _QUOTED.items() if text in str(link)), None)
        file = getattr(link, "filename2", None) or getattr(link, "filename", None)  # of a copy: its target
        if code is not None and isinstance(file, str) and (where is None or os.sep in file):  # rmtree names no folder
            named = Path(file)
        link = link.__cause__ or link.__context__
    if code is None:
        return None
    path = named.parent if named and named.name.startswith(".") else named or where  # temporary files are hidden
    if code in _FULL:
        return (f"no space left on the disk of {path or 'the run or of TMPDIR'}: make room there, then start the same "
                "command again; what is finished is kept")  # fmt: skip
    if code in (errno.EFBIG, errno.EIO):
        return (f"a file cannot grow on the disk of {path or 'the run or of TMPDIR'}: its size is limited (`ulimit "
                "-f`, or a file system such as FAT), or the disk fails; raise the limit or take another disk, then "
                "start the same command again; what is finished is kept")  # fmt: skip
    if where is None or (code != errno.EROFS and named and os.access(named, os.F_OK)):
        return None  # perhaps it was being read, not written
    return f"{path} cannot be written (read-only, or another owner's): make it writable, then start the command again"
