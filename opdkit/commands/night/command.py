"""`opdkit night`: read what is new in the logs, judge it, train on it, and promote the model if it is better.

A night that was killed resumes where it stopped before a new night begins. Each step is a stage and resumes by itself.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from opdkit.commands.night.forget import finish_forgetting, forget, reset
from opdkit.commands.night.home import KEPT, PROMOTED, Home, Night
from opdkit.config.command_line import quote
from opdkit.config.commands import load_function
from opdkit.config.night import ForgetConfig, NightConfig
from opdkit.config.pipeline import make_configurations
from opdkit.config.run import PipelineConfig
from opdkit.config.train import TrainConfig
from opdkit.console import counted, print_line, say, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.checks import AFTER_CORRECTION, read_prompts
from opdkit.extract.news import collect_news, commit_news
from opdkit.extract.stage import choose_format
from opdkit.model.folder import check_stages


def run(config: NightConfig) -> None:
    """Finish the nights that are not over, then run tonight's. One line per night on stdout says how it ended.

    Raises OpdkitError if another night is running in the same home, or a stage fails; the same command resumes.
    """
    home = Home(config.home)
    with home.lock():
        finish_nights(home, config)
        check_unchanged(home, config)
        night = home.night(max((earlier.number for earlier in home.list_nights()), default=0) + 1)
        news = copy_news(home, night, config)
        home.keep_options(home.path / "options", config)
        if news:
            say(f"night {night.number}: {news}")
            finish_night(home, night, config)
        else:
            print_line(f"night {night.number}: nothing new in the logs")


def run_forget(config: ForgetConfig) -> None:
    """Remove sessions from all nights, and redo the nights from the first that read one, each with its own options.

    Raises OpdkitError for a folder without nights. The same command resumes after a kill.
    """
    home = Home(config.home)
    if not home.list_nights():
        raise OpdkitError(f"{config.home} has no nights: there is nothing to forget")
    with home.lock():
        # This may fail, so do it before anything is removed: models and files must be there, from this folder as well.
        last = home.read_options(home.path / "options")
        nights = home.list_nights()
        places = (night.folder / "options" for night in nights)
        for options in [last, *(home.read_options(place) for place in places if place.exists())]:
            configure_stages(home, home.night(nights[-1].number + 1), options)
        sessions = forget(home, config.where)
        say(f"{counted(sessions, 'session')} taken out")
        finish_nights(home, last)
    print_line(f"forgotten: {counted(sessions, 'session')}")


def finish_nights(home: Home, config: NightConfig) -> None:
    """Finish, in order, the nights that a kill, an error or `opdkit forget` left unfinished."""
    finish_forgetting(home)
    for night in home.list_nights():
        if not night.record.get("decision"):
            if night.news.exists():
                commit_news(home.ledger, night.news)
            say(f"night {night.number} resumes")
            try:
                finish_night(home, night, config)
            except OpdkitError:
                warn(f"night {night.number} cannot be finished; later logs wait until it is. Correct what the error "
                     "says, and run the same command again")  # fmt: skip
                raise


def copy_news(home: Home, night: Night, config: NightConfig) -> str:
    """Copy the new log records into the night's folder. Return their counts in words, or "" if there are none."""
    extract = configure_stages(home, night, config)["extract"]
    for log in map(Path, extract.logs):
        if home.path.resolve().is_relative_to(log.resolve()):
            raise ConfigError(f"LOGS {log} holds HOME {home.path}: nights would read what they wrote; keep them apart")
    news = collect_news(home.ledger, extract.logs, night.news, choose_format(extract), extract.max_line_mb * 1_000_000)
    if not news.night:
        return ""
    commit_news(home.ledger, night.news)
    return f"{counted(news.records, 'new record')} in {counted(news.inputs, 'log')}"


def finish_night(home: Home, night: Night, config: NightConfig) -> None:
    """Run the remaining steps of a night, and print on stdout how it ended. Raises what the stages raise."""
    promoted = home.find_promoted()
    if night.record and promoted not in (
        night.record["parent"], night.number, night.record.get("promotes"), home.find_promoted_by(night)
    ):  # fmt: skip
        say("another model was promoted since this night began: the night starts over with that model")
        reset(night)
    if (own := night.folder / "options").exists():
        say(f"night {night.number} is done again with its own options, in {own}")
        config = home.read_options(own)
    check_unchanged(home, config)
    run_steps = load_function("opdkit.commands.night.steps:run_steps")  # imported here: it imports torch
    record = run_steps(home, night, config, configure_stages(home, night, config))
    print_line(f"night {night.number}: {record['decision']}. {record['sentence']}")


