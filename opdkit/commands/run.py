"""`opdkit run`: extract, judge, teacher and train, one after the other, with one configuration."""

import re
from collections.abc import Iterable
from typing import Any

from opdkit.config.commands import COMMANDS, configure
from opdkit.config.fields import JSON, StageConfig, convert, did_you_mean, fields_of, find_option, parse_pairs
from opdkit.config.judge import RULES_WARNING
from opdkit.config.run import ORDER, RunConfig
from opdkit.console import say, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.folder import check_model_folder
from opdkit.store.counters import Summary
from opdkit.store.run_stage import run_stage

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_PLACEHOLDERS = {bool: "true", int: "N", float: "X"}


def run(config: RunConfig) -> Summary:
    """Run the stages in order; each prints its closing line. Return the last one's summary."""
    stages = configurations(config)  # all of them first: a wrong option of train must not cost a night of judging
    check_models(stages.values())
    for stage in stages.values():
        stage.check_inputs()
    if stages["judge"].effective()["judge"] == "rules":
        warn(RULES_WARNING)
    say(f"options of {', '.join(ORDER)} that `opdkit run` lacks are given as --set STAGE.OPTION=VALUE")
    for name in ORDER:
        try:
            summary = run_stage(name, stages[name])
        except OpdkitError as error:
            error.args = (with_set_forms(str(error), name),)
            raise
        if name != ORDER[-1]:
            say(summary.text())
    return summary


def with_set_forms(message: str, stage: str) -> str:
    """Return an error of `stage`, followed by `--set STAGE.OPTION=VALUE` for each flag in it that `run` lacks.

    Of two stages that have the flag, `stage` counts, else the earlier one.
    """
    own = {field.flag for field in fields_of(RunConfig)}
    forms: list[str] = []
    for flag in dict.fromkeys(_FLAG.findall(message)):
        for name in (stage, *ORDER):
            field = next((f for f in fields_of(COMMANDS[name].config) if f.flag == flag), None)
            if field is not None and flag not in own:
                forms.append(f"--set {name}.{field.name}={_PLACEHOLDERS.get(field.type, 'VALUE')}")
                break
    return f"{message} (with `opdkit run`: {' '.join(forms)})" if forms else message


def configurations(config: RunConfig) -> dict[str, StageConfig]:
    """Return the stages' configurations: `--set` over the flags of `run` over the TOML file over the defaults."""
    common: JSON = {"run": config.run, "limit": config.limit, "overwrite": config.overwrite or None}
    judge_model = config.judge_model or (config.model if config.judge == "local" else None)
    model: JSON = {"model": config.model, "seed": config.seed}
    worded: JSON = {"wording": config.wording}
    flags: dict[str, JSON] = {
        "extract": {"logs": config.logs},
        "judge": {"judge": config.judge, "judge_model": judge_model, "judge_url": config.judge_url,
                  "seed": config.seed, **worded},
        "teacher": model | worded,
        "train": model | {"objective": config.objective, "learning_rate": config.learning_rate},
    }  # fmt: skip
    overrides = _overrides(config)
    return {name: configure(name, common | flags[name] | overrides.get(name, {}), config.config) for name in ORDER}


def check_models(stages: Iterable[StageConfig]) -> None:
    """Raise OpdkitError for a path among the models of these stages that holds no model."""
    for options in (stage.effective() for stage in stages):
        own = options["judge_model"] if options.get("judge") == "local" else options.get("model")
        for model in filter(None, [own, *options.get("teacher", [])]):
            check_model_folder(str(model))


def _overrides(config: RunConfig) -> dict[str, JSON]:
    """Return {"judge": {"votes": 7}} for `--set judge.votes=7`, checked against the stages' options.

    An option that may be repeated keeps all its values; of any other the last one counts, as on a command line.
    """
    overrides: dict[str, dict[str, Any]] = {}
    for path, value in (pair for text in config.set for pair in parse_pairs([text], "--set").items()):
        stage, _, name = path.replace("-", "_").partition(".")
        if stage not in ORDER:
            raise ConfigError(f"--set {path}: {did_you_mean(stage, ORDER)}, written STAGE.OPTION=VALUE")
        options = [field for field in fields_of(COMMANDS[stage].config) if not field.positional]
        field = find_option(stage, name, options, f"--set {path}: {stage}")
        value = str(value) if field.type is str and not field.is_list and not isinstance(value, str) else value
        value = convert(field, value, f"--set {path}")
        own = overrides.setdefault(stage, {})
        own[field.name] = (*own.get(field.name, ()), *value) if field.is_list else value
    return overrides
