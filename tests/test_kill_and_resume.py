"""Tests of stages that are killed and resumed, of shards, and of launchers: no row is lost, doubled or changed."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kills
import pytest
from kills import WORK, begin, differences, disturb, finish, start, undisturbed

from opdkit.store.progress_marks import read_claim

pytestmark = pytest.mark.slow
# `python -m tests.kills` kills all stages, and more often; train/test_kill_and_resume.py kills trainings.
KILLS = {"extract": 3, "judge": 2, "teacher": 2}
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _warm(warm_path: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", warm_path)
        patch.setattr(kills, "COMMAND", ["opdkit"])
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("whole"), stages=KILLS)


@pytest.mark.parametrize("stage", KILLS)
def test_killed_and_resumed(stage: str, whole: Path, tmp_path: Path) -> None:
    """No file is truncated at its final path, and no row is lost, doubled or changed."""
    assert disturb(stage, KILLS[stage], whole, tmp_path, seed=0, say=print) == []


@pytest.mark.parametrize("stage", KILLS)
def test_three_shards_in_three_processes(stage: str, whole: Path, tmp_path: Path) -> None:
    run = begin(stage, whole, tmp_path / "shards")
    for process in [start(stage, run, "--shard", f"{i}/3") for i in range(3)]:
        finish(process)
    assert differences(stage, run, whole / "run") == []


@pytest.mark.parametrize(("stage", "launcher"), [("judge", ACCELERATE), ("teacher", TORCHRUN)])
def test_processes_of_a_launcher_take_parts_by_rank(stage: str, launcher: list[str], whole: Path, tmp_path: Path):
    run = begin(stage, whole, tmp_path / "shards")
    command = [sys.executable, "-m", *launcher, "-m", "opdkit", stage, str(run), *WORK[stage].options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    workers = set()
    while process.poll() is None:
        claims = map(read_claim, (run / stage / ".tmp").glob("*.running"))
        workers |= {claim.pid for claim in claims if claim}
        time.sleep(0.01)
    assert process.returncode == 0, process.communicate()[1]
    assert len(workers) == 2, "a launcher that starts one process alone gives the same rows"
    assert differences(stage, run, whole / "run") == []
