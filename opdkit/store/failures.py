"""Last error of each shard, where `opdkit status` finds it: RUN/.failed/judge-1-of-4.json.

It is written when a stage ends with an error, and removed when the same shard succeeds or the stage is done. A process
that is killed writes nothing: only its unfinished parts, on which no process works, show that it failed.
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
from opdkit.errors import NothingLearnedError, OpdkitError
from opdkit.store.atomic import remove_folder, write_text
from opdkit.store.plans import has_stage, stage_dir

_STAGES = {"rollout": ("extract", "judge")}  # command -> stages that it writes, if not only the one of its name


@contextlib.contextmanager
def record_failure(stage: str, config: StageConfig) -> Iterator[None]:
    """Record the error that ends the block. If there is none, remove the record of an earlier error.

    If a stage that began in the block has written nothing but its plan, or extracted nothing to train on, its folder is
    removed. So the corrected command needs no --overwrite. With several shards it stays for the others.
    """
    index, count = parse_shard(config.shard)
    path = config.run / ".failed" / f"{stage}-{index}-of-{count}.json"
    new = [name for name in _STAGES.get(stage, (stage,)) if count == 1 and not has_stage(config.run, name)]
    try:
        yield
    except Exception as error:
        is_useless = stage == "extract" and isinstance(error, NothingLearnedError)
        for home in (stage_dir(config.run, name) for name in new):
            with contextlib.suppress(OSError):
                files = [file.name for file in home.rglob("*") if file.is_file()]
                if is_useless or files == ["manifest.json"]:
                    remove_folder(home)
        # A user who typed a wrong command (exit code 2) has read the message, but in a batch job nobody has.
        shown = getattr(error, "exit_code", 1) != 1 and "SLURM_JOB_ID" not in os.environ
        # A command with a wrong RUN leaves nothing behind: the path may be that of the logs.
        begins = stage in ("extract", "rollout") or has_stage(config.run, "extract") or has_stage(config.run, stage)
        if not shown and begins and config.run.is_dir():
            text = str(error) if isinstance(error, OpdkitError) else f"{type(error).__name__}: {error}"
            record = {
                "stage": stage, "shard": f"{index}/{count}", "time": time.strftime("%Y-%m-%d %H:%M:%S"),
                "host": socket.gethostname(), "job": os.environ.get("SLURM_JOB_ID"), "error": text,
            }  # fmt: skip
            with contextlib.suppress(OSError):  # a full disk must not hide the error behind another one
                path.parent.mkdir(exist_ok=True)
                write_text(path, json.dumps(record, indent=2) + "\n")
        raise
    except SystemExit:  # the reader of stdout has read enough: `eval` prints when its work is done
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    with contextlib.suppress(OSError):  # it is not there, or the disk is read-only
        path.unlink()


def forget_failures(run: Path, stage: str) -> None:
    """Remove the errors of a stage that is done, however many shards it had when they happened."""
    for path in (run / ".failed").glob(f"{stage}-*-of-*.json"):
        with contextlib.suppress(OSError):
            path.unlink()


def read_failures(run: Path) -> list[JSON]:
    """Return the recorded errors, oldest first."""
    failures: list[JSON] = []
    for path in (run / ".failed").glob("*.json"):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            failures.append(json.loads(path.read_text(encoding="utf-8")))
    return sorted(failures, key=lambda failure: (failure["time"], failure["stage"], failure["shard"]))
