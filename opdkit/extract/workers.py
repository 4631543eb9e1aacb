"""Worker processes among which a command divides the parts of one stage."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from opdkit.errors import OpdkitError
from opdkit.store import stopping

_PATIENCE = 5.0  # seconds that a process gets to remove its half-written files


def is_importable(function: Callable[..., Any]) -> bool:
    """Return True if a worker can import a function: no lambda, and none of a notebook, `python -c` or a heredoc."""
    try:
        pickle.dumps(function)
    except (AttributeError, pickle.PicklingError):
        return False
    return function.__module__ != "__main__" or Path(getattr(sys.modules["__main__"], "__file__", "")).is_file()


class Workers:
    """`count` processes that call one function with one part after another.

    Each process calls `prepare` at once, so that its imports run while the caller prepares `compute`. `prepare` and
    `function` are pickled: processes are spawned, not forked, because a fork copies locks but not the threads that hold
    them. A script that starts workers needs the usual `if __name__ == "__main__":`.
    """

    def __init__(self, count: int, prepare: Callable[[], None]) -> None:
        self._count = count
        others = multiprocessing.active_children()
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (prepare,))
        for _ in range(count):
            self._pool.submit(os.getpid)  # each call starts a process
        self._running: dict[Future[None], int] = {}  # the part of each call
        self._processes = [process for process in multiprocessing.active_children() if process not in others]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        if self._running and (kind is None or issubclass(kind, Exception)):
            self._pool.shutdown(cancel_futures=True)  # parts under way are finished first
        else:
            self._end()

    def _end(self) -> tuple[str, str]:
        """End every process; one that computes a part removes its half-written files. Return how one died, and why."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_PATIENCE)
            process.kill()
        self._pool.shutdown(cancel_futures=True)
        signals = [-code for process in self._processes if (code := process.exitcode) is not None and code < 0]
        for number in signals:
            if number != signal.SIGTERM:
                return f"was killed by signal {number}", "if memory ran out, take fewer --workers"
        return "died", 'a script that takes workers is a file, with its calls under `if __name__ == "__main__":`'

    def compute(self, function: Callable[[int], object], parts: Iterable[int]) -> Iterator[int]:
        """Call `function` with each of `parts`, as processes become free. Yield each part when it is done.

        No further part is begun once this process was asked to stop. Raises what `function` raises, and OpdkitError
        if a process has died.
        """
        left, running = iter(parts), self._running
        try:
            while True:
                for part in islice(left, 0 if stopping.is_requested() else self._count - len(running)):
                    running[self._pool.submit(_call, function, part)] = part
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    future.result()
                    yield running.pop(future)
        except BrokenProcessPool:
            parts_lost, (death, advice) = " or ".join(map(str, sorted(running.values()))), self._end()
            raise OpdkitError(f"a worker process {death} at part {parts_lost}; {advice}. The finished parts are kept; "
                              "the same command resumes from there") from None  # fmt: skip


def _begin(prepare: Callable[[], None]) -> None:
    """Set up a worker: it ignores Ctrl-C, ends when its parent process ends, and calls `prepare`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare()


def _end_with_parent() -> None:
    """Wait until the parent process has ended, then end this process with the signal that the parent would send."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _call(function: Callable[[int], object], part: int) -> None:
    """Compute one part. An error that cannot be pickled becomes a RuntimeError with its type and message.

    SIGTERM kills an idle process at once. A process that computes a part first removes its half-written files.
    """
    try:
        signal.signal(signal.SIGTERM, _on_sigterm)
        try:
            function(part)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except SystemExit:  # the executor would return it as a result, and keep the process alive
        os._exit(1)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Raise SystemExit, so that half-written files are removed. A second signal must not interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)
