"""Tests that a stage that fails leaves nothing that prevents the corrected command."""

import errno
import shutil
from pathlib import Path

import pytest
from judged_runs import three_parts, write_run
from small_logs import chat, jsonl

from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import AnotherPlanError, ConfigError, NothingLearnedError, OpdkitError
from opdkit.extract import stage
from opdkit.store.failures import read_failures, record_failure
from opdkit.store.part_writer import Stage
from opdkit.store.plans import has_stage
from opdkit.store.reading import read_all
from opdkit.store.run_stage import run_stage
from opdkit.store.tables import SESSIONS, VERDICTS


def extract(tmp_path: Path, *lines: dict, **options) -> ExtractConfig:
    log = jsonl(tmp_path / "log.jsonl", *lines)
    return ExtractConfig(run=tmp_path / "run", logs=(str(log),), **{"shard": "0/1"} | options)


SIDE = chat("u", "a", "v", turn_type="side")


@pytest.mark.parametrize(
    ("lines", "wrong", "right"),
    [([SIDE], {}, {"side": True}), ([chat("u", "a", "v", model="m")], {"filter": ("model=n",)}, {"filter": ()})],
)
def test_an_extract_of_nothing_leaves_no_plan(tmp_path: Path, lines: list[dict], wrong: dict, right: dict) -> None:
    for _ in range(2):
        with pytest.raises(NothingLearnedError):
            run_stage("extract", extract(tmp_path, *lines, **wrong))
        assert not has_stage(tmp_path / "run", "extract")
        assert len(read_failures(tmp_path / "run")) == 1
    assert run_stage("extract", extract(tmp_path, *lines, **right)).counters.rows_out == 1
    assert read_failures(tmp_path / "run") == []


def test_rows_that_could_not_be_read_stay(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match="could not be read"):
        run_stage("extract", extract(tmp_path, {"text": "x"}, {"text": "x"}, chat("u", "a", "v")))
    assert len(list(read_all(tmp_path / "run", "rejected"))) == 2


def test_one_of_several_shards_leaves_the_plan_to_the_others(tmp_path: Path) -> None:
    run_stage("extract", extract(tmp_path, SIDE, SIDE, shard="0/2", part_mb=0.0001))
    with pytest.raises(NothingLearnedError):
        run_stage("extract", extract(tmp_path, SIDE, SIDE, shard="1/2", part_mb=0.0001))
    assert len(list(read_all(tmp_path / "run", "turns"))) == 2
    with pytest.raises(AnotherPlanError):
        run_stage("extract", extract(tmp_path, SIDE, SIDE, side=True, part_mb=0.0001))


def test_a_model_is_completed_and_scored(tmp_path: Path, tiny_model_dir: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model_dir, model)
    (model / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    config = TeacherConfig(run=write_run(tmp_path / "run", three_parts()), model=str(model), shard="0/1")
    with pytest.raises(OpdkitError, match="tokenizer"):
        run_stage("teacher", config)
    (tmp_path / "tokenizer.json").rename(model / "tokenizer.json")
    assert run_stage("teacher", config).counters.rows_out


def test_what_was_computed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the second part fails, the first part stays."""
    log, write_part = extract(tmp_path, *[chat("u", "a", "v")] * 2, part_mb=0.0001), stage.write_part
    writes = iter([write_part])
    monkeypatch.setattr(stage, "write_part", lambda *arguments: next(writes)(*arguments))
    with pytest.raises(StopIteration):
        run_stage("extract", log)
    assert [path.name for path in (log.run / "extract" / "turns").iterdir()] == ["part-00000.parquet"]


@pytest.mark.parametrize("has_replies", [False, True])
def test_a_rollout_leaves_no_plan_of_a_stage_that_wrote_nothing(tmp_path: Path, has_replies: bool) -> None:
    config = RolloutConfig(run=tmp_path / "run", from_run=tmp_path / "before", model="m", shard="0/1")

    def roll_out() -> None:
        with record_failure("rollout", config):
            replies = Stage.open(config, "extract", [SESSIONS], parts=1, command="rollout")
            Stage.open(config, "judge", [VERDICTS], parts=1, upstream=["extract"], command="rollout")
            if has_replies:
                with replies.writing(0):
                    pass
            raise OpdkitError("the model, or the judge, cannot be loaded")

    for _ in range(2):
        with pytest.raises(OpdkitError, match="loaded"):
            roll_out()
        assert [has_stage(config.run, stage) for stage in ("extract", "judge")] == [has_replies, False]


def test_a_mistyped_model_is_no_failure_of_a_stage(tmp_path: Path) -> None:
    config = JudgeConfig(run=tmp_path, judge="local", judge_model=str(tmp_path / "nowhere"), shard="0/1")
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        run_stage("judge", config)
    assert read_failures(tmp_path) == []


def test_a_folder_that_is_no_run_gets_no_record(tmp_path: Path) -> None:
    """If RUN is the folder of the logs by mistake, no record is added to it: `extract` would read it as a log."""
    jsonl(tmp_path / "log.jsonl", SIDE)
    with pytest.raises(OpdkitError, match="no extract stage"):
        run_stage("judge", JudgeConfig(run=tmp_path, judge="rules", shard="0/1"))
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_finished_run_may_be_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = extract(tmp_path, chat("u", "a", "v"))
    judge = JudgeConfig(run=log.run, judge="rules", shard="0/1")
    run_stage("extract", log)
    run_stage("judge", judge)
    (log.run / ".failed").mkdir()
    (log.run / ".failed" / "judge-0-of-2.json").touch()

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert run_stage("judge", judge).counters.rows_out == 1
