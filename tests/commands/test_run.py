"""`opdkit run`: what an error of a stage advises can be typed there."""

import pytest
from small_logs import chat, jsonl
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands.run import with_set_forms


@pytest.mark.parametrize(
    ("stage", "message", "forms"),
    [
        ("judge", "Raise --max-new-tokens.", "--set judge.max_new_tokens=N"),
        ("teacher", "Raise --max-new-tokens.", "--set teacher.max_new_tokens=N"),
        ("train", "more --epochs, a smaller --batch-turns", "--set train.epochs=N --set train.batch_turns=N"),
        ("train", "look at --hint-placement of the teacher stage", "--set teacher.hint_placement=VALUE"),
        ("train", "try a stronger --judge or more --votes", "--set judge.votes=N"),
    ],
)
def test_flags_of_a_stage_have_set_forms(stage: str, message: str, forms: str) -> None:
    assert with_set_forms(message, stage) == f"{message} (with `opdkit run`: {forms})"


@pytest.mark.parametrize("message", ["pass --overwrite", "a stronger --judge", "no flag at all - or --"])
def test_flags_of_run_itself_have_none(message: str) -> None:
    assert with_set_forms(message, "judge") == message


def test_the_error_of_a_stage_has_them(tmp_path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v", model="m1"))
    command = ["run", str(tmp_path / "run"), str(log), "--model", "hub/name", "--set", "extract.filter=model=m2"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "STAGE.OPTION=VALUE" in done.stderr
    assert "model=m2" in done.stderr


def test_a_wrong_option_of_a_later_stage_stops_the_first(tmp_path) -> None:
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    for words in (["train.epochs=0"], ["train.epoch=1"], ["judge.good=nonsense"], ["teacher.support=3"]):
        done = CliRunner().invoke(app, ["run", str(tmp_path / "run"), str(log), "--model", "m", "--set", *words])
        assert done.exit_code == 2, words
    assert not (tmp_path / "run").exists()
