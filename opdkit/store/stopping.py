"""Stopping in good order when a scheduler asks, so that the same command can go on from there.

SIGUSR1: finish the part under way, then stop. SIGTERM: drop the part under way and stop now. What is dropped leaves
nothing at its final path; what is finished stays. A training works in steps instead: both signals have it finish the
optimizer step under way, which other processes take part in, and keep a checkpoint. A command listens only while it
runs a stage.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from opdkit.errors import OpdkitError

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command goes on


class Stopped(KeyboardInterrupt):
    """Raised where a stage stops. What lets Ctrl-C through lets this through, asyncio among them."""

    exit_code = TRY_AGAIN


@dataclass
class _Watch:
    """What this process was asked, and what it has done: signals belong to a process, so there is one of these."""

    owner: int = 0
    asked: bool = False
    finished: int = 0  # parts, or steps that a checkpoint holds
    in_steps: bool = False


_watch = _Watch()


def requested() -> bool:
    """True once the process was asked to stop after what it is doing."""
    return _watch.asked


def before_part() -> None:
    """Raise Stopped when the process was asked to stop: no further part is begun."""
    if _watch.asked:
        raise Stopped


def after_part() -> None:
    """Count what is kept: a part that was committed, or a checkpoint."""
    _watch.finished += 1


@contextlib.contextmanager
def in_steps() -> Iterator[None]:
    """In the block SIGTERM does what SIGUSR1 does, and who works there looks at `requested` after each step."""
    _watch.in_steps = True
    yield
    _watch.in_steps = False  # what ends by an exception still says how it worked


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Heed both signals in the block; only in the main thread, where Python delivers them.

    Raises Stopped; OpdkitError when the process was asked to stop and had not finished one part (or step): then the
    same command would not get any further the next time, and a scheduler that starts it again would do so for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch.owner, _watch.asked, _watch.finished, _watch.in_steps = os.getpid(), False, 0, False
    before = {number: signal.signal(number, _on_signal) for number in (signal.SIGUSR1, signal.SIGTERM)}
    try:
        yield
    except Stopped:
        if _watch.asked and not _watch.finished:
            what, smaller = ("step", "--batch-turns") if _watch.in_steps else ("part", "`opdkit extract --part-mb`")
            raise OpdkitError(
                f"stopped before one {what} was finished, so to start again would not help: give it more time, or make "
                f"{what}s smaller with a lower {smaller}"
            ) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _watch.asked = False


def _on_signal(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _watch.owner:  # a forked worker: its parent decides
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    if number == signal.SIGUSR1 or _watch.in_steps:
        _watch.asked = True
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not break into the cleaning up
    raise Stopped
