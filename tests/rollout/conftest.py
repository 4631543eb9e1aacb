"""Fixtures: a judged run, a student that answers its hinted turns, and the options of a rollout."""

import shutil
from pathlib import Path

import pytest
import torch
from judged_runs import three_parts, write_run
from safetensors.torch import load_file, save_file

from opdkit.config.rollout import RolloutConfig
from opdkit.model.load import load_tokenizer


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """Return a run of three parts, each with two hinted turns and turns without a hint. No test writes into it."""
    return write_run(tmp_path_factory.mktemp("source") / "run", three_parts())


@pytest.fixture(scope="session")
def student(tmp_path_factory, plain_model_dir) -> Path:
    """Return a random model whose replies end within a dozen tokens about half of the time."""
    folder = Path(shutil.copytree(plain_model_dir, tmp_path_factory.mktemp("student") / "model"))
    weights = load_file(folder / "model.safetensors")
    with torch.no_grad():
        weights["lm_head.weight"][load_tokenizer(str(folder)).eos_token_id] *= -2.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def config(source, tmp_path, student):
    """Return a function that configures a rollout into tmp_path/new, with two short replies per prompt."""

    def make(run: Path | None = None, **options) -> RolloutConfig:
        defaults = {"from_run": source, "model": str(student), "device": "cpu", "samples": 2, "max_new_tokens": 12}
        return RolloutConfig(run=run or tmp_path / "new", **(defaults | options))

    return make
