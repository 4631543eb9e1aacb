from pathlib import Path

import pytest
from judged_runs import three_parts, write_run

from opdkit.config.teacher import TeacherConfig


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", three_parts())


@pytest.fixture
def config(tiny_model_dir):
    """Return a function that makes configurations; unless an option says otherwise, only logged replies are scored."""
    defaults = {"model": str(tiny_model_dir), "device": "cpu", "teacher_samples": 0}
    return lambda run, **options: TeacherConfig(run=run, **(defaults | options))
