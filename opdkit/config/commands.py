"""Every command: its configuration, its function, one line of help, and one example that runs on sample_data.

A command's options are declared once, in its configuration: one file per command in this folder. Flags, TOML keys,
docs/commands.md and the file that `opdkit init` writes derive from them. Nothing heavy is imported here, so that
`opdkit --help` answers at once.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdkit.config.calibrate import CalibrateConfig
from opdkit.config.check import CheckConfig
from opdkit.config.demo import DemoConfig
from opdkit.config.doctor import DoctorConfig
from opdkit.config.evaluate import EvalConfig
from opdkit.config.export import ExportConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import CommandConfig, StageConfig, build
from opdkit.config.init import InitConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.report import ReportConfig
from opdkit.config.review import ReviewConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.config.run import RunConfig
from opdkit.config.show import ShowConfig
from opdkit.config.slurm import SlurmConfig
from opdkit.config.status import StatusConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig


@dataclass(frozen=True)
class Command:
    """Configuration, function and help of one command. `target` is "module:function", imported when the command runs.

    The function takes the configuration. It returns None, or an object whose `text()` is the closing line, or False
    for exit code 1.
    """

    config: type[CommandConfig]
    target: str
    help: str
    example: str
    is_stage: bool = False


# The examples, in this order, are a whole run on sample_data. A test runs them.
COMMANDS: dict[str, Command] = {
    "init": Command(
        InitConfig,
        "opdkit.commands.init:run",
        "Write a TOML file with every option, its meaning and its default.",
        "opdkit init runs/opdkit.toml --model sample_data/model --judge local",
    ),
    "doctor": Command(
        DoctorConfig,
        "opdkit.commands.doctor:run",
        "Check versions, devices, memory, model, server and logs, and say what to do. Exit code 1: something will not "
        "work.",
        "opdkit doctor sample_data/logs --model sample_data/model",
    ),
    "extract": Command(
        ExtractConfig,
        "opdkit.extract.stage:run",
        "Read conversation logs into sessions and turns.",
        "opdkit extract runs/try sample_data/logs",
        is_stage=True,
    ),
    "judge": Command(
        JudgeConfig,
        "opdkit.judge.stage:run",
        "Have a judge vote on every turn: a reward, and a hint at what was wanted.",
        "opdkit judge runs/try --judge local --judge-model sample_data/model --limit 40",
        is_stage=True,
    ),
    "teacher": Command(
        TeacherConfig,
        "opdkit.teacher.stage:run",
        "Score every judged reply, with and without the hint.",
        "opdkit teacher runs/try --model sample_data/model",
        is_stage=True,
    ),
    "train": Command(
        TrainConfig,
        "opdkit.train.stage:run",
        "Train the student on the teacher's and the judge's signal.",
        "opdkit train runs/try --model sample_data/model --learning-rate 1e-3 --batch-turns 8",
        is_stage=True,
    ),
    "eval": Command(
        EvalConfig,
        "opdkit.evaluate.stage:run",
        "Compare the model before and after on held-out prompts.",
        "opdkit eval runs/try --prompts sample_data/prompts.jsonl --max-new-tokens 48",
        is_stage=True,
    ),
    "rollout": Command(
        RolloutConfig,
        "opdkit.rollout.stage:run",
        "Have the student answer the hinted turns again, for an on-policy round.",
        "opdkit rollout runs/next --from-run runs/try --model runs/try/train/model --limit 10 --max-new-tokens 48",
        is_stage=True,
    ),
    "report": Command(
        ReportConfig,
        "opdkit.commands.report.command:run",
        "Write the run as one HTML file that opens offline: funnel, votes, hints, advantages, training.",
        "opdkit report runs/try",
    ),
    "run": Command(
        RunConfig,
        "opdkit.commands.run:run",
        "Extract, judge, teacher and train, with one configuration.",
        "opdkit run runs/all sample_data/logs --model sample_data/model --judge local --limit 40",
    ),
    "slurm": Command(
        SlurmConfig,
        "opdkit.commands.slurm:run",
        "Write the batch scripts of a run on a Slurm cluster, and submit them.",
        "opdkit slurm runs/cluster sample_data/logs --model sample_data/model --judge local --time 4:00:00",
    ),
    "show": Command(
        ShowConfig,
        "opdkit.commands.show.command:run",
        "Show turns: a list, or one whole, with its votes, hints and the advantage of every token.",
        "opdkit show runs/try --worst 1",
    ),
    "review": Command(
        ReviewConfig,
        "opdkit.commands.review.server:run",
        "Serve the report to a person who accepts, edits or strikes hints and rewards.",
        "opdkit review runs/try",
    ),
    "status": Command(
        StatusConfig,
        "opdkit.commands.status:run",
        "Show how far each stage is: parts, rows, rate, time left, last errors.",
        "opdkit status runs/try",
    ),
    "check": Command(
        CheckConfig,
        "opdkit.commands.check:run",
        "Verify a whole run: digests, schemas, keys between tables, ranges, finite values. Exit code 1: damage.",
        "opdkit check runs/try",
    ),
    "export": Command(
        ExportConfig,
        "opdkit.commands.export:run",
        "Write the judged turns as other trainers read them: TRL's, verl, OpenAI's fine-tuning.",
        "opdkit export runs/try runs/try/kto.parquet --to trl-kto",
    ),
    "calibrate": Command(
        CalibrateConfig,
        "opdkit.commands.calibrate:run",
        "Measure the judge against labels of people, and how many votes are worth paying for.",
        "opdkit calibrate runs/try sample_data/labels.jsonl",
    ),
    "demo": Command(
        DemoConfig,
        "opdkit.commands.demo:run",
        "Run the whole loop on sample_data on a CPU: a model improved by its own logs.",
        "opdkit demo",
    ),
}
STAGES = tuple(name for name, command in COMMANDS.items() if command.is_stage)
TOML_TABLES = (*STAGES, "slurm")  # `run` has no table: it hands the file on to its stages
CONFIGURED = tuple(name for name, command in COMMANDS.items() if issubclass(command.config, StageConfig))


def configure(command: str, flags: Mapping[str, Any], file: Path | None = None) -> Any:
    """Return the configuration of a command: flags over its table in a TOML file over the defaults.

    Raises ConfigError.
    """
    return build(COMMANDS[command].config, flags, file if command in TOML_TABLES else None, command, TOML_TABLES)


def load_function(target: str) -> Callable[..., Any]:
    """Return the function that "opdkit.judge.stage:run" names. Its module, and torch with it, is imported here."""
    module, _, name = target.partition(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return function
