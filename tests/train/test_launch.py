"""Tests of the configurations for `accelerate launch` that the documentation names."""

from pathlib import Path

import pytest
from accelerate import state
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType

from opdkit.config.train import TrainConfig
from opdkit.train.launch import start_accelerator

DOCS = Path(__file__).parents[2] / "docs"
WANTED = {  # machines, processes, type that accelerate derives
    "one-gpu": (1, 1, DistributedType.NO),
    "one-node": (1, 8, DistributedType.MULTI_GPU),
    "several-nodes-fsdp": (2, 16, DistributedType.MULTI_GPU),
}


@pytest.mark.parametrize("name", WANTED)
def test_accelerate_reads_the_configuration(name: str) -> None:
    """Accelerate's own loader, which `accelerate launch --config_file` uses, knows every key of the file."""
    file = DOCS / "accelerate" / f"{name}.yaml"
    config = load_config_from_file(str(file))
    assert (config.num_machines, config.num_processes, config.distributed_type) == WANTED[name]
    assert config.mixed_precision == "no"
    assert not config.fsdp_config
    words = ["--config_file", str(file), "-m", "opdkit", "train", "run", "--model", "m"]
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert (args.num_machines, args.num_processes) == WANTED[name][:2]
    assert args.multi_gpu == (WANTED[name][2] is DistributedType.MULTI_GPU)
    assert not args.use_fsdp
    assert defaults is not None


def test_every_configuration_is_named_in_the_documentation() -> None:
    assert {path.stem for path in (DOCS / "accelerate").iterdir()} == set(WANTED)
    text = (DOCS / "cluster.md").read_text(encoding="utf-8")
    assert all(f"accelerate/{name}.yaml" in text for name in WANTED)


def test_accelerate_neither_compiles_nor_rounds_the_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate's settings may ask for both, but opdkit has its own --compile, --dtype and reading of a student."""
    state.AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    accelerator = start_accelerator(TrainConfig(run=tmp_path, model="m", device="cpu"))
    assert (accelerator.state.dynamo_plugin.backend.value, accelerator.mixed_precision) == ("NO", "no")
