"""Several processes for the parts of one stage, in one command."""

import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from opdkit.errors import OpdkitError

_PATIENCE = 5.0  # seconds that a process has to remove what it has half written
Prepare = Callable[[Any], AbstractContextManager[Callable[[int], None]]]


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    part: int | None = None  # what it computes


class Workers:
    """`count` processes, each of which makes a function from a job, and calls it with one part after the other.

        with Workers(4, ready) as workers:
            for part in workers.do(job, parts): ...

    `ready()`, called in each process at once, so that imports run beside whatever comes before `do`, returns what
    makes `with prepare(job) as compute` and `compute(part)`. `ready` and `job` are pickled: processes are spawned, not
    forked, because a fork copies the locks of threads that it does not copy. A script that starts workers needs the
    usual `if __name__ == "__main__":`.
    """

    def __init__(self, count: int, ready: Callable[[], Prepare]) -> None:
        self._workers = [_start(ready) for _ in range(count)]

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_exception: object) -> None:
        """End every process. One that is at a part removes what it has written of it."""
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(_PATIENCE)
            worker.process.kill()
            worker.process.join()
            worker.connection.close()

    def do(self, job: object, parts: Iterable[int]) -> Iterator[int]:
        """Compute `parts`, each taken when a process is free for it; yields it when it is done.

        Raises what `compute` has raised, with the traceback as a note, and OpdkitError when a process has died.
        """
        left = iter(parts)
        busy: dict[Any, _Worker] = {}
        for worker, part in zip(self._workers, left, strict=False):
            _send(worker, job, part)
            busy[worker.connection] = worker
        while busy:
            for connection in wait(list(busy)):
                worker = busy.pop(connection)
                yield _result(worker)
                following = next(left, None)
                if following is not None:
                    _send(worker, following)
                    busy[worker.connection] = worker


def _start(ready: Callable[[], Prepare]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, ready), daemon=True)
    process.start()
    theirs.close()  # the process's own end is the last one: when it dies, we read the end of the stream
    return _Worker(process, ours)


def _send(worker: _Worker, *messages: Any) -> None:
    worker.part = messages[-1]
    try:
        for message in messages:
            worker.connection.send(message)
    except OSError:
        raise _died(worker) from None


def _result(worker: _Worker) -> int:
    try:
        error = worker.connection.recv()
    except (EOFError, OSError):
        raise _died(worker) from None
    if error is not None:
        raise error
    assert worker.part is not None
    return worker.part


def _died(worker: _Worker) -> OpdkitError:
    worker.process.join(_PATIENCE)
    code = worker.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
    return OpdkitError(
        f"a worker process {how} at part {worker.part}; if memory ran out, take fewer --workers. "
        "The finished parts are kept; the same command goes on from there"
    )


# -- in the process ------------------------------------------------------------------------------------------------


def _work(connection: Connection, ready: Callable[[], Prepare]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal: the first one ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, so that half-written files are removed
    try:
        prepare = ready()
        with prepare(connection.recv()) as compute:
            while True:
                connection.send(_failure(compute, connection.recv()))
    except (EOFError, BrokenPipeError):  # the first process is gone, or needs no more
        pass


def _failure(compute: Callable[[int], None], part: int) -> Exception | None:
    """Compute one part; what was raised, fit to be sent."""
    try:
        compute(part)
    except Exception as error:
        error.add_note(traceback.format_exc())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return RuntimeError(f"{type(error).__name__}: {error}")
        return error
    return None
