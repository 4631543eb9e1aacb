"""SIGKILL at random times, then the same command again: the same rows as without the kill, and the same from shards.

OPDKIT_KILLS sets how often each stage is killed (default 1); the moments come from a seed and are printed.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from opdkit.stages import home
from opdkit.store import part_count
from opdkit.tables import TABLES

ROOT = Path(__file__).parent.parent
DATA = ROOT / "sample_data"
KILLS = int(os.environ.get("OPDKIT_KILLS", "1"))
STAGES = {
    "extract": [str(DATA / "logs"), "--part-mb", "0.01", "--limit", "56"],
    "judge": ["--judge", "local", "--model", str(DATA / "model"), "--votes", "1", "--max-new-tokens", "32"],
    "teacher": ["--model", str(DATA / "model")],
}
pytestmark = pytest.mark.slow


def start(stage: str, run: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "opdkit", stage, str(run), *STAGES[stage], *more]
    # one thread: two of them would race for the sums' order on a machine with other work
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()


def tables_of(stage: str) -> list[str]:
    return [name for name, table in TABLES.items() if table.stage == stage]


def assert_same_rows(stage: str, run: Path, expected: Path) -> None:
    for name in tables_of(stage):
        ours, theirs = (pq.read_table(home(r, stage) / name) for r in (run, expected))
        assert ours.equals(theirs), f"{name} differs"  # values and order; the footers hold other seconds
        parts = sorted(p.name for p in (home(run, stage) / name).iterdir())
        assert parts == [f"part-{k:05d}.parquet" for k in range(part_count(run, stage))], "nothing but finished parts"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A run that nobody disturbed, and how long each stage took."""
    run, seconds = tmp_path_factory.mktemp("whole") / "run", {}
    for stage in STAGES:
        begin = time.monotonic()
        finish(start(stage, run))
        seconds[stage] = time.monotonic() - begin
    return run, seconds


def parts_done(stage: str, run: Path) -> int:
    return len(list((home(run, stage) / tables_of(stage)[0]).glob("*.parquet")))


def copy_up_to(stage: str, source: Path, target: Path) -> None:
    for earlier in list(STAGES)[: list(STAGES).index(stage)]:
        subprocess.run(["cp", "-r", "--", home(source, earlier), target / earlier], check=True)


@pytest.mark.parametrize("stage", STAGES)
def test_killed_and_resumed(stage: str, whole: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    """pitfall 25, pitfall 26: no truncated part at its final path, and nothing lost, doubled or changed."""
    expected, seconds = whole
    moments = random.Random(f"kill {stage}")
    killed = 0
    for number in range(KILLS):
        run = tmp_path / str(number)  # each from the start: a stage that is done cannot be killed
        run.mkdir()
        copy_up_to(stage, expected, run)
        parts = part_count(expected, stage)
        after, pause = moments.randrange(parts), moments.uniform(0, seconds[stage] / parts / 2)
        process = start(stage, run)
        while process.poll() is None and parts_done(stage, run) < after:
            time.sleep(0.005)
        time.sleep(pause)
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        print(f"{stage}: kill {number} {pause:.2f} s after part {after} of {parts}, {parts_done(stage, run)} done")
        finish(start(stage, run))
        assert_same_rows(stage, run, expected)
        assert not list((home(run, stage) / ".tmp").glob("*.parquet")), "what the dead left half-written is gone"
    assert 2 * killed >= KILLS, f"{killed} of {KILLS} kills hit: the test tested little"


@pytest.mark.parametrize("stage", STAGES)
def test_three_shards_in_three_processes(stage: str, whole: tuple[Path, dict[str, float]], tmp_path: Path) -> None:
    copy_up_to(stage, whole[0], tmp_path)
    for process in [start(stage, tmp_path, "--shard", f"{i}/3") for i in range(3)]:
        finish(process)
    assert_same_rows(stage, tmp_path, whole[0])
