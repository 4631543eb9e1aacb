"""Every command: its configuration, its function, and one example that runs on sample_data.

A command's options are declared once, in its configuration class in this folder, whose docstring is the command's help.
Flags, TOML keys, docs/commands.md and the file that `opdkit init` writes derive from that class. Nothing heavy is
imported here, so that `opdkit --help` answers at once.
"""

import gc
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdkit.config.blame import BlameConfig
from opdkit.config.calibrate import CalibrateConfig
from opdkit.config.check import CheckConfig
from opdkit.config.compare import CompareConfig
from opdkit.config.demo import DemoConfig
from opdkit.config.doctor import DoctorConfig
from opdkit.config.evaluate import EvalConfig
from opdkit.config.export import ExportConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON, CommandConfig, convert, did_you_mean, fields_of, find_option, read_toml
from opdkit.config.forecast import ForecastConfig
from opdkit.config.gate import GateConfig
from opdkit.config.init import InitConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.night import ForgetConfig, ModelsConfig, NightConfig
from opdkit.config.report import ReportConfig
from opdkit.config.review import ReviewConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.config.run import RunConfig
from opdkit.config.show import ShowConfig
from opdkit.config.slurm import SlurmConfig
from opdkit.config.status import StatusConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError


@dataclass(frozen=True)
class Command:
    """Configuration, function and example of one command.

    The function takes the configuration. It returns None, an object whose `text()` is the closing line, or False for
    exit code 1.
    """

    config: type[CommandConfig]
    target: str  # "module:function", imported when the command runs
    example: str

    @property
    def help(self) -> str:
        """Return the docstring of the configuration on one line."""
        return " ".join((self.config.__doc__ or "").split())


# In this order the examples form a whole run on sample_data. A test runs them.
COMMANDS: dict[str, Command] = {
    "init": Command(
        InitConfig, "opdkit.commands.init:run", "opdkit init runs/opdkit.toml --model sample_data/model --judge local"
    ),
    "doctor": Command(
        DoctorConfig, "opdkit.commands.doctor.report:run", "opdkit doctor sample_data/logs --model sample_data/model"
    ),
    "extract": Command(ExtractConfig, "opdkit.extract.stage:run", "opdkit extract runs/try sample_data/logs"),
    "judge": Command(
        JudgeConfig,
        "opdkit.judge.stage:run",
        "opdkit judge runs/try --judge local --judge-model sample_data/model --limit 40",
    ),
    "teacher": Command(TeacherConfig, "opdkit.teacher.stage:run", "opdkit teacher runs/try --model sample_data/model"),
    "train": Command(
        TrainConfig,
        "opdkit.train.stage:run",
        "opdkit train runs/try --model sample_data/model --batch-turns 8",
    ),
    "eval": Command(
        EvalConfig,
        "opdkit.evaluate.stage:run",
        "opdkit eval runs/try --prompts sample_data/prompts.jsonl --max-new-tokens 48",
    ),
    "rollout": Command(
        RolloutConfig,
        "opdkit.rollout.stage:run",
        "opdkit rollout runs/next --from-run runs/try --model runs/try/train/model --limit 10 --max-new-tokens 48",
    ),
    "report": Command(ReportConfig, "opdkit.commands.report.command:run", "opdkit report runs/try"),
    "run": Command(
        RunConfig,
        "opdkit.commands.run:run",
        "opdkit run runs/all sample_data/logs --model sample_data/model --judge local --limit 40",
    ),
    "compare": Command(
        CompareConfig,
        "opdkit.commands.compare:run",
        "opdkit compare runs/try runs/all --prompts sample_data/prompts.jsonl",
    ),
    "gate": Command(GateConfig, "opdkit.commands.gate:run", "opdkit gate runs/try"),
    "night": Command(
        NightConfig,
        "opdkit.commands.night.command:run",
        "opdkit night runs/nights sample_data/logs --model sample_data/model --judge local",
    ),
    "models": Command(ModelsConfig, "opdkit.commands.night.models:run", "opdkit models runs/nights"),
    "forget": Command(
        ForgetConfig,
        "opdkit.commands.night.command:run_forget",
        "opdkit forget runs/nights --where metadata.id=chat-3",
    ),
    "blame": Command(BlameConfig, "opdkit.commands.blame:run", "opdkit blame runs/try"),
    "slurm": Command(
        SlurmConfig,
        "opdkit.commands.slurm.launch:run",
        "opdkit slurm runs/cluster sample_data/logs --model sample_data/model --judge local --time 4:00:00",
    ),
    "show": Command(ShowConfig, "opdkit.commands.show.command:run", "opdkit show runs/try --worst 1"),
    "review": Command(ReviewConfig, "opdkit.commands.review.server:run", "opdkit review runs/try"),
    "status": Command(StatusConfig, "opdkit.commands.status:run", "opdkit status runs/try"),
    "check": Command(CheckConfig, "opdkit.commands.check.stage:run", "opdkit check runs/try"),
    "export": Command(
        ExportConfig, "opdkit.commands.export.command:run", "opdkit export runs/try runs/try/kto.parquet --to trl-kto"
    ),
    "calibrate": Command(
        CalibrateConfig, "opdkit.commands.calibrate.command:run", "opdkit calibrate runs/try sample_data/labels.jsonl"
    ),
    "forecast": Command(
        ForecastConfig,
        "opdkit.commands.forecast:run",
        "opdkit forecast runs/try --model sample_data/model --hints 6 --max-new-tokens 48",
    ),
    "demo": Command(DemoConfig, "opdkit.commands.demo:run", "opdkit demo"),
}
STAGES = ("extract", "judge", "teacher", "train", "eval", "rollout")
TOML_TABLES = (*STAGES, "slurm", "night")  # `run` has no table: it passes the file on to its stages
CONFIGURED = (*STAGES, "run", "slurm", "night")  # these take --config


