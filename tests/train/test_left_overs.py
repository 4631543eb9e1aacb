"""Tests of a training that is killed at its very end, while it removes its last checkpoint."""

import json
from pathlib import Path

import pytest
from killed import killed
from scored_runs import train_config

from opdkit.commands.check import stage as check
from opdkit.config.check import CheckConfig
from opdkit.store.reading import part_path
from opdkit.train import stage as train


@pytest.mark.parametrize("name", ["unlink", "rmdir"])
def test_the_last_checkpoint(run: Path, plain_model_dir: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` names what is left, and removes it with --clean; the same train command removes it, too."""
    config = train_config(run, plain_model_dir, checkpoint_every=1, batch_turns=8, epochs=1)
    folder = run / "train" / "checkpoints"
    killed(
        lambda: train.run(config), Path, name,
        when=lambda path: path.is_relative_to(folder) and part_path(run, "metrics", 0).exists(),
    )  # fmt: skip
    assert folder.exists()
    model = (run / "train" / "model" / "model.safetensors").read_bytes()
    check.run(CheckConfig(run=run, json=True))
    assert json.loads(capsys.readouterr().out)["left_over"] == [str(folder)]
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    for remove in (lambda: train.run(config), lambda: check.run(CheckConfig(run=run, clean=True))):
        folder.mkdir(exist_ok=True)
        for path, content in kept.items():
            (folder / path).write_bytes(content)
        remove()
        assert not folder.exists()
    assert (run / "train" / "model" / "model.safetensors").read_bytes() == model
