"""Tests of several trainings on the targets of one run: each has its own folder, and they share the earlier stages."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from checked_runs import recommit
from named_trainings import train_named, two_trainings

import opdkit
from opdkit.commands.blame import write_commands
from opdkit.commands.check.stage import examine
from opdkit.commands.check.stage import run as check
from opdkit.commands.compare import choose_runs
from opdkit.commands.status import run as status
from opdkit.config.check import CheckConfig
from opdkit.config.commands import configure
from opdkit.config.compare import CompareConfig
from opdkit.config.evaluate import EvalConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.status import StatusConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge import stage as judge
from opdkit.store.plans import find_redone_upstream, list_trainings, stage_dir
from opdkit.store.reading import part_path, read_all
from opdkit.train import stage as train


@pytest.fixture(scope="module")
def made(tmp_path_factory, plain_model_dir) -> Path:
    run = two_trainings(tmp_path_factory.mktemp("named"), plain_model_dir)
    recommit(run, "verdicts", 0, counters=lambda counted: setattr(counted, "rows_in", counted.rows_out))
    return run


@pytest.fixture
def run(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_name_is_a_place_beside_the_runs_own_training() -> None:
    for config in (TrainConfig(run=Path("r"), model="m", name="b"), EvalConfig(run=Path("r"), prompts="p", name="b")):
        assert config.run == Path("r/b.training")
        assert dataclasses.replace(config, overwrite=True).run == config.run
        assert config.plan() == dataclasses.replace(config, run=Path("r")).plan()
    assert TrainConfig(run=Path("r"), model="m").run == Path("r")
    for stage, folder in {"extract": "r", "judge": "r", "teacher": "r", "train": "r/b.training",
                          "eval": "r/b.training"}.items():  # fmt: skip
        assert stage_dir(Path("r/b.training"), stage) == Path(folder) / stage
        assert stage_dir(Path("trainings/r"), stage) == Path("trainings/r") / stage


@pytest.mark.parametrize("way", [".", "train/..", "link"])
def test_a_training_is_one_as_a_dot_and_through_a_link(made, tmp_path, monkeypatch, way) -> None:
    """The spelling of its path may lack the suffix."""
    monkeypatch.chdir(made / "b.training")
    (tmp_path / "link").symlink_to(made / "b.training")
    path = tmp_path / "link" if way == "link" else Path(way)
    assert stage_dir(path, "teacher") == made / "teacher"
    assert stage_dir(path, "eval") == path / "eval"
    assert examine(path).findings == []
    assert choose_runs(CompareConfig(run=path)) == {"b": path, "a": made / "a.training"}
    configs = TrainConfig(run=path, model="m"), EvalConfig(run=path, prompts="p")
    assert write_commands(path, *configs, "user", [{"value": "u"}])[2] == f"opdkit compare {made} b without-u"
    with pytest.raises(ConfigError, match="--name"):
        TrainConfig(run=path, model="m", name="c")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "-a", "a b", "a\\b", "a.training", "ä\n"])
def test_a_bad_name_is_refused_with_its_flag(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        TrainConfig(run=Path("r"), model="m", name=name)


def test_a_training_has_no_trainings() -> None:
    with pytest.raises(ConfigError, match="--name"):
        TrainConfig(run=Path("r/a.training"), model="m", name="b")


@pytest.mark.parametrize("name", ["b", "2026-01", "lr1e-4", "v0.5", "größer", "a+b", "_x"])
def test_good_names(name: str) -> None:
    assert configure("train", {"run": Path("r"), "model": "m", "name": name}).run == Path(f"r/{name}.training")


def test_the_second_training_leaves_the_stages_before_it_alone(run, plain_model_dir) -> None:
    before = {stage: contents(run / stage) for stage in ("extract", "judge", "teacher")}
    others = contents(run / "a.training") | contents(run / "b.training")
    train_named(run, plain_model_dir, "c", "combine")
    train_named(run, plain_model_dir, None, "binary")
    assert {stage: contents(run / stage) for stage in before} == before
    assert contents(run / "a.training") | contents(run / "b.training") == others
    assert sorted(path.name for path in run.iterdir()) == [
        "a.training", "b.training", "c.training", "extract", "judge", "teacher", "train"
    ]  # fmt: skip
    assert sorted(path.name for path in (run / "c.training").iterdir()) == ["train"]
    assert list_trainings(run) == {name: run / f"{name}.training" for name in "abc"}
    # Without a name, the training gives the metrics of the named training with the same options.
    assert list(read_all(run, "metrics")) == [
        row | {name: own[name] for name in ("seconds", "tokens_per_second")}
        for row, own in zip(read_all(run / "a.training", "metrics"), read_all(run, "metrics"), strict=True)
    ]


def test_another_plan_under_the_same_name_is_refused(run, plain_model_dir) -> None:
    with pytest.raises(ConfigError, match=r"objective(.|\n)*--name"):
        train_named(run, plain_model_dir, "a", "opd")
    train_named(run, plain_model_dir, "a", "opd", overwrite=True)
    assert not find_redone_upstream(run / "b.training", "eval")
    assert find_redone_upstream(run / "a.training", "eval") == "train"


def test_the_shared_stages_are_written_under_their_own_run_only(run) -> None:
    before = contents(run)
    with pytest.raises(ConfigError, match=r"a\.training is a training of"):
        judge.run(JudgeConfig(run=run / "a.training", judge="rules", overwrite=True))
    assert contents(run) == before


def test_what_is_missing_is_named_where_it_belongs(run, plain_model_dir) -> None:
    shutil.rmtree(run / "teacher")
    with pytest.raises(OpdkitError, match=r"opdkit teacher \S*/run "):
        train.run(TrainConfig(run=run, name="c", model=str(plain_model_dir)))


def test_status_has_a_row_for_each(run, capsys) -> None:
    status(StatusConfig(run=run))
    printed = capsys.readouterr().out
    rows = [line.split()[:3] for line in printed.splitlines() if line.startswith(("train ", "eval "))]
    begun = [["train", "a"], ["eval", "a"], ["train", "b"], ["eval", "b"]]
    assert rows[:4] == [[*one, "1/1"] for one in begun], "its parts"
    assert [row[:2] for row in rows[4:]] == [[stage, f"{name}:"] for stage, name in begun], "its rows in and out"
    assert "train b: 8 targets in, 7 trained replies out, 1 dropped (no hint 1)" in printed
    for name in "ab":
        assert f"\n{name}: " in f"\n{printed}", "the conclusion of each"


def test_check_covers_each_and_recomputes_it_alone(run, capsys) -> None:
    assert check(CheckConfig(run=run))
    assert "train a 1 of 1" in capsys.readouterr().err
    part = part_path(run / "b.training", "metrics", 0)
    part.write_bytes(part.read_bytes()[:-9])
    assert {finding.stage for finding in examine(run).findings} == {"train b"}
    capsys.readouterr()
    assert not check(CheckConfig(run=run, recompute=True))
    printed = capsys.readouterr()
    assert "train b" in printed.out
    assert f"opdkit train {run}/b.training" in printed.err
    assert "a.training" not in printed.err
    assert not part.exists()
    assert not part_path(run / "b.training", "scores", 0).exists(), "computed from it"
    assert part_path(run / "a.training", "metrics", 0).exists()


def test_a_damaged_training_without_a_name_leaves_the_others(run, plain_model_dir) -> None:
    train_named(run, plain_model_dir, None, "combine")
    part = part_path(run, "metrics", 0)
    part.write_bytes(part.read_bytes()[:-9])
    assert not check(CheckConfig(run=run, recompute=True))
    assert not part.exists()
    assert part_path(run / "a.training", "metrics", 0).exists()


def test_what_was_computed_from_damaged_targets_goes_in_each(run, capsys) -> None:
    part = part_path(run, "targets", 0)
    part.write_bytes(part.read_bytes()[:-9])
    assert not check(CheckConfig(run=run, recompute=True))
    for name in "ab":
        assert not part_path(run / f"{name}.training", "metrics", 0).exists()
    commands = [
        line.split("opdkit ")[1].split()[0] for line in capsys.readouterr().err.splitlines() if "  opdkit" in line
    ]
    assert commands[0] == "teacher"
    assert commands.count("train") == commands.count("eval") == 2


def test_a_left_over_of_a_training_is_found_once(run, capsys) -> None:
    (run / "a.training" / "train" / "checkpoints").mkdir()
    check(CheckConfig(run=run, clean=True))
    assert capsys.readouterr().err.count("left by") == 1
    assert not (run / "a.training" / "train" / "checkpoints").exists()


def test_it_is_a_run_for_other_commands(run) -> None:
    own = opdkit.Run(run).training("a")
    assert own.path == run / "a.training"
    assert own.scores().conclusion.sentence
    assert len(own.table("targets")) == len(opdkit.Run(run).table("targets"))
    assert repr(opdkit.Run(run)).count("train: ") == 2
    assert own.check()
