"""An `opdkit` command in a process of its own, forked from the test's, which has imported torch already."""

import multiprocessing
import os
import signal
from pathlib import Path


class Forked:
    """A command line at work; what it says on stderr goes to a file."""

    def __init__(self, *words: str, log: Path) -> None:
        self.log = log
        self._process = multiprocessing.get_context("fork").Process(target=_command, args=(words, log))
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)

    def end(self) -> tuple[int | None, str]:
        """Exit code (-N: died of signal N) and what was said."""
        self._process.join(timeout=300)
        return self._process.exitcode, self.log.read_text(encoding="utf-8")


def _command(words: tuple[str, ...], log: Path) -> None:
    from opdkit.cli import app
    from opdkit.console import stderr

    with log.open("w", encoding="utf-8") as said:
        stderr.file = said
        app(words)  # ends by SystemExit with the exit code
