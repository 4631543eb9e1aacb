"""The last error of each shard, where `opdkit status` finds it: RUN/.failed/judge-1-of-4.json.

Written when a stage ends with an error, removed when the same shard ends well or the stage is done. A process that is
killed writes none: its parts are just not done, and nobody works on them.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from opdkit.config.fields import JSON, StageConfig
from opdkit.config.shard import parse_shard
from opdkit.errors import OpdkitError
from opdkit.store.disk import replace_text


@contextlib.contextmanager
def recorded(stage: str, config: StageConfig) -> Iterator[None]:
    """Keep the error with which the block ends, or forget the one before."""
    index, count = parse_shard(config.shard)
    path = config.run / ".failed" / f"{stage}-{index}-of-{count}.json"
    try:
        yield
    except Exception as error:
        # A command that was wrong (exit code 2) is told to who typed it; in a batch job nobody sees it.
        if getattr(error, "exit_code", 1) == 1 or "SLURM_JOB_ID" in os.environ:
            text = str(error) if isinstance(error, OpdkitError) else f"{type(error).__name__}: {error}"
            _write(path, {
                "stage": stage, "shard": f"{index}/{count}", "time": time.strftime("%Y-%m-%d %H:%M:%S"),
                "host": socket.gethostname(), "job": os.environ.get("SLURM_JOB_ID"), "error": text,
            })  # fmt: skip
        raise
    path.unlink(missing_ok=True)


def forget(run: Path, stage: str) -> None:
    """Remove the errors of a stage that is done, however many shards it had when they happened."""
    for path in (run / ".failed").glob(f"{stage}-*-of-*.json"):
        path.unlink(missing_ok=True)


def failures(run: Path) -> list[JSON]:
    """What was recorded, oldest first."""
    found: list[JSON] = []
    for path in (run / ".failed").glob("*.json"):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found.append(json.loads(path.read_text(encoding="utf-8")))
    return sorted(found, key=lambda failure: (failure["time"], failure["stage"], failure["shard"]))


def _write(path: Path, record: JSON) -> None:
    """Whole or not at all; and a disk that is full is no reason to hide the error behind another one."""
    if not path.parent.parent.is_dir():  # no run: nothing is left behind by a command with a wrong path
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        replace_text(path, json.dumps(record, indent=2) + "\n")
