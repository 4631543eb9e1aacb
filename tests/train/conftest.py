"""Fixtures: runs that are ready to train."""

import shutil
from pathlib import Path

import pytest
from scored_runs import toy_sessions, write_run


@pytest.fixture(scope="session")
def scored(tmp_path_factory, plain_model_dir) -> Path:
    """Write the run that every test copies."""
    return write_run(tmp_path_factory.mktemp("scored") / "run", plain_model_dir, toy_sessions(8))


@pytest.fixture
def run(scored, tmp_path) -> Path:
    return Path(shutil.copytree(scored, tmp_path / "run"))