def configure(
    command: str, flags: Mapping[str, Any], file: Path | None = None, defaults: Mapping[str, Any] | None = None
) -> Any:
    """Return the configuration of a command. Flags (None = not given) win over its table in a TOML file, then defaults.

    `defaults` replace some of the command's own defaults. Raises ConfigError.
    """
    cls = COMMANDS[command].config
    document = read_toml(file, "--config") if file is not None and command in TOML_TABLES else {}
    for name in document:
        if name not in TOML_TABLES:
            raise ConfigError(f"--config {file}: unknown table [{name}]; {did_you_mean(name, TOML_TABLES)}")
    table = document.get(command, {})
    if not isinstance(table, dict):
        raise ConfigError(f"--config {file}: {command} must be a table, written [{command}]")
    values: JSON = {}
    options = [field for field in fields_of(cls) if field.name not in ("run", "home", "config")]
    for key, value in table.items():
        field = find_option(command, key, options, f"--config {file}: [{command}]")
        if field.name in values:
            raise ConfigError(f"--config {file}: [{command}] has {field.name} twice, with - and with _; remove one")
        values[field.name] = convert(field, value, f"--config {file}: [{command}] {key}")
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    return cls(**{**(defaults or {}), **values, **given})


def load_function(target: str) -> Callable[..., Any]:
    """Return the function with a name such as "opdkit.judge.stage:run". This imports its module, and torch with it.

    Before that, it sets GOMP_SPINCOUNT for this process and its children, unless the user has set how threads wait.
    """
    # GNU OpenMP reads this when torch loads it: the number of times that a thread which waits for another one spins
    # before it sleeps. 3000 is some tens of microseconds. The default is milliseconds: on two cores, with one used by
    # another process, everything takes five times as long. Sleeping at once is slower when no other process runs.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    module, _, name = target.partition(":")
    is_collecting = gc.isenabled()
    gc.disable()  # torch and transformers create a million lasting objects, and scanning them takes seconds
    try:
        function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    finally:
        if is_collecting:
            gc.enable()
    return function