def configure_stages(home: Home, night: Night, config: NightConfig) -> dict[str, Any]:
    """Return a night's configurations of extract, judge, teacher, train and eval, by name of the stage.

    Raises ConfigError for stage options that a night does not support, and OpdkitError for files and models that the
    stages cannot read.
    """
    parent = night.record["parent"] if night.record else home.find_promoted()
    model = home.night(parent).model  # the model that this night trains
    if parent and not model.is_dir():
        raise OpdkitError(f"{model}, which this night trains, was removed: promote another model with `opdkit models "
                          f"{quote(home.path)} --promote N`")  # fmt: skip
    pipeline = PipelineConfig(
        run=night.folder, logs=config.logs, model=str(model) if parent else config.model, judge=config.judge,
        judge_model=config.judge_model, judge_url=config.judge_url, config=config.config, set=config.set,
    )  # fmt: skip
    # The first model judges every night; by default, the judge would be the promoted model, which this night trains.
    stages: dict[str, Any] = {**make_configurations(pipeline, config.model, more=("eval",))}
    for name, stage in stages.items():
        if refused := next((option for option in ("limit", "dry_run", "overwrite") if vars(stage).get(option)), None):
            raise ConfigError(f"{refused} of {name} is not for nights: no later one reads what this one leaves out")
        if stage.shard != "auto":
            raise ConfigError(f"shard of {name} is not for nights: a night is a single process")
    teacher, train, evaluation = (stages[name] for name in ("teacher", "train", "eval"))
    if train.run != night.folder or train.holdout not in (TrainConfig.holdout, config.holdout):
        raise ConfigError("name and holdout of train are not for nights: one night is one training, with its --holdout")
    own = ("prompts", "from_log", "trained", "model", "max_prompts")
    refused = next((option for option in own if getattr(evaluation, option)), None)
    if refused or evaluation.run != night.folder:
        raise ConfigError(f"{refused or 'name'} of eval is not for nights: a night compares its own model with the "
                          "promoted one, on all of its tests and those of its own --prompts")  # fmt: skip
    # Each training makes a model follow hints less well, above all hints that reverse what it was taught. So the first
    # model stays the teacher.
    if not teacher.teacher and pipeline.model != config.model:
        stages["teacher"] = replace(teacher, teacher=(config.model,))
    stages["train"] = replace(train, holdout=config.holdout)
    stages["eval"] = replace(evaluation, from_log=True, prompts=None)
    check_stages(stages.values())
    if config.prompts is not None:
        check_prompts(Path(config.prompts))
    return stages


def check_unchanged(home: Home, config: NightConfig) -> None:
    """Raise ConfigError if `--holdout` or `--model` is not that of the nights before."""
    records = [night.record for night in home.list_nights()]
    shares = {record["holdout"] for record in records if "holdout" in record}
    if shares - {config.holdout}:
        raise ConfigError(f"--holdout is {config.holdout:g}, but {min(shares):g} in the nights before; keep that, or "
                          "sessions that were trained on would become tests")  # fmt: skip
    trained = (record for record in records if record.get("decision") in (KEPT, PROMOTED))
    if first := next((model for record in trained if (model := record.get("model", config.model)) != config.model), ""):
        raise ConfigError(f"--model is {config.model}, but {first} in the nights before: keep it, with a link if its "
                          "folder has moved; another model begins its own nights, in another HOME")  # fmt: skip


def check_prompts(path: Path) -> None:
    """Raise ConfigError for a line of `--prompts` that eval cannot read, or that lacks "corrected"."""
    prompts = (prompt for prompt in read_prompts(path) if prompt.domain != AFTER_CORRECTION)  # needs no "corrected"
    if missing := next((prompt.id for prompt in prompts if prompt.corrected is None), None):
        raise ConfigError(f'--prompts {path}, {missing}: "corrected" is missing; write true if users complained about '
                          "replies to such requests, else false")  # fmt: skip
