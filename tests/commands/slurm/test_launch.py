"""Tests that only missing tasks are launched, and that errors are found before the queue instead of in a task."""

import json
from pathlib import Path

import pytest
from runs import talk, write_extract
from sample_world import DATA, MODEL
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands import run as opdkit
from opdkit.commands.slurm import launch as slurm
from opdkit.commands.slurm.launch import find_missing_shards
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.run import ORDER
from opdkit.config.slurm import SlurmConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.part_writer import Stage
from opdkit.store.reviews import Review, append
from opdkit.store.tables import METRICS, TARGETS, VALIDATIONS, VERDICTS


def config(run: Path, **options) -> SlurmConfig:
    return SlurmConfig(
        **({"run": run, "logs": (str(DATA / "logs"),), "model": str(MODEL), "judge": "rules", "shards": 2} | options)
    )


def begun(run: Path, *done: int) -> Path:
    """Write a run with extract done in 3 parts, and of the judge stage the parts `done`."""
    write_extract(run, {f"s{n}": talk("do it", "done", "thanks") for n in range(6)})
    stage = Stage.open(JudgeConfig(run=run, judge="rules"), "judge", [VERDICTS], parts=3, upstream=["extract"])
    for part in done:
        with stage.writing(part):
            pass
    return run


def test_a_new_run(tmp_path: Path) -> None:
    launch = slurm.run(config(tmp_path / "r"))
    assert launch.tasks == {"extract": 2, "judge": 2, "teacher": 2, "train": 1}
    written = {p.name for p in (tmp_path / "r" / "slurm").iterdir()}
    assert written == {"extract.sbatch", "judge.sbatch", "teacher.sbatch", "train.sbatch", "submit.sh", "logs"}


def test_only_what_is_missing(tmp_path: Path) -> None:
    """Of parts 0, 1, 2 in two shards, shard 1 has part 1 alone. In five shards, shards 3 and 4 have no part."""
    run = begun(tmp_path / "r", 0, 2)
    assert [find_missing_shards(run, stage, 2) for stage in ORDER] == [[], [1], [0, 1], [0]]
    assert find_missing_shards(run, "teacher", 5) == [0, 1, 2]
    with pytest.raises(ConfigError, match="another plan"):  # made by hand with other options than config()
        slurm.run(config(run))


def test_another_training_of_a_run_that_has_one(tmp_path: Path) -> None:
    """A named training has its own plan and parts, not those of the training without a name."""
    run = tmp_path / "r"
    train = Stage.open(TrainConfig(run=run, model=str(MODEL)), "train", [METRICS, VALIDATIONS], parts=1)
    with train.writing(0):
        pass
    assert "train" not in slurm.run(config(run)).tasks
    launch = slurm.run(config(run, set=("train.name=b", "train.epochs=3")))
    assert launch.tasks["train"] == 1
    assert f"{run}/b.training" in (launch.folder / "train.sbatch").read_text()


def test_another_plan_is_refused_before_the_queue(tmp_path: Path) -> None:
    run = tmp_path / "r"
    Stage.open(JudgeConfig(run=run, judge="rules"), "judge", [VERDICTS], parts=1)
    with pytest.raises(ConfigError, match=r"config\.votes: 5 -> 7") as error:
        slurm.run(config(run, set=("judge.votes=7",)))
    assert str(error.value).endswith(f"or remove {run / 'judge'} first"), "slurm takes no --overwrite"
    assert not (run / "slurm").exists()


@pytest.mark.parametrize(("options", "message"), [
    ({"logs": ("nowhere.jsonl",)}, "nowhere.jsonl does not exist"),
    ({"model": "./nowhere"}, "nowhere does not exist"),
    ({"set": ("train.epoch=2",)}, "did you mean 'epochs'"),
    ({"model": None}, "--model is missing"),
    ({"wording": Path("nowhere.toml")}, "--wording nowhere.toml"),
    ({"judge": "batch", "judge_model": "m", "set": ("judge.out=requests.jsonl",)}, "--judge batch with --out"),
    ({"set": ("train.shard=0/4",)}, r"train\.shard"),
    ({"set": ("train.sharding=fsdp",)}, r"train\.sharding .*--gpus train=N, or --processes"),
    ({"set": ("train.device=cuda:0",), "gpus": ("train=2",)}, r"train\.device"),
])  # fmt: skip
def test_what_a_task_would_find_out_too_late(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(OpdkitError, match=message):
        slurm.run(config(tmp_path / "r", **options))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("options", [
    {"set": ("train.sharding=fsdp",), "processes": 2},
    {"set": ("train.sharding=fsdp",), "gpus": ("train=a100:2",)},
    {"set": ("train.sharding=fsdp",), "nodes": 2},
    {"set": ("train.device=cuda:0",), "gpus": ("2", "train=1")},
    {"set": ("train.device=cpu",), "nodes": 2},
])  # fmt: skip
def test_options_that_fit_the_processes_of_the_training(tmp_path: Path, options: dict) -> None:
    assert slurm.run(config(tmp_path / "r", **options)).tasks["train"] == 1


@pytest.mark.parametrize("stage", ORDER)
def test_no_stage_is_discarded_by_a_task_that_is_queued_again(tmp_path: Path, stage: str) -> None:
    run, file = tmp_path / "r", tmp_path / "c.toml"
    file.write_text(f"[{stage}]\noverwrite = true\n", encoding="utf-8")
    for options in ({"set": (f"{stage}.overwrite=true",)}, {"config": file}):
        with pytest.raises(ConfigError, match=rf"{stage}\.overwrite.*remove {run / stage} first"):
            slurm.run(config(run, **options))
    with pytest.raises(ConfigError, match=rf"remove {run}/b\.training/train first"):
        slurm.run(config(run, set=("train.overwrite=true", "train.name=b")))
    assert not run.exists()


def test_no_sbatch_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OpdkitError, match="sbatch is not here"):
        slurm.run(config(tmp_path / "r", submit=True))


