"""Tests of judge "reaction": each reaction is the hint, word for word, from the judge to the trained model."""

from pathlib import Path

import pytest
from runs import in_context, message, talk, write_extract

from opdkit.commands.turns.view import read_turn_view
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.judge import stage as judge
from opdkit.judge.hints import take_reaction
from opdkit.store.plans import judge_kind
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher
from opdkit.train import stage as train

WRONG = "That's wrong."  # says nothing to act on: a judge's hint like this is rejected
LONG = "No, I wanted the report for the third quarter. " * 40  # longer than --max-hint-chars
SESSIONS = {
    "trip": talk("How do I get to Lyon?", "By train.", WRONG, "Then by bus.", "thanks!"),
    "tool": [
        message("user", "Book it"),
        message("assistant", None, calls=[("book", "{}"), ("pay", "{}")]),
        message("tool", "Error: no seats left"),
        message("tool", " paid "),
        message("assistant", "There are no seats."),
        message("user", LONG),
    ],
    "blank": talk("hi", "hello", " \n"),
    "more": talk("2 + 3?", "5", "And 3 + 3?", "6"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_extract(tmp_path / "run", SESSIONS)


def config(run: Path, **options) -> JudgeConfig:
    return JudgeConfig(run=run, judge="reaction", shard="0/1", **options)


def test_every_reaction_is_the_hint_and_nothing_has_a_reward(run: Path, capsys) -> None:
    summary = judge.run(config(run))
    rows = {row["turn_id"]: row for row in read_all(run, "verdicts")}
    assert {turn: row["hint"] for turn, row in rows.items()} == {
        "trip:1": WRONG,
        "trip:3": "thanks!",
        "tool:1": "Error: no seats left\n\npaid",
        "tool:4": LONG.strip(),
        "blank:1": None,
        "more:1": "And 3 + 3?",
    }
    assert {row["hint_status"] for row in rows.values() if row["hint"]} == {"ok"}
    assert all(row["hints"] == ([row["hint"]] if row["hint"] else []) for row in rows.values())
    assert {(row["reward"], row["reward_status"]) for row in rows.values()} == {(None, "not_judged")}
    assert not any(row["hint_votes"] or row["reward_votes"] for row in rows.values())
    assert (summary.counters.total("hints"), summary.counters.total("no reward")) == (5, 6)
    assert "irrelevant ones teach" in capsys.readouterr().err
    assert judge_kind(run) == "reaction"


def test_what_stands_between_reply_and_reaction_is_no_reaction() -> None:
    messages = [*talk("hi", "hello"), message("system", "The user is back."), message("user", " Shorter. ")]
    assert take_reaction(in_context(messages, 1, 2))[1].hint == "Shorter."


def test_outcomes_in_the_log_are_rewards_all_the_same(run: Path) -> None:
    judge.run(config(run, bad=("source=*",)))
    rewards = {row["turn_id"]: (row["reward"], row["hint"]) for row in read_all(run, "verdicts")}
    assert rewards["more:1"] == (-1, "And 3 + 3?")
    assert rewards["more:3"] == (-1, None)  # the last reply has an outcome and no reaction


def test_options_of_models_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match="--weigh-votes"):
        config(run, weigh_votes=True)
    with pytest.raises(ConfigError, match="--judge-url"):
        config(run, judge_url="http://127.0.0.1:1/v1")
    with pytest.raises(ConfigError, match="--judge-model"):
        config(run, judge_model="model")


def test_a_dry_run_asks_nobody(run: Path, capsys) -> None:
    judge.run(config(run, dry_run=True))
    assert "questions" not in capsys.readouterr().out


def test_show_calls_the_reaction_chosen(run: Path) -> None:
    judge.run(config(run))
    view = read_turn_view(run, "trip:1")
    assert view["verdict"]["candidates"] == [{"hint": WRONG, "status": "chosen"}]


@pytest.mark.parametrize("objective", ["blend", "alternate", "combine"])
def test_objectives_with_a_reward_term_train_on_the_reactions(run: Path, plain_model_dir, capsys, objective) -> None:
    judge.run(config(run))
    model = str(plain_model_dir)
    teacher.run(TeacherConfig(run=run, model=model, device="cpu", teacher_samples=0, shard="0/1"))
    assert {row["hint"] for row in read_all(run, "targets")} >= {WRONG, "thanks!"}
    options = {"objective": objective, "batch_turns": 2, "learning_rate": 1e-3}
    train.run(train.TrainConfig(run=run, model=model, device="cpu", **options))
    said = capsys.readouterr().err
    assert "no turn has a reward" in said
    assert "--judge reaction" in said
    rows = list(read_all(run, "metrics"))
    assert sum(row["reward_tokens"] for row in rows) == 0
    assert any(row["grad_norm"] for row in rows)
