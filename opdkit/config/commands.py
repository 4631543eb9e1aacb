"""Every command: what configures it, what it does, the line of help and one example that runs on sample_data.

A command's options are declared once, in its configuration: a file per command in this folder.
Flags, docs/commands.md and the file that `opdkit init` writes derive from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdkit.config.calibrate import CalibrateConfig
from opdkit.config.export import ExportConfig
from opdkit.config.fields import CommandConfig, build
from opdkit.config.looking import CheckConfig, DemoConfig, StatusConfig
from opdkit.config.report import ReportConfig
from opdkit.config.review import ReviewConfig
from opdkit.config.setup import DoctorConfig, InitConfig
from opdkit.config.show import ShowConfig
from opdkit.config.stages import CONFIGURED
from opdkit.config.stages import configure as configure_stage


@dataclass(frozen=True)
class Command:
    """One command. `target` is "module:function", imported when the command runs.

    The function takes the configuration. It returns None; or something whose `text()` is the closing line; or, where
    the answer is a yes or no, False for exit code 1.
    """

    config: type[CommandConfig]
    target: str
    help: str
    example: str


def _stage(name: str, text: str, example: str) -> dict[str, Command]:
    return {name: Command(*CONFIGURED[name], text, example)}


# The examples, together and in this order, are a whole run on sample_data. A test runs them.
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
        "Look at versions, devices, memory, model, server and logs, and say what to do. Exit code 1: "
        "something will not work.",
        "opdkit doctor sample_data/logs --model sample_data/model",
    ),
    **_stage("extract", "Read conversation logs into sessions and turns.", "opdkit extract runs/try sample_data/logs"),
    **_stage(
        "judge",
        "Have a judge vote on every turn: a reward, and a hint at what was wanted.",
        "opdkit judge runs/try --judge local --model sample_data/model --limit 40",
    ),
    **_stage(
        "teacher",
        "Score every judged reply, as it was and knowing the hint.",
        "opdkit teacher runs/try --model sample_data/model",
    ),
    **_stage(
        "train",
        "Train the student on the teacher's and the judge's signal.",
        "opdkit train runs/try --model sample_data/model --learning-rate 1e-3 --batch-turns 8",
    ),
    **_stage(
        "eval",
        "Compare the model before and after on held-out prompts.",
        "opdkit eval runs/try --prompts sample_data/prompts.jsonl --max-new-tokens 48",
    ),
    **_stage(
        "rollout",
        "Have the student answer the hinted turns afresh: the on-policy round.",
        "opdkit rollout runs/next --from runs/try --model runs/try/train/model --limit 10 --max-new-tokens 48",
    ),
    "report": Command(
        ReportConfig,
        "opdkit.commands.report:run",
        "Write the run as one HTML file that opens offline: funnel, votes, hints, advantages, training.",
        "opdkit report runs/try",
    ),
    **_stage(
        "run",
        "Extract, judge, teacher and train, with one configuration.",
        "opdkit run runs/all sample_data/logs --model sample_data/model --judge local --limit 40",
    ),
    **_stage(
        "slurm",
        "Write the batch scripts of a run on a Slurm cluster, and submit them.",
        "opdkit slurm runs/cluster sample_data/logs --model sample_data/model --judge local --time 4:00:00",
    ),
    "show": Command(
        ShowConfig,
        "opdkit.commands.show:run",
        "Show turns: a list, or one whole, with its votes, hints and the advantage of every token.",
        "opdkit show runs/try --worst 1",
    ),
    "review": Command(
        ReviewConfig,
        "opdkit.commands.review:run",
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
        "The whole loop on sample_data on a CPU: a model improved by its own logs.",
        "opdkit demo",
    ),
}


def configure(command: str, flags: Mapping[str, Any], file: Path | None) -> CommandConfig:
    """The configuration of a command: flags over its table in a TOML file over the defaults. Raises ConfigError."""
    if command in CONFIGURED:
        return configure_stage(command, flags, file)
    return build(COMMANDS[command].config, flags, None, command, ())
