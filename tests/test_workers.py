"""Several processes for the parts of a stage: real processes, real failures."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from opdkit.errors import ConfigError, OpdkitError
from opdkit.workers import Workers


@contextlib.contextmanager
def _touching(folder: Path) -> Iterator:
    """A part is a file with the process in it."""
    yield lambda part: (folder / str(part)).write_text(str(os.getpid()))


@contextlib.contextmanager
def _failing(folder: Path, how: str) -> Iterator:
    def compute(part: int) -> None:
        if part != 2:
            (folder / str(part)).touch()
        elif how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "said":
            raise ConfigError("part 2 is wrong")
        elif how == "not to be pickled":
            raise type("Odd", (Exception,), {})("part 2 is odd")

    yield compute


@contextlib.contextmanager
def _slow(folder: Path) -> Iterator:
    def compute(part: int) -> None:
        half = folder / f"{part}.half"
        half.touch()
        try:
            time.sleep(60)
        finally:
            half.unlink()

    yield compute


def touching():
    return _touching


def failing(how: str):
    return partial(_failing, how=how)


def slow():
    return _slow


def test_every_part_is_done_once_and_all_processes_work(tmp_path):
    with Workers(2, touching) as workers:
        assert sorted(workers.do(tmp_path, range(5))) == list(range(5))
    assert len({path.read_text() for path in tmp_path.iterdir()} - {str(os.getpid())}) == 2


def test_more_processes_than_parts_and_no_part_at_all(tmp_path):
    with Workers(2, touching) as workers:
        assert list(workers.do(tmp_path, [7])) == [7]
    with Workers(1, touching) as workers:
        assert list(workers.do(tmp_path, [])) == []


@pytest.mark.parametrize(("how", "kind", "message"), [
    ("killed", OpdkitError, r"a worker process was killed by signal 9 at part 2.*fewer --workers"),
    ("said", ConfigError, "part 2 is wrong"),
    ("not to be pickled", RuntimeError, "Odd: part 2 is odd"),
])  # fmt: skip
def test_a_failure_is_never_swallowed(tmp_path, how, kind, message):
    """pitfall 26: a worker swallows a write error and reports success."""
    with Workers(1, partial(failing, how)) as workers, pytest.raises(kind, match=message) as caught:
        list(workers.do(tmp_path, range(5)))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0", "1"]
    if how == "said":
        assert "in compute" in caught.value.__notes__[0]


def test_who_is_stopped_cleans_up(tmp_path):
    workers = Workers(2, slow)
    with workers, pytest.raises(KeyboardInterrupt):
        for connection, part in zip(workers._workers, (0, 1), strict=True):
            connection.connection.send(tmp_path)
            connection.connection.send(part)
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    assert not any(worker.process.is_alive() for worker in workers._workers if not worker.process._closed)
