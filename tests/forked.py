"""An `opdkit` command in a fork of the test process, which has imported torch already."""

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_cluster import free_ports

HANGS = 240.0  # seconds: long enough for a busy machine


class Forked:
    """Running command, whose stderr goes to the file `log`."""

    def __init__(self, *words: str, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        args = (words, log, environment or {})
        self._process = multiprocessing.get_context("fork").Process(target=_command, args=args)
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid
        os.kill(self._process.pid, number)

    def end(self) -> tuple[int | None, str]:
        """Return the exit code (-N: died of signal N) and stderr. A process that hangs prints its stack and dies."""
        self._process.join(timeout=HANGS)
        if self.running:
            self.signal(signal.SIGABRT)  # pytest's faulthandler
            self._process.join()
        return self._process.exitcode, self.log.read_text(encoding="utf-8")


def ranks(*commands: Sequence[str], logs: Path) -> list[Forked]:
    """Start one process per command line with a launcher's environment; the stderr of rank k goes to `logs`-k."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": str(len(commands))}
    return [
        Forked(
            *words,
            log=logs.with_name(f"{logs.name}-{k}"),
            environment=address | {"RANK": str(k), "LOCAL_RANK": str(k)},
        )
        for k, words in enumerate(commands)
    ]


def _command(words: tuple[str, ...], log: Path, environment: Mapping[str, str]) -> None:
    from accelerate.state import AcceleratorState, GradientState

    from opdkit.cli import app
    from opdkit.console import stderr

    os.environ.update(environment)
    AcceleratorState._reset_state(reset_partial_state=True)  # detected by the test process for itself
    GradientState._reset_state()
    with log.open("w", encoding="utf-8") as said:
        stderr.file = said
        app(words)  # ends by SystemExit with the exit code
