"""Clean stops when a scheduler asks for one, so that the same command can resume from there.

SIGUSR1: finish the part under way, then stop. SIGTERM: drop the part under way and stop now. A dropped part leaves
nothing at its final path; finished parts stay. Training works in steps: both signals let it finish the optimizer step
under way, in which other processes take part, and write a checkpoint. A command listens only while it runs a stage.

SIGINT (Ctrl-C) interrupts as usual. A library may swallow the exception that a signal raises, as pyarrow does while it
imports pandas. So the exception is raised again before the next part or step, at the latest when the stage ends.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from opdkit.errors import OpdkitError

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, the same command resumes


class Stopped(KeyboardInterrupt):
    """Exception of a stage that stops. As a KeyboardInterrupt, it passes through code that lets Ctrl-C through."""

    exit_code = TRY_AGAIN


@dataclass
class _Watch:
    """Requests to this process, and its progress. There is one instance, because signals belong to a process."""

    owner: int = 0
    requested: bool = False
    raised: type[KeyboardInterrupt] | None = None  # by a signal
    finished: int = 0  # parts, kept answers of a judge, or steps that a checkpoint holds
    in_steps: bool = False


_watch = _Watch()


def is_requested() -> bool:
    """Return True if the process was asked to stop after this part or step. Raise again what a signal raised before."""
    if _watch.raised is not None:
        raise _watch.raised
    return _watch.requested


def raise_if_requested() -> None:
    """Raise Stopped or KeyboardInterrupt if the process was asked to stop, so that no further part is begun."""
    if is_requested():
        raise Stopped


def count_finished() -> None:
    """Count a committed part, an answer that is kept until its part is committed, or a checkpoint."""
    _watch.finished += 1


@contextlib.contextmanager
def stop_after_step() -> Iterator[None]:
    """Make SIGTERM act like SIGUSR1 in the block, which must call `is_requested` after each step."""
    _watch.in_steps = True
    yield
    _watch.in_steps = False  # after an exception, `listen_for_signals` still sees how the stage worked


@contextlib.contextmanager
def listen_for_signals() -> Iterator[None]:
    """Handle the signals in the block, if this is the main thread: Python delivers signals to no other thread.

    Raises Stopped and KeyboardInterrupt. Raises OpdkitError if the process was asked to stop before it had finished
    anything that is kept. The same command would get no further, and a scheduler would start it again for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch.owner, _watch.requested, _watch.finished, _watch.in_steps = os.getpid(), False, 0, False
    numbers = [signal.SIGUSR1, signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored (nohup), or handled
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, _on_signal) for number in numbers}
    try:
        yield
        is_requested()  # raises what was swallowed since the last part
    except Stopped:
        if _watch.requested and not _watch.finished:
            unit, smaller = ("step", "--batch-turns") if _watch.in_steps else ("part", "`opdkit extract --part-mb`")
            raise OpdkitError(
                f"stopped before one {unit} was finished, so starting again would not help: give it more time, or make "
                f"{unit}s smaller with a lower {smaller}"
            ) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _watch.requested, _watch.raised = False, None


def _on_signal(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT:
        _watch.raised = KeyboardInterrupt
        raise KeyboardInterrupt
    if os.getpid() != _watch.owner:  # a forked worker: its parent decides
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
    elif number == signal.SIGUSR1 or _watch.in_steps:
        _watch.requested = True
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
        _watch.raised = Stopped
        raise Stopped
