"""Fixtures: a labelled run of sample_data, and its joined turns."""

from pathlib import Path

import pytest
from labelled_runs import labelled_run

from opdkit.commands.export.messages import TurnToExport, read_judged_turns
from opdkit.store.counters import Counters


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled_run(tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="session")
def judged(run: Path) -> dict[str, TurnToExport]:
    """Return turn_id -> turn, with session and verdict, in the run's order."""
    return {turn.turn_id: turn for turns in read_judged_turns(run, None, Counters()) for turn in turns}
