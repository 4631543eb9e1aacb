"""Tests of judge and teacher under a launcher: its processes share the parts and write the rows of a single process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kills import WORK, begin, differences, undisturbed

from opdkit.store.progress_marks import read_claim

pytestmark = pytest.mark.slow
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
              "--mixed_precision", "no", "--dynamo_backend", "no"]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("whole"), stages=("extract", "judge", "teacher"))


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
