"""Tests of a training that is killed and restarted: its model and metrics are those of an uninterrupted training.

OPDKIT_KILLS sets how often a training is killed (default 2); the moments come from a seed and are printed.
"""

import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from forked import Forked
from sample_world import MODEL
from scored_runs import toy_sessions, write_run

from opdkit.store import stopping
from opdkit.store.reading import read_all

KILLS = int(os.environ.get("OPDKIT_KILLS", "2"))
STEPS = 12  # 16 targets, 4 per step, 3 epochs
OPTIONS = ["--device", "cpu", "--batch-turns", "4", "--epochs", "3", "--learning-rate", "1e-3", "--warmup-steps", "2",
           "--kl-coef", "0.1", "--checkpoint-every", "1", "--validate", "0"]  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scored(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("sample") / "run", MODEL, toy_sessions(8))


def start(run: Path, *more: str) -> Forked:
    return Forked("train", str(run), "--model", str(MODEL), *OPTIONS, *more, log=run / "said")


def finish(process: Forked) -> None:
    code, said = process.end()
    assert code == 0, said


@pytest.fixture(scope="module")
def whole(scored, tmp_path_factory) -> Path:
    """Return a run that was trained without a kill."""
    run = Path(shutil.copytree(scored, tmp_path_factory.mktemp("whole") / "run"))
    finish(start(run))
    return run


def kill_after(step: int, pause: float, process: Forked, run: Path) -> bool:
    """Kill `pause` seconds after the checkpoint of `step`. Return whether the process was still at work."""
    checkpoint = run / "train" / "checkpoints" / f"step-{step:08d}.pt"
    while process.running and not checkpoint.exists():
        time.sleep(0.001)
    time.sleep(pause)
    process.signal(signal.SIGKILL)
    return process.end()[0] == -signal.SIGKILL


def assert_same(run: Path, expected: Path) -> None:
    timed = ("seconds", "tokens_per_second")
    ours, theirs = ([{k: v for k, v in row.items() if k not in timed} for row in read_all(r, "metrics")]
                    for r in (run, expected))  # fmt: skip
    assert [row["step"] for row in ours] == list(range(1, STEPS + 1)), "no gap, no double row"
    assert ours == theirs
    models = [p.relative_to(expected) for p in expected.glob("train/*/*.safetensors")]
    assert models
    assert all((run / p).read_bytes() == (expected / p).read_bytes() for p in models)
    assert not (run / "train" / "checkpoints").exists()
    assert not list((run / "train").glob(".model-*")), "what the dead left half-written is gone"


@pytest.mark.parametrize("options", [[], ["--lora-rank", "2"]], ids=["all weights", "LoRA"])
def test_a_killed_training_ends_with_the_same_bytes(scored, whole, tmp_path, options) -> None:
    """Optimizer, schedule, order, old policy and metrics are those of one undisturbed run; no file is truncated."""
    run = Path(shutil.copytree(scored, tmp_path / "killed"))
    if options:
        whole = Path(shutil.copytree(scored, tmp_path / "whole"))
        finish(start(whole, *options))
    draw = random.Random(f"kill {options}")
    steps = sorted(draw.sample(range(1, STEPS - 1), 1 if options else KILLS))
    hit = 0
    for step in steps:
        pause = draw.uniform(0, 0.05)
        hit += kill_after(step, pause, start(run, *options), run)
        kept = [p.name for p in (run / "train" / "checkpoints").glob("step-*.pt")]
        print(f"killed {pause:.3f} s after step {step}, {kept} kept")
    assert hit == len(steps), "a kill came too late to test anything"
    finish(start(run, *options))
    assert_same(run, whole)


@pytest.mark.parametrize("asked", [signal.SIGUSR1, signal.SIGTERM])
def test_asked_to_stop_it_keeps_the_step_under_way(scored, whole, tmp_path, asked) -> None:
    """Without --checkpoint-every, too, it exits with 75 and one checkpoint; resumed, it ends with equal bytes."""
    run = Path(shutil.copytree(scored, tmp_path / "run"))
    process = start(run, "--checkpoint-every", "0")
    while process.running and "step 2 of" not in read(process.log):
        time.sleep(0.001)
    process.signal(asked)
    code, said = process.end()
    assert code == stopping.TRY_AGAIN, said
    (step,) = re.findall(r"stopping after step (\d+) of", said)
    assert [p.name for p in (run / "train" / "checkpoints").iterdir()] == [f"step-{int(step):08d}.pt"]
    assert not (run / "train" / "metrics").exists()
    process = start(run, "--checkpoint-every", "0")
    finish(process)
    assert f"resuming after step {step} of" in read(process.log)
    assert_same(run, whole)


def read(log: Path) -> str:
    return log.read_text(encoding="utf-8") if log.exists() else ""
