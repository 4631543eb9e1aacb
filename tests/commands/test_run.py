"""Tests of `opdkit run`: --set forms of the flags that errors name, checks before the first stage, and --dry-run."""

import importlib.util
import re
from pathlib import Path

import pytest
from runs import snapshot
from sample_world import MODEL
from small_logs import chat, jsonl
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands import forecast
from opdkit.commands.calibrate import command as calibrate
from opdkit.commands.run import add_set_forms, check_place
from opdkit.commands.show import command as show
from opdkit.config.calibrate import CalibrateConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.config.forecast import ForecastConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.pipeline import make_configurations
from opdkit.config.rollout import RolloutConfig
from opdkit.config.run import RunConfig
from opdkit.config.show import ShowConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.rollout import stage as rollout
from opdkit.store.part_writer import Stage
from opdkit.store.plans import identify_model
from opdkit.store.reviews import Review, append
from opdkit.store.tables import METRICS, TARGETS, VALIDATIONS


@pytest.mark.parametrize(
    ("stage", "message", "forms"),
    [
        ("judge", "Raise --max-new-tokens.", "--set judge.max_new_tokens=N"),
        ("teacher", "Raise --max-new-tokens.", "--set teacher.max_new_tokens=N"),
        ("train", "more --epochs, a smaller --batch-turns", "--set train.epochs=N --set train.batch_turns=N"),
        ("train", "look at --hint-placement of the teacher stage", "--set teacher.hint_placement=VALUE"),
        ("train", "try a stronger --judge or more --votes", "--set judge.votes=N"),
        ("train", "or pass --overwrite to throw away what train wrote", "--set train.overwrite=true"),
    ],
)
def test_flags_of_a_stage_have_set_forms(stage: str, message: str, forms: str) -> None:
    assert add_set_forms(message, stage) == f"{message} (with `opdkit run`: {forms})"


@pytest.mark.parametrize("message", ["a stronger --judge", "no flag at all - or --"])
def test_flags_of_run_itself_have_none(message: str) -> None:
    assert add_set_forms(message, "judge") == message


@pytest.mark.parametrize("command", [["judge", "RUN"], ["run", "RUN", "LOGS"], ["slurm", "RUN", "LOGS"]])
def test_nobody_judges_by_default(command: list[str], tmp_path: Path) -> None:
    """The error names the three judges and the use of each, in one sentence, and nothing is written."""
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    places = {"RUN": str(tmp_path / "run"), "LOGS": str(log)}
    done = CliRunner().invoke(app, [places.get(word, word) for word in command])
    assert done.exit_code == 2
    for words in ("--judge is missing", "(endpoint)", "(local)", "not to train on (rules)"):
        assert words in done.stderr
    assert ";" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["run", "slurm"])
def test_the_logs_are_named_here_or_in_the_file(command: str, tmp_path: Path) -> None:
    log, file = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v")), tmp_path / "opdkit.toml"
    file.write_text(f"[extract]\nlogs = [{str(log)!r}]\n", encoding="utf-8")
    words = [command, str(tmp_path / "run"), "--model", str(MODEL), "--judge", "rules"]
    words += ["--dry-run"] if command == "run" else []
    missing = CliRunner().invoke(app, words)
    assert (missing.exit_code, "LOGS is missing" in missing.stderr) == (2, True)
    done = CliRunner().invoke(app, [*words, "--config", str(file)])
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("where", ["flag", "set", "table"])
def test_the_judge_of_a_run_is_named_by_flag_set_or_table(where: str, tmp_path: Path) -> None:
    file = tmp_path / "opdkit.toml"
    file.write_text('[judge]\njudge = "rules"\n' if where == "table" else "", encoding="utf-8")
    options: dict[str, JSON] = {"flag": {"judge": "rules"}, "set": {"set": ("judge.judge=rules",)}, "table": {}}
    config = RunConfig(run=tmp_path / "run", logs=("x",), model="m", config=file, **options[where])
    assert make_configurations(config)["judge"].effective()["judge"] == "rules"


@pytest.mark.parametrize("table", ['[judge]\njudge = "local"\n', '[teacher]\nmodel = "m"\n[train]\nmodel = "m"\n'])
def test_a_local_judge_is_the_student_wherever_both_are_named(table: str, tmp_path: Path) -> None:
    file = tmp_path / "opdkit.toml"
    file.write_text(table, encoding="utf-8")
    flags: dict[str, JSON] = {"model": "m"} if "judge" in table else {"judge": "local"}
    made = make_configurations(RunConfig(run=tmp_path / "run", logs=("x",), config=file, **flags))
    judge = made["judge"].effective()
    assert (judge["judge"], judge["judge_model"]) == ("local", "m")


