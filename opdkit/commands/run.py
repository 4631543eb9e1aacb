"""`opdkit run`: extract, judge, teacher and train, one after the other, with one configuration."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from opdkit.config.commands import COMMANDS
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig, fields_of
from opdkit.config.judge import WARNINGS
from opdkit.config.pipeline import make_configurations
from opdkit.config.run import ORDER, RunConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import ENOUGH_STEPS, MOST_CYCLES, MOST_EPOCHS, TrainConfig
from opdkit.console import print_facts, say, stdout, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.stage import check_logs
from opdkit.model.folder import check_stages
from opdkit.store.announce import list_models
from opdkit.store.counters import TRAINABLE_COUNT, TURN_COUNT, Counters, Summary
from opdkit.store.plans import check_options, has_stage
from opdkit.store.reading import is_complete, summary_of
from opdkit.store.reviews import find_known_inputs, find_outdated_targets
from opdkit.store.run_stage import run_stage

_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_PLACEHOLDERS = {bool: "true", int: "N", float: "X"}


def run(config: RunConfig) -> Summary:
    """Run the stages in order; each prints its closing line. Return the last one's summary.

    With `--dry-run` each stage reports what it would do. For a stage that reads an unfinished one, bounds are printed.
    """
    stages = make_configurations(config)  # all first: a wrong option of train must not cost hours of judging
    check_stages(stages.values())
    if stages["judge"].effective()["judge"] == "rules":
        warn(WARNINGS["rules"])
    for name in ORDER:
        with set_forms_added(name):
            check_plan(name, stages[name])
            check_place(name, stages[name])
    say(f"options of {', '.join(ORDER)} that `opdkit run` lacks are given as --set STAGE.OPTION=VALUE")
    reporting = [name for name in ORDER if not config.dry_run or find_first_unfinished(config, name) is None]
    extracted = Counters()
    for name in ORDER:
        with set_forms_added(name):
            if config.dry_run:
                stdout.print(name, style="bold")
            if name not in reporting:
                print_facts(bounds(config, name, stages, extracted))
            elif name == "extract" and "judge" in reporting and config.dry_run:  # extract is done: nothing to preview
                check_logs(cast(ExtractConfig, stages[name]))
                summary = summary_of(config.run, name)
                print_facts([("parts", f"{summary.parts:,}, {summary.parts_done:,} done, 0 to do")])
            else:
                summary = run_stage(name, stages[name])
        if name == "extract":
            extracted = summary.counters
        if summary.is_waiting:
            break
        if name in reporting[:-1]:
            say(replace(summary, next="").text())
    return summary


def check_plan(name: str, stage: StageConfig) -> None:
    """Raise OpdkitError if a stage was begun with other options, or training with other decisions of people."""
    if isinstance(stage, TeacherConfig) and stage.check_hints and has_stage(stage.run, name):
        from opdkit.teacher.hint_checks import choose_hint_judge  # imported here: it brings torch

        stage = replace(stage, **choose_hint_judge(stage))
    check_options(stage, name, find_known_inputs(stage.run, name))


def check_place(name: str, stage: StageConfig) -> None:
    """Raise ConfigError if a stage that is not done cannot run in this process: for its device, or for --sharding."""
    if not stage.overwrite and is_complete(stage.run, name):
        return
    if isinstance(stage, TrainConfig) and stage.sharding != "none":
        raise ConfigError("--sharding fsdp needs several processes, and here the training is one: run the stages one "
                          "by one, this one with accelerate launch -m opdkit train")  # fmt: skip
    if list_models(stage) and (device := vars(stage)["device"]) != "auto":
        from opdkit.model.load import resolve_device  # imported here: it brings torch

        resolve_device(device)


@contextlib.contextmanager
def set_forms_added(stage: str) -> Iterator[None]:
    """Add to the message of an error of `stage` what `add_set_forms` does."""
    try:
        yield
    except OpdkitError as error:
        error.args = (add_set_forms(str(error), stage),)
        raise


def find_first_unfinished(config: RunConfig, name: str) -> str | None:
    """Return the first stage before `name` that is not finished, or None. With `--overwrite`, no stage is finished."""
    for before in ORDER[: ORDER.index(name)]:
        if config.overwrite or not is_complete(config.run, before):
            return before
        if before == "teacher" and find_outdated_targets(config.run):
            return before
    return None


def bounds(
    config: RunConfig, name: str, stages: Mapping[str, StageConfig], extracted: Counters
) -> Iterator[tuple[str, str]]:
    """Yield (label, value) about a stage whose input is unfinished. `extracted`: counters of extract or its preview."""
    options = {stage: stages[stage].effective() for stage in ORDER}
    has_outcomes = options["judge"]["good"] or options["judge"]["bad"]  # they reward turns without a next state, too
    turns = extracted.total(TURN_COUNT if has_outcomes else TRAINABLE_COUNT)
    replies = turns + max(turns * stages["teacher"].plan()["teacher_samples"], extracted.labels("decisions")["edited"])
    steps = math.ceil(replies / options["train"]["batch_turns"])
    epochs = options["train"]["epochs"]
    # Without --epochs, see `fit_epochs`. If steps hold whole sessions, a step can be larger than a batch.
    steps = steps * epochs if epochs else MOST_CYCLES * min(MOST_EPOCHS * steps, steps + ENOUGH_STEPS - 1)
    votes = (2 if options["judge"]["judge_first"] else 1) * options["judge"]["votes"]
    counts = {
        "judge": {"turns to judge": turns, "votes": 2 * turns * (1 if options["judge"]["judge"] == "rules" else votes)},
        "teacher": {"replies to score": replies},
        "train": {"optimizer steps": steps},
    }
    yield "waits for", str(find_first_unfinished(config, name))
    part = " for the first 1,000 lines per input" if extracted.total("longer inputs") else ""
    for what, number in counts[name].items():
        yield what, f"at most {number:,}{part}"


def add_set_forms(message: str, stage: str) -> str:
    """Return an error message of `stage`, followed by `--set STAGE.OPTION=VALUE` for each flag in it that `run` lacks.

    If several stages have a flag, STAGE is `stage` if it has the flag, else the earliest of them.
    """
    own = {field.flag for field in fields_of(RunConfig)} - {"--overwrite"}  # of `run`: it discards all stages
    forms: list[str] = []
    for flag in dict.fromkeys(_FLAG.findall(message)):
        for name in (stage, *ORDER):
            field = next((f for f in fields_of(COMMANDS[name].config) if f.flag == flag), None)
            if field is not None and flag not in own:
                forms.append(f"--set {name}.{field.name}={_PLACEHOLDERS.get(field.type, 'VALUE')}")
                break
    return f"{message} (with `opdkit run`: {' '.join(forms)})" if forms else message
