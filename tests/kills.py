"""Kill commands at random moments and repeat them: rows and weights must be as if nothing had happened.

    python -m tests.kills [--kills 200] [--seed 0]

A stage is started, killed after some more of its parts (or steps) and a random pause, and started again, until it is
done. Then its tables and weights are compared with those of an undisturbed run, and the stage starts again in a new
run. The kills are spread over all stages. The line that is printed per kill is enough to repeat it.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from opdkit.store.atomic import find_left_overs
from opdkit.store.plans import stage_dir
from opdkit.store.reading import count_parts
from opdkit.store.tables import TABLES

ROOT = Path(__file__).parent.parent
DATA = ROOT / "sample_data"
MODEL = str(DATA / "model")
TIMED = ("seconds", "tokens_per_second")  # columns that differ between any two runs
_POLL, _PATIENCE = 0.002, 600.0  # seconds
COMMAND = [sys.executable, "-m", "opdkit"]


@dataclass(frozen=True)
class Work:
    """Small command of one stage, and the tables that it writes."""

    options: tuple[str, ...]
    tables: tuple[str, ...]  # progress is counted in parts of the first
    steps: bool = False  # the stage is one part; its checkpoints show its progress
    another: bool = False  # the stage writes another run


WORK = {
    "extract": Work((str(DATA / "logs"), "--part-mb", "0.01", "--limit", "28"), ("sessions", "turns", "rejected")),
    "judge": Work(
        ("--judge", "local", "--judge-model", MODEL, "--votes", "1", "--max-new-tokens", "32"), ("verdicts",)
    ),
    "teacher": Work(("--model", MODEL), ("targets",)),
    "train": Work(("--model", MODEL, "--checkpoint-every", "1", "--batch-turns", "8"), ("metrics",), steps=True),
    "eval": Work(
        ("--prompts", str(DATA / "prompts.jsonl"), "--max-prompts", "6", "--samples", "1", "--max-new-tokens", "24"),
        ("replies", "scores"),
    ),
    "rollout": Work(("--model", MODEL, "--max-new-tokens", "24"), ("sessions", "turns", "verdicts"), another=True),
}  # fmt: skip


def start(stage: str, run: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the command of a stage, with one thread: with two, the order of sums would vary."""
    work = WORK[stage]
    source = ["--from-run", str(run.parent / "source")] if work.another else []
    command = [*COMMAND, stage, str(run), *work.options, *source, *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command, which must succeed."""
    _, errors = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, errors.decode()


def undisturbed(folder: Path, stages: Iterable[str] = tuple(WORK)) -> Path:
    """Run each stage once, into `folder/run` (the rollout: into `folder/fresh`); return `folder`."""
    run = folder / "run"
    for stage in stages:
        if WORK[stage].another:
            (folder / "source").symlink_to(run)
        finish(start(stage, folder / "fresh" if WORK[stage].another else run))
    return folder


def begin(stage: str, whole: Path, folder: Path) -> Path:
    """Create in `folder` a run with all that `stage` reads and nothing that it writes; return its path."""
    folder.mkdir(parents=True)
    if WORK[stage].another:
        (folder / "source").symlink_to(whole / "run")
        return folder / "fresh"
    for earlier in itertools.takewhile(lambda name: name != stage, WORK):
        shutil.copytree(stage_dir(whole / "run", earlier), stage_dir(folder / "run", earlier))
    return folder / "run"


def progress(stage: str, run: Path) -> int:
    """Count the finished parts; for the training, the steps up to the last checkpoint."""
    if WORK[stage].steps:
        kept = sorted((stage_dir(run, stage) / "checkpoints").glob("step-*"))
        return int(kept[-1].stem.removeprefix("step-")) if kept else 0
    primary = WORK[stage].tables[0]
    return len(list((stage_dir(run, TABLES[primary].stage) / primary).glob("part-*.parquet")))


def killed(stage: str, run: Path, moments: random.Random, seconds: float) -> str | None:
    """Start the stage and kill it. Return a line about the kill, or None if the stage ended before the kill.

    `seconds` is about how long the command takes undisturbed.
    """
    before, more = progress(stage, run), moments.randrange(3)
    pause = moments.uniform(0, seconds if more == 0 else seconds / 10)
    process = start(stage, run)
    while process.poll() is None and progress(stage, run) < before + more:
        time.sleep(_POLL)
    time.sleep(pause)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert alive or process.returncode == 0, errors.decode()
    return f"{pause:.2f} s after {more} more, {progress(stage, run)} done" if alive else None


def differences(stage: str, run: Path, expected: Path) -> list[str]:
    """Return what the finished stage has lost, doubled, changed or left over, compared with the expected run."""
    found = []
    for name in WORK[stage].tables:
        folders = [stage_dir(r, TABLES[name].stage) / name for r in (run, expected)]
        ours, theirs = (pq.read_table(folder) for folder in folders)
        timed = [column for column in TIMED if column in ours.column_names]
        if not ours.drop_columns(timed).equals(theirs.drop_columns(timed)):
            found.append(f"{name} differs")
        parts = [f"part-{k:05d}.parquet" for k in range(count_parts(run, TABLES[name].stage))]
        if sorted(p.name for p in folders[0].iterdir()) != parts:
            found.append(f"{name} holds other files than its parts")
    home = stage_dir(run, TABLES[WORK[stage].tables[0]].stage)
    left = [path for folder in (run, *(p for p in run.rglob("*") if p.is_dir())) for path in find_left_overs(folder)]
    left += [*home.glob(".tmp/*"), *home.glob(".survey"), *home.glob("checkpoints")]
    found += [f"{path.relative_to(run)} is left" for path in left]
    if WORK[stage].steps:
        ours, theirs = (stage_dir(r, stage) / "model" / "model.safetensors" for r in (run, expected))
        found += [] if ours.read_bytes() == theirs.read_bytes() else ["the weights differ"]
    return found


def disturb(stage: str, kills: int, whole: Path, folder: Path, seed: int, say: Callable[[str], None]) -> list[str]:
    """Kill a stage `kills` times, over as many runs as that takes; finish each run, and return what differs."""
    moments = random.Random(f"{seed} {stage}")
    expected = whole / ("fresh" if WORK[stage].another else "run")
    seconds = 10.0
    found: list[str] = []
    done = 0
    for number in itertools.count():
        run = begin(stage, whole, folder / f"{stage}-{number}")
        while done < kills and (what := killed(stage, run, moments, seconds)) is not None:
            done += 1
            say(f"{stage}: kill {done} of {kills}, {what}")
        began = time.monotonic()
        finish(start(stage, run))
        seconds = min(seconds, 1 + time.monotonic() - began)
        found += [f"{stage}, run {number}: {what}" for what in differences(stage, run, expected)]
        shutil.rmtree(run.parent)
        if done >= kills:
            return found
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="of all stages together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    share = Counter(itertools.islice(itertools.cycle(WORK), options.kills))
    found: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        whole = undisturbed(Path(temporary) / "whole")
        print(f"seed {options.seed}: {dict(share)}", flush=True)
        for stage, kills in share.items():
            found += disturb(stage, kills, whole, Path(temporary) / stage, options.seed, partial(print, flush=True))
    print("\n".join(found) or f"{options.kills} kills: no row lost, doubled or changed, the same weights")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
