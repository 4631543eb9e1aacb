"""Configurations of the stages of a pipeline, made from the options of `run`, `slurm` or `night`."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opdkit.config.commands import COMMANDS, configure
from opdkit.config.fields import (
    JSON,
    StageConfig,
    convert,
    did_you_mean,
    fields_of,
    find_option,
    parse_pairs,
    read_toml,
)
from opdkit.config.run import ORDER, PipelineConfig
from opdkit.errors import ConfigError


def make_configurations(
    config: PipelineConfig, own_judge: str | None = None, more: Sequence[str] = ()
) -> dict[str, StageConfig]:
    """Return the stages' configurations. `--set` wins over the flags of `run`, then the TOML file, then the defaults.

    `own_judge`: the model that `--judge local` uses if no judge model is named; None: the model that is trained.
    `more`: stages besides those of `run`.
    """
    stages = (*ORDER, *more)
    common: JSON = {"run": config.run, "limit": config.limit, "overwrite": config.overwrite or None,
                    "dry_run": config.is_dry_run or None}  # fmt: skip
    model: JSON = {"model": config.model, "seed": config.seed}
    costed: JSON = {name: getattr(config, name, None) for name in ("price", "measure")}  # `slurm` has neither
    parts: JSON = {"shard": None if config.shard == "auto" else config.shard}  # not for train, which has one part
    common_to_two = parts | costed | {"wording": config.wording}
    flags: dict[str, JSON] = {
        "extract": parts | {"logs": config.logs},
        "judge": {"judge": config.judge, "judge_model": config.judge_model, "judge_url": config.judge_url,
                  "criterion": config.criterion, "seed": config.seed, **common_to_two},
        "teacher": model | common_to_two,
        "train": model | {"objective": config.objective, "learning_rate": config.learning_rate},
    }  # fmt: skip
    overrides = _parse_overrides(config, stages)
    given = {name: common | flags.get(name, {}) | overrides.get(name, {}) for name in stages}
    table = read_toml(config.config, "--config").get("judge") if config.config else None
    is_local = (given["judge"]["judge"] or (table.get("judge") if isinstance(table, dict) else None)) == "local"
    made: dict[str, Any] = {}
    # Configure a local judge last: if --model is missing, the error is then about --model, not about --judge-model.
    for name in sorted(stages, key="judge".__eq__) if is_local else stages:
        student = {"judge_model": own_judge or made["train"].model} if name == "judge" and is_local else {}
        made[name] = configure(name, given[name], config.config, student)
    if made["teacher"].tensor_parallel:
        raise ConfigError("--tensor-parallel needs several processes, and here each teacher is one: run the stages one "
                          "by one, this one with torchrun -m opdkit teacher")  # fmt: skip
    if len({made[name].effective()["load_in_4bit"] for name in ("teacher", "train")}) > 1:
        raise ConfigError("--load-in-4bit must be the same for both: --set teacher.load_in_4bit=true --set "
                          "train.load_in_4bit=true")  # fmt: skip
    own, scored = (parse_pairs(made[name].template_arg, "--template-arg") for name in ("train", "teacher"))
    if own and own != scored:
        raise ConfigError("--template-arg must be the same for both: --set teacher.template_arg=NAME=VALUE --set "
                          "train.template_arg=NAME=VALUE; without the second, train takes that of teacher")  # fmt: skip
    return {name: made[name] for name in stages}


def _parse_overrides(config: PipelineConfig, stages: Sequence[str]) -> dict[str, JSON]:
    """Return {"judge": {"votes": 7}} for `--set judge.votes=7`, checked against the options of `stages`.

    A repeatable option keeps all its values. For any other option the last value counts, as on a command line.
    """
    overrides: dict[str, dict[str, Any]] = {}
    for text in config.set:
        ((path, value),) = parse_pairs([text], "--set").items()
        stage, _, name = path.replace("-", "_").partition(".")
        if stage not in stages:
            raise ConfigError(f"--set {path}: {did_you_mean(stage, stages)}, written STAGE.OPTION=VALUE")
        options = [field for field in fields_of(COMMANDS[stage].config) if not field.positional]
        field = find_option(stage, name, options, f"--set {path}: {stage}")
        if field.type in (str, Path) and not isinstance(value, (str, list) if field.is_list else str):
            value = text.partition("=")[2]  # the field is text: 1.10 must not become the number 1.1
        elif field.type in (int, float) and isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = field.type(value)  # a number as a flag takes it, and JSON does not: .5, +1
        value = convert(field, value, f"--set {path}")
        own = overrides.setdefault(stage, {})
        own[field.name] = (*own.get(field.name, ()), *value) if field.is_list else value
    return overrides
