"""What a step of `opdkit run` advises can be typed there."""

import pytest
from runs import talk, write_extract

from opdkit.commands.run import flags_of
from opdkit.config.judge import JudgeConfig
from opdkit.console import advise_for_run, advising_for_run, warn
from opdkit.errors import ConfigError
from opdkit.judge import local
from opdkit.judge import stage as judge
from opdkit.judge.exchange import Answer


@pytest.mark.parametrize(
    ("stage", "message", "written"),
    [
        ("judge", "Raise --max-new-tokens.", "--set judge.max_new_tokens=N"),
        ("train", "more --epochs, a smaller --batch-turns", "--set train.epochs=N --set train.batch_turns=N"),
        ("train", "look at --hint-placement of the teacher stage", "--set teacher.hint_placement=VALUE"),
        ("train", "try a stronger --judge or more --votes", "--set judge.votes=N"),
    ],
)
def test_flags_of_a_stage_are_said_as_run_takes_them(stage: str, message: str, written: str) -> None:
    with advising_for_run(flags_of(stage)):
        assert advise_for_run(message) == f"{message} (with `opdkit run`: {written})"
    assert advise_for_run(message) == message


@pytest.mark.parametrize("message", ["pass --overwrite", "a stronger --judge", "no flag at all - or --"])
def test_flags_of_run_itself_need_no_translation(message: str) -> None:
    with advising_for_run(flags_of("judge")):
        assert advise_for_run(message) == message


def test_warnings_and_errors_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    with advising_for_run(flags_of("teacher")):
        warn("lower --batch-tokens")
    with pytest.raises(ConfigError) as caught, advising_for_run(flags_of("teacher")):
        raise ConfigError("lower --max-tokens")
    assert str(caught.value) == "lower --max-tokens (with `opdkit run`: --set teacher.max_tokens=N)"
    assert "lower --batch-tokens (with `opdkit run`: --set teacher.batch_tokens=N)" in capsys.readouterr().err


def test_a_judge_whose_votes_are_cut_off(tmp_path, monkeypatch, capsys) -> None:
    write_extract(tmp_path, {"s": talk("do it", "done", "thanks")})
    monkeypatch.setattr(local, "open_judge", lambda config: lambda asked: [[Answer("", "length")] * 5 for _ in asked])
    config = JudgeConfig(run=tmp_path, judge="local", judge_model="hub/name")
    monkeypatch.setattr("opdkit.judge.stage.refuse_no_model", lambda name: None)
    monkeypatch.setattr("opdkit.judge.stage.model_identity", lambda name: {})
    with advising_for_run(flags_of("judge")):
        judge.run(config)
    assert "Raise --max-new-tokens. (with `opdkit run`: --set judge.max_new_tokens=N)" in capsys.readouterr().err
