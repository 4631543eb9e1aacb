"""The stages: every option of each, declared once, a file a stage. Imports nothing heavy: `--help` answers at once."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from opdkit.config import StageConfig, build
from opdkit.stages.evaluate import EvalConfig
from opdkit.stages.extract import FORMATS, ExtractConfig
from opdkit.stages.judge import JudgeConfig
from opdkit.stages.pipeline import ORDER, RunConfig, SlurmConfig
from opdkit.stages.rollout import RolloutConfig
from opdkit.stages.shared import OBJECTIVES
from opdkit.stages.teacher import PLACEMENTS, TeacherConfig
from opdkit.stages.train import TrainConfig

__all__ = [
    "CONFIGURED", "FORMATS", "OBJECTIVES", "ORDER", "PLACEMENTS", "STAGES", "TABLES_OF_TOML", "EvalConfig",
    "ExtractConfig", "JudgeConfig", "RolloutConfig", "RunConfig", "SlurmConfig", "TeacherConfig", "TrainConfig",
    "configure", "home", "imported",
]  # fmt: skip

# stage -> its configuration, and "module:function" imported only when the stage runs.
STAGES: dict[str, tuple[type[StageConfig], str]] = {
    "extract": (ExtractConfig, "opdkit.extract:run"),
    "judge": (JudgeConfig, "opdkit.judge:run"),
    "teacher": (TeacherConfig, "opdkit.teacher:run"),
    "train": (TrainConfig, "opdkit.train:run"),
    "eval": (EvalConfig, "opdkit.evaluate:run"),
    "rollout": (RolloutConfig, "opdkit.rollout:run"),
}
# What a TOML file can configure: the stages, and the commands that run four of them.
CONFIGURED: dict[str, tuple[type[StageConfig], str]] = STAGES | {
    "run": (RunConfig, "opdkit.pipeline:run"),
    "slurm": (SlurmConfig, "opdkit.slurm:run"),
}
TABLES_OF_TOML = (*STAGES, "slurm")


def configure(command: str, flags: Mapping[str, Any], file: Path | None) -> StageConfig:
    """The configuration of a command: flags over its table in a TOML file over the defaults. Raises ConfigError."""
    own = file if command in TABLES_OF_TOML else None  # run has no table: it hands the file on to its stages
    return build(CONFIGURED[command][0], flags, own, command, TABLES_OF_TOML)


def imported(target: str) -> Callable[..., Any]:
    """The function that "opdkit.judge:run" names; its module, and with it torch, is imported here and not above."""
    module, _, name = target.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return function


def home(run: Path, stage: str) -> Path:
    """The folder of one stage in a run."""
    return run / stage