def judged_run(folder: Path) -> tuple[Path, dict[str, tuple[str]]]:
    """Return a run whose only reply is judged, and the `logs` option for `slurm`."""
    log, run = folder / "log.jsonl", folder / "r"
    messages = [{"role": role, "content": f"{n}"} for n, role in enumerate(("user", "assistant", "user"))]
    log.write_text(json.dumps({"messages": messages}) + "\n")
    opdkit.run_stage("extract", ExtractConfig(run=run, logs=(str(log),), shard="0/1"))
    opdkit.run_stage("judge", JudgeConfig(run=run, judge="rules", shard="0/1"))
    return run, {"logs": (str(log),)}


def test_the_teacher_that_tests_hints_resumes(tmp_path: Path) -> None:
    """The stage's manifest names the judge of the hint test, although no option of this launch does."""
    run, given = judged_run(tmp_path)
    options = TeacherConfig(run=run, model=str(MODEL), check_hints=2, judge_model=str(MODEL))
    Stage.open(options, "teacher", [TARGETS], parts=1, upstream=["extract", "judge"])
    assert slurm.run(config(run, **given, set=("teacher.check_hints=2",))).tasks == {"teacher": 1, "train": 1}
    with pytest.raises(ConfigError, match=r"config\.check_hints: 2 -> 3"):
        slurm.run(config(run, **given, set=("teacher.check_hints=3",)))


def test_a_training_of_before_the_decisions_in_force_is_refused(tmp_path: Path) -> None:
    """Without the refusal, the tasks would score the reply again, but leave the training as it is."""
    run, given = judged_run(tmp_path)
    teacher = TeacherConfig(run=run, model=str(MODEL))
    stages = {"teacher": Stage.open(teacher, "teacher", [TARGETS], parts=1, upstream=["extract", "judge"])}
    tables = [METRICS, VALIDATIONS]
    stages["train"] = Stage.open(TrainConfig(run=run, model=str(MODEL)), "train", tables, parts=1, upstream=["teacher"])
    for stage in stages.values():
        with stage.writing(0):
            pass
    assert slurm.run(config(run, **given)).tasks == {}
    append(run, [Review("log:1:1", hint_decided=True, hint="Be brief.")])
    with pytest.raises(ConfigError, match=r"train was begun under another plan:\n  inputs\.reviews: null -> "):
        slurm.run(config(run, **given))
    assert slurm.run(config(run, **given, set=("train.name=b",))).tasks == {"teacher": 1, "train": 1}


def test_logs_whose_names_are_redacted_are_the_same_logs(tmp_path: Path) -> None:
    """The plan of extract holds the names of the logs as its session ids do: redacted."""
    log, run = tmp_path / "anna@example.com.jsonl", tmp_path / "r"
    messages = [{"role": role, "content": f"{n}"} for n, role in enumerate(("user", "assistant", "user"))]
    log.write_text(json.dumps({"messages": messages}) + "\n")
    opdkit.run_stage("extract", ExtractConfig(run=run, logs=(str(log),), redact=True, shard="0/1"))
    launch = slurm.run(config(run, logs=(str(log),), set=("extract.redact=true",)))
    assert launch.tasks == {"judge": 1, "teacher": 1, "train": 1}


def test_logs_that_have_grown_and_stages_that_are_outdated_are_refused(tmp_path: Path) -> None:
    """`opdkit run` would refuse them as well, but only after the wait in the queue."""
    log = tmp_path / "log.jsonl"
    messages = [{"role": role, "content": f"{n}"} for n, role in enumerate(("user", "assistant", "user"))]
    talked = json.dumps({"messages": messages}) + "\n"
    log.write_text(talked)
    given = {"logs": (str(log),)}
    run = tmp_path / "r"
    opdkit.run_stage("extract", ExtractConfig(run=run, logs=given["logs"], shard="0/1"))
    opdkit.run_stage("judge", JudgeConfig(run=run, judge="rules", shard="0/1"))
    assert slurm.run(config(run, **given)).tasks == {"teacher": 1, "train": 1}
    log.write_text(2 * talked)
    with pytest.raises(ConfigError, match=r"other logs:\n  bytes of the log\.log: \d+ -> \d+"):
        slurm.run(config(run, **given))
    opdkit.run_stage("extract", ExtractConfig(run=run, logs=given["logs"], shard="0/1", overwrite=True))
    with pytest.raises(OpdkitError, match="was computed from an older extract stage"):
        slurm.run(config(run, **given))
    shown = CliRunner().invoke(app, ["status", str(run)])
    assert "judge: computed from an older extract stage than the one there now" in " ".join(shown.stdout.split())
