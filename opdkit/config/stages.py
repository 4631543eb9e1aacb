"""The stages: every option of each, declared once, a file a stage. Imports nothing heavy: `--help` answers at once."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opdkit.config.evaluate import EvalConfig
from opdkit.config.extract import FORMATS, ExtractConfig
from opdkit.config.fields import StageConfig, build
from opdkit.config.judge import JudgeConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.config.run import ORDER, RunConfig
from opdkit.config.shared import OBJECTIVES
from opdkit.config.slurm import SlurmConfig
from opdkit.config.teacher import PLACEMENTS, TeacherConfig
from opdkit.config.train import TrainConfig

__all__ = [
    "CONFIGURED", "FORMATS", "OBJECTIVES", "ORDER", "PLACEMENTS", "STAGES", "TOML_TABLES", "EvalConfig",
    "ExtractConfig", "JudgeConfig", "RolloutConfig", "RunConfig", "SlurmConfig", "TeacherConfig", "TrainConfig",
    "configure", "load_function", "stage_dir",
]  # fmt: skip

# stage -> its configuration, and "module:function" imported only when the stage runs.
STAGES: dict[str, tuple[type[StageConfig], str]] = {
    "extract": (ExtractConfig, "opdkit.extract.stage:run"),
    "judge": (JudgeConfig, "opdkit.judge.stage:run"),
    "teacher": (TeacherConfig, "opdkit.teacher.stage:run"),
    "train": (TrainConfig, "opdkit.train.stage:run"),
    "eval": (EvalConfig, "opdkit.evaluate.stage:run"),
    "rollout": (RolloutConfig, "opdkit.rollout.stage:run"),
}
# What a TOML file can configure: the stages, and the commands that run four of them.
CONFIGURED: dict[str, tuple[type[StageConfig], str]] = STAGES | {
    "run": (RunConfig, "opdkit.commands.run:run"),
    "slurm": (SlurmConfig, "opdkit.commands.slurm:run"),
}
TOML_TABLES = (*STAGES, "slurm")


def configure(command: str, flags: Mapping[str, Any], file: Path | None) -> StageConfig:
    """The configuration of a command: flags over its table in a TOML file over the defaults. Raises ConfigError."""
    own = file if command in TOML_TABLES else None  # run has no table: it hands the file on to its stages
    return build(CONFIGURED[command][0], flags, own, command, TOML_TABLES)


def load_function(target: str) -> Callable[..., Any]:
    """Return the function that "opdkit.judge.stage:run" names. Its module, and torch with it, is imported here."""
    module, _, name = target.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return function


def stage_dir(run: Path, stage: str) -> Path:
    """The folder of one stage in a run."""
    return run / stage
