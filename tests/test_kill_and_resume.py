"""Tests of stages that are killed at random moments and resumed, and of shards: no row is lost, doubled or changed."""

from collections.abc import Iterator
from pathlib import Path

import kills
import pytest
from kills import begin, differences, disturb, finish, start, undisturbed

pytestmark = pytest.mark.slow
# `python -m tests.kills` kills all stages, and more often; train/test_kill_and_resume.py kills trainings.
KILLS = {"extract": 3, "judge": 2, "teacher": 2}


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
