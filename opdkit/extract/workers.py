"""Processes that share the parts of one stage, for one command."""

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
from types import FrameType

from opdkit.errors import OpdkitError
from opdkit.store import stopping

_PATIENCE = 5.0  # seconds that a process has to remove what it has half written


class Workers:
    """`count` processes that call one function with one part after the other.

    Each process calls `prepare` at once, so that its imports run beside whatever comes before `compute`. `prepare` and
    `function` are pickled: processes are spawned, not forked, because a fork copies the locks of threads that it does
    not copy. A script that starts workers needs the usual `if __name__ == "__main__":`.
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
            self._pool.shutdown(cancel_futures=True)  # the other parts under way are finished
        else:
            self._end()

    def _end(self) -> str:
        """End every process; one that computes a part removes what it has written of it. Return what killed one."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(_PATIENCE)
            process.kill()
        self._pool.shutdown(cancel_futures=True)
        signals = [-code for process in self._processes if (code := process.exitcode) is not None and code < 0]
        return next((f"was killed by signal {number}" for number in signals if number != signal.SIGTERM), "died")

    def compute(self, function: Callable[[int], object], parts: Iterable[int]) -> Iterator[int]:
        """Call `function` with each of `parts`, taken when a process is free for it; yield each part that is done.

        No further part is taken once this process was asked to stop. Raises what `function` raises, and OpdkitError
        when a process has died.
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
            parts_lost = " or ".join(map(str, sorted(running.values())))
            raise OpdkitError(f"a worker process {self._end()} at part {parts_lost}; if memory ran out, take fewer "
                              "--workers. The finished parts are kept; the same command resumes from "
                              "there") from None  # fmt: skip


def _begin(prepare: Callable[[], None]) -> None:
    """Prepare the process as `prepare` does, and for the death of the first process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal: the first one ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare()


def _end_with_parent() -> None:
    """Wait for the death of the first process, then end this one as the first process would."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _call(function: Callable[[int], object], part: int) -> None:
    """Compute one part. An error that cannot be pickled becomes a RuntimeError with its type and message.

    SIGTERM kills a process that waits. One that computes a part first removes what it has half written.
    """
    try:
        signal.signal(signal.SIGTERM, _on_sigterm)
        try:
            function(part)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except SystemExit:  # the executor would return it as a result, and keep the process
        os._exit(1)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Raise SystemExit, so that half-written files are removed; a second signal must not break into that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)