def test_an_explicit_shard_counts_in_every_stage_with_parts(tmp_path: Path) -> None:
    """In a task of a Slurm array, each stage would do the parts of that task only."""
    made = make_configurations(RunConfig(run=tmp_path / "run", logs=("x",), model="m", judge="rules", shard="0/1"))
    assert [stage.shard for stage in made.values()] == ["0/1", "0/1", "0/1", "auto"]


@pytest.mark.parametrize("command", ["run", "slurm"])
def test_a_teacher_of_several_processes_is_refused_before_the_first_stage(command: str, tmp_path: Path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    options = ["--model", str(MODEL), "--judge", "rules", "--set", "teacher.tensor_parallel=true"]
    done = CliRunner().invoke(app, [command, str(tmp_path / "run"), str(log), *options])
    assert (done.exit_code, "torchrun -m opdkit teacher" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_the_error_of_a_stage_has_them(tmp_path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v", model="m1"))
    options = ["--model", str(MODEL), "--judge", "rules", "--set", "extract.filter=model=m2"]
    command = ["run", str(tmp_path / "run"), str(log), *options]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "STAGE.OPTION=VALUE" in done.stderr
    assert "model=m2" in done.stderr


def test_a_stage_names_the_next_command_and_within_run_none_does(tmp_path: Path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v", "b", "w"))
    done = CliRunner().invoke(app, ["extract", str(tmp_path / "a"), str(log)])
    assert done.stderr.splitlines()[-1].startswith(f"Next: `opdkit judge {tmp_path / 'a'} --judge ")
    options = ["--model", str(MODEL), "--judge", "rules"]
    done = CliRunner().invoke(app, ["run", str(tmp_path / "b"), str(log), *options])
    assert "extract:" in done.stderr
    assert "Next: `opdkit judge" not in done.stderr


def test_a_damaged_later_stage_is_no_error_of_this_one(tmp_path: Path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v", "b", "w"))
    (tmp_path / "a" / "judge").mkdir(parents=True)
    (tmp_path / "a" / "judge" / "manifest.json").write_text("{")
    done = CliRunner().invoke(app, ["extract", str(tmp_path / "a"), str(log)])
    assert done.exit_code == 0
    assert "extract:" in done.stderr
    check_place("judge", JudgeConfig(run=tmp_path / "a", judge="local", judge_model=str(MODEL), overwrite=True))


@pytest.mark.parametrize("judge", ["rules", "endpoint"])
def test_a_run_judged_by_rules_is_warned_of_before_it_begins(judge: str, tmp_path: Path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v", model="m1"))
    options = ["--model", str(MODEL), "--judge", judge, "--set", "extract.filter=model=m2"]
    options += ["--judge-model", "m", "--judge-url", "http://127.0.0.1:9/v1"] if judge == "endpoint" else []
    said = CliRunner().invoke(app, ["run", str(tmp_path / "run"), str(log), *options]).stderr
    assert ("warning: " in said and "--judge rules" in said) == (judge == "rules")
    assert "model=m2" in said


def test_a_model_that_is_missing_or_mistyped_stops_the_first_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/qwen").mkdir(parents=True)
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    command = ["run", "run", str(log), "--judge", "local"]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr.startswith("error: --model is missing")) == (2, True)
    done = CliRunner().invoke(app, [*command, "--model", "models/qwem"])
    assert done.exit_code == 2
    for tried in (f"{tmp_path}/models/qwem", "in models: qwen"):
        assert tried in done.stderr
    teacher = ["--set", "teacher.teacher=big=models/qwem"]
    done = CliRunner().invoke(app, [*command, "--model", str(MODEL), *teacher])
    assert (done.exit_code, f"{tmp_path}/models/qwem" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_a_wrong_option_of_a_later_stage_stops_the_first(tmp_path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    for words in (["train.epochs=0"], ["train.epoch=1"], ["judge.good=nonsense"], ["teacher.support=3"]):
        command = ["run", str(tmp_path / "run"), str(log), "--model", "m", "--judge", "rules", "--set", *words]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, words
        assert "--judge is missing" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_each_stage_checks_its_inputs_once_and_before_the_first_begins(tmp_path, monkeypatch, plain_model_dir) -> None:
    checked: list[str] = []
    for stage in (ExtractConfig, JudgeConfig):
        monkeypatch.setattr(stage, "check_inputs", lambda self: checked.append(type(self).__name__))
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    options = ["--model", str(plain_model_dir), "--judge", "rules"]
    CliRunner().invoke(app, ["run", str(tmp_path / "run"), str(log), *options])
    assert checked == ["ExtractConfig", "JudgeConfig"]


# -- --dry-run -------------------------------------------------------------------------------------------------------


def dry_run(run: Path, log: Path, model: Path, *options: str) -> str:
    """Return what `opdkit run --dry-run` prints on stdout, and check that it writes nothing."""
    before = snapshot(run)
    command = ["run", str(run), str(log), "--model", str(model), *options, "--dry-run"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.strip().endswith("nothing written")
    assert snapshot(run) == before
    return done.stdout


def test_a_dry_run_bounds_what_it_cannot_count_yet(tmp_path, plain_model_dir) -> None:
    """Each stage that is done turns the bounds of the next stage into counts."""
    lines = [chat(f"Where is {n}?", "Nowhere.", "No, in metres.", "100", "thanks") for n in range(5)]
    log, run = jsonl(tmp_path / "log.jsonl", *lines), tmp_path / "run"
    options = ["--judge", "local", "--set", "judge.votes=2", "--set", "judge.max_new_tokens=4"]
    options += ["--set", "train.batch_turns=4", "--set", "train.epochs=2"]
    shown = dry_run(run, log, plain_model_dir, *options)
    assert not run.exists()
    assert "10 trainable" in shown.replace("of which ", "").replace("turns     10, ", "")
    for line in ("turns to judge +at most 10", "votes +at most 40", "replies to score +at most 20",
                 "optimizer steps +at most 10"):  # fmt: skip
        assert re.search(line, shown), line
    assert len(re.findall("waits for +extract", shown)) == 3
    assert re.search("votes +at most 20", dry_run(run, log, plain_model_dir, "--judge", "rules")), "it votes once"
    shown = dry_run(run, log, plain_model_dir, *options[:-2])
    assert re.search("optimizer steps +at most 250", shown), "5 steps, ten times, in five cycles: see fit_epochs"

    extract.run(ExtractConfig(run=run, logs=(str(log),)))
    shown = dry_run(run, log, plain_model_dir, *options, "--price", "1000,1000", "--measure", "2")
    assert re.search("parts +1, 1 done, 0 to do", shown)
    assert re.search("money, about +[1-9]", shown)
    assert re.search("time +.* as measured", shown)
    assert re.search("votes +40\n", shown)
    assert re.search("tokens to read +[0-9,]+\n", shown)
    assert len(re.findall("waits for +judge", shown)) == 2
    assert len(re.findall("waits for +extract", dry_run(run, log, plain_model_dir, *options, "--overwrite"))) == 3

    judge.run(JudgeConfig(run=run, judge="rules"))
    rules = ["--judge", "rules", "--set", "train.batch_turns=4"]
    shown = dry_run(run, log, plain_model_dir, *rules)
    assert re.search("replies to score +10\n", shown)
    assert len(re.findall("waits for +teacher", shown)) == 1


def test_edits_are_among_the_replies_that_a_dry_run_bounds(tmp_path, plain_model_dir) -> None:
    """Edits are scored even without `--teacher-samples`. With it, they take the place of samples."""
    said = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "edited": "b"}]
    log, run = jsonl(tmp_path / "log.jsonl", *[{"messages": said}] * 3), tmp_path / "run"
    (tmp_path / "map.toml").write_text('messages = "messages"\nedited = "edited"\n')
    options = ["--judge", "rules", "--set", f"extract.map={tmp_path}/map.toml", "--set", "train.epochs=1"]
    for samples in (0, 1):
        shown = dry_run(run, log, plain_model_dir, *options, "--set", f"teacher.teacher_samples={samples}")
        assert re.search("replies to score +at most 6", shown)


def test_a_dry_run_after_a_decision_bounds_the_training(tmp_path, plain_model_dir) -> None:
    """A part of the finished teacher stage must be recomputed, and an earlier training has another plan."""
    log, run = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v")), tmp_path / "run"
    extract.run(ExtractConfig(run=run, logs=(str(log),)))
    judge.run(JudgeConfig(run=run, judge="rules"))
    options, inputs = (
        TeacherConfig(run=run, model=str(plain_model_dir)),
        {"model": identify_model(str(plain_model_dir))},
    )
    stage = Stage.open(options, "teacher", [TARGETS], parts=1, upstream=["extract", "judge"], inputs=inputs)
    with stage.writing(0):
        pass
    append(run, [Review("log:1:1", hint_decided=True, hint="Be brief.")])
    shown = dry_run(run, log, plain_model_dir, "--judge", "rules")
    assert re.search("parts +1, 0 done, 1 to do", shown)
    assert re.search("waits for +teacher", shown)
    Stage.open(TrainConfig(run=run, model=str(plain_model_dir)), "train", [METRICS, VALIDATIONS], parts=1)
    command = ["run", str(run), str(log), "--model", str(plain_model_dir), "--judge", "rules", "--dry-run"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "inputs.reviews: null ->" in done.stderr


def test_a_dry_run_says_where_it_saw_the_beginning_of_a_log_alone(tmp_path, plain_model_dir) -> None:
    log = jsonl(tmp_path / "log.jsonl", *[chat("u", "a", "v")] * 1001)
    shown = dry_run(tmp_path / "run", log, plain_model_dir, "--judge", "rules")
    assert re.search("turns to judge +at most 1,000 for the first 1,000 lines per input", shown)


@pytest.mark.parametrize("options", [["--limit", "1"], ["--set", "train.epochs=0"], ["--model", "/no/model"]], ids=str)
def test_a_dry_run_fails_as_the_run_does(options, tmp_path, plain_model_dir) -> None:
    log, run = jsonl(tmp_path / "log.jsonl", *[chat("u", "a", "v")] * 3), tmp_path / "run"
    extract.run(ExtractConfig(run=run, logs=(str(log),)))
    command = ["run", str(run), str(log), "--model", str(plain_model_dir), "--judge", "rules", *options]
    before, errors = snapshot(run), []
    for more in (["--dry-run"], []):
        done = CliRunner().invoke(app, [*command, *more])
        errors.append((done.exit_code, done.stderr[done.stderr.index("error:") :]))
        assert snapshot(run) == before
    assert errors[0] == errors[1]


@pytest.mark.parametrize("option", [
    "train.dtype=float16", "train.tracker=wandb", "train.sharding=fsdp", "train.template_arg=a=1",
    "teacher.device=cuda:99", "train.device=cuda:99",
])  # fmt: skip
def test_what_a_later_stage_would_refuse_is_refused_before_the_first(
    option, tmp_path, plain_model_dir, monkeypatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: name != "wandb" and find_spec(name, *rest))
    log, run = jsonl(tmp_path / "log.jsonl", *[chat("u", "a", "v")] * 3), tmp_path / "run"
    command = ["run", str(run), str(log), "--model", str(plain_model_dir), "--judge", "rules", "--set", option]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert f"--{option.partition('.')[2].partition('=')[0].replace('_', '-')}" in done.stderr
    assert not run.exists()


def test_verdicts_on_another_extraction_are_refused_or_named(tmp_path, plain_model_dir, capsys) -> None:
    """Turn ids name places in a log, so old verdicts would be those of other replies."""
    log, run = jsonl(tmp_path / "log.jsonl", *[chat("u", "a", "No, in Celsius.")] * 3), tmp_path / "run"
    extract.run(ExtractConfig(run=run, logs=(str(log),)))
    judge.run(JudgeConfig(run=run, judge="rules"))
    jsonl(log, *[chat("u", "another", "No, in Celsius.")] * 3)
    command = ["run", str(run), str(log), "--model", str(plain_model_dir), "--judge", "rules", "--dry-run"]
    for words in (command, ["extract", str(run), str(log), "--dry-run"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert "bytes of the log" in done.stderr
    old = r"judge was computed from an older extract stage .* with --overwrite"
    extract.run(ExtractConfig(run=run, logs=(str(log),), overwrite=True))
    labels = jsonl(tmp_path / "labels.jsonl", {"turn_id": "log:1:1", "reward": 1})
    model = str(plain_model_dir)
    for again in (
        lambda: rollout.run(RolloutConfig(run=tmp_path / "fresh", from_run=run, model=model)),
        lambda: forecast.predict(ForecastConfig(run=run, model=model)),
        lambda: calibrate.measure(CalibrateConfig(run=run, labels=labels)),
    ):
        with pytest.raises(OpdkitError, match=old):
            again()
    show.run(ShowConfig(run=run))
    assert "judge: computed from an older extract stage than the one there now" in " ".join(
        capsys.readouterr().err.split()
    )
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(app, command[:-1] + more)
        assert done.exit_code == 1
        assert re.search(old + r".*\(with `opdkit run`: --set judge.overwrite=true\)", " ".join(done.stderr.split()))
