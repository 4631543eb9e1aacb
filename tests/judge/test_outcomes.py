"""Tests of rewards that come from fields of the log: `--good` and `--bad`."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from http_server import completion, serving
from runs import talk, write_extract
from sample_world import MODEL
from small_logs import jsonl
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands.check import stage as check
from opdkit.config.check import CheckConfig
from opdkit.config.conditions import parse_filters
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.judge.outcomes import find_outcomes
from opdkit.judge.votes import Reward
from opdkit.store.reading import read_all
from opdkit.store.run_stage import find_next_step
from opdkit.teacher import stage as teacher

TALK = talk("2 + 2?", "5", "That's wrong.", "4", "thanks!")
SESSIONS = dict.fromkeys(("solved", "failed", "unknown"), TALK)


def outcome(good: list[str], bad: list[str], index: int = 1, **metadata: object) -> Reward | None:
    """Return the reward that the conditions give the turn at `index` of a session with these metadata."""
    conditions = {1: parse_filters(good), -1: parse_filters(bad)}
    return find_outcomes(session(**metadata), [index], conditions).get(index)


def session(**metadata: object) -> dict:
    fields = {"session_id": "a.jsonl:3", "source": "a.jsonl", "model": "m-1", "format": "openai"}
    return fields | {"metadata": json.dumps(metadata)}


@pytest.mark.parametrize(("metadata", "reward"), [
    ({"reward": 1.0}, 1), ({"reward": 0}, -1), ({"reward": "0.5"}, -1), ({"reward": "high"}, None), ({}, None),
    ({"reward": None}, None), ({"reward": True}, None), ({"reward": [0, 1]}, None),
])  # fmt: skip
def test_a_number_and_what_is_none(metadata: dict, reward: int | None) -> None:
    """A list meets a condition if one of its elements does; a list that meets both gives no reward."""
    expected = Reward(reward, "outcome", None) if reward else None
    assert outcome(["metadata.reward>=1"], ["metadata.reward<1"], **metadata) == expected


def test_words_other_fields_and_conditions_that_must_all_hold() -> None:
    thumbs = (["metadata.feedback=up|good*"], ["metadata.feedback=down"])
    assert [outcome(*thumbs, feedback=f) for f in ("up", "good job", "down", "DOWN")] == [
        Reward(1, "outcome", None), Reward(1, "outcome", None), Reward(-1, "outcome", None), None
    ]  # fmt: skip
    both = ["model=m-*", "metadata.resolved=false"]
    assert outcome([], both, resolved=False) == Reward(-1, "outcome", None)
    assert outcome([], both, resolved=True) is None
    assert outcome([], [], resolved=True) is None


def test_scores_that_are_a_list_of_names_and_values() -> None:
    scores = [{"name": "user-feedback", "value": 0, "comment": "no"}, {"name": "length", "value": 1}, {"value": 2}, "x"]
    stars = (["metadata.scores.user-feedback=1"], ["metadata.scores.user-feedback=0"])
    assert outcome(*stars, scores=scores) == Reward(-1, "outcome", None)
    assert outcome(*stars, scores=scores[1:]) is None
    assert outcome(*stars, scores=[*scores, {"name": "user-feedback", "value": 1}]) is None


def test_a_turn_is_told_by_the_call_that_wrote_it() -> None:
    """The feedback on a turn's own call comes first, then that on the session; another call's never counts."""
    calls = [{"line": 1, "message_index": 1, "reward": 1.0}, {"line": 2, "message_index": 3, "reward": 0.0},
             {"line": 3, "message_index": 5}, "no call", {"message_index": "7", "reward": 1}]  # fmt: skip
    conditions = {1: parse_filters(["metadata.reward>0"]), -1: parse_filters(["metadata.reward<=0"])}
    rewards = find_outcomes(session(records=calls), (1, 3, 5, 7), conditions)
    assert {index: reward.reward for index, reward in rewards.items()} == {1: 1, 3: -1}
    rewards = find_outcomes(session(records=calls, reward=-1), (1, 3, 5, 7), conditions)
    assert {index: reward.reward for index, reward in rewards.items()} == {1: 1, 3: -1, 5: -1, 7: -1}


@pytest.mark.parametrize("field", ["good", "bad"])
def test_what_is_no_condition_is_refused(field: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"--{field} 'metadata.reward': write it as"):
        JudgeConfig(run=tmp_path, judge="rules", **{field: ("metadata.reward",)})


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    path = write_extract(tmp_path / "run", SESSIONS)
    outcomes = {"solved": {"reward": 1}, "failed": {"reward": 0}, "unknown": {}}
    for part in sorted((path / "extract" / "sessions").iterdir()):
        table = pq.read_table(part)
        told = [json.dumps(outcomes[name]) for name in table["session_id"].to_pylist()]
        at = table.schema.get_field_index("metadata")
        pq.write_table(table.set_column(at, table.schema.field(at), [told]), part)
    return path


GOOD, BAD = ("metadata.reward=1",), ("metadata.reward=0",)


def test_every_turn_of_a_session_has_its_outcome_and_the_others_are_voted_on(extracted: Path) -> None:
    """An outcome replaces the reward votes only: hints of such turns are still voted on."""
    before = JudgeConfig(run=extracted, judge="rules", shard="0/1")
    judge.run(before)
    voted = {row["turn_id"]: row for row in read_all(extracted, "verdicts")}
    summary = judge.run(JudgeConfig(run=extracted, judge="rules", shard="0/1", good=GOOD, bad=BAD, overwrite=True))
    for row in read_all(extracted, "verdicts"):
        name, old = row["turn_id"].partition(":")[0], voted[row["turn_id"]]
        told = {"solved": 1, "failed": -1}.get(name)
        if told is None:
            assert row == old
        else:
            changed = {"reward": told, "reward_status": "outcome", "reward_agreement": None, "reward_votes": []}
            assert row == old | changed
    assert summary.counters.total("outcomes") == 4
    assert (summary.counters.labels("rewards")["+1"], summary.counters.labels("rewards")["-1"]) == (3, 3)
    assert "4 outcomes" in summary.text()


def test_a_server_is_not_asked_for_what_the_log_says(extracted: Path, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda body, number: completion(r"\boxed{1}")) as server:
        judge.run(JudgeConfig(run=extracted, shard="0/1", judge="endpoint", judge_model="judge-model",
                              judge_url=server.url, votes=3, all_votes=True, good=GOOD, bad=BAD))  # fmt: skip
    assert len(server.requests) == 3 * (6 + 2)
    assert [len(row["reward_votes"]) for row in read_all(extracted, "verdicts")].count(0) == 4


@pytest.mark.parametrize(
    ("answer", "then"), [("hm", "again as before, with --overwrite"), (r"\boxed{1}", "opdkit teacher")]
)
def test_after_votes_that_failed_the_next_step_is_the_judge_again(extracted: Path, monkeypatch, answer, then) -> None:
    """The log gives rewards, so the stage succeeds, but without any hint."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda body, number: completion(answer)) as server:
        judge.run(JudgeConfig(run=extracted, shard="0/1", judge="endpoint", judge_model="judge-model",
                              judge_url=server.url, good=GOOD, bad=BAD))  # fmt: skip
    assert then in find_next_step(extracted)


def test_an_outcome_is_a_reaction_too(tmp_path: Path, monkeypatch) -> None:
    """A rated reply without a next state gets its reward without a request; an unrated one gets no verdict."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    lines = [{"messages": talk("2 + 2?", "5") if stars is None else talk("2 + 2?", f"{stars}")} | {"stars": stars}
             for stars in (5, 1, None)]  # fmt: skip
    log = jsonl(tmp_path / "rated.jsonl", *lines)
    extract.run(ExtractConfig(run=tmp_path / "run", logs=(str(log),), shard="0/1"))
    run = tmp_path / "run"
    with serving(lambda body, number: completion(r"\boxed{1}")) as server:
        options = {"judge": "endpoint", "judge_model": "judge-model", "judge_url": server.url}
        judge.run(JudgeConfig(run=run, shard="0/1", good=("metadata.stars>=4",), bad=("metadata.stars<=2",), **options))
    assert server.requests == []
    found = [(row["turn_id"], row["reward"], row["hint_status"]) for row in read_all(run, "verdicts")]
    assert found == [("rated:1:1", 1, "none"), ("rated:2:1", -1, "none")]
    assert check.run(CheckConfig(run=run))
    teacher.run(TeacherConfig(run=run, model=str(MODEL), device="cpu", shard="0/1"))
    assert [row["reward"] for row in read_all(run, "targets")] == [1, -1]
    assert check.run(CheckConfig(run=run))
    assert CliRunner().invoke(app, ["report", str(run)]).exit_code == 0


def test_a_field_that_no_log_has_is_said(extracted: Path, capsys) -> None:
    judge.run(JudgeConfig(run=extracted, judge="rules", shard="0/1", good=("metadata.rewrad>0",)))
    said = " ".join(capsys.readouterr().err.split())
    assert "--good metadata.rewrad>0: true of no turn, so all rewards come from votes" in said


def test_what_comes_after_takes_it_for_a_reward(extracted: Path, tmp_path: Path) -> None:
    """`show` lists outcomes by their status, and `calibrate` does not count them as rewards of the judge."""
    judge.run(JudgeConfig(run=extracted, judge="rules", shard="0/1", good=GOOD, bad=BAD))
    listed = CliRunner().invoke(app, ["show", str(extracted), "--status", "outcome", "--json"])
    assert listed.exit_code == 0, listed.stderr
    assert [row["turn_id"] for row in json.loads(listed.stdout)] == ["solved:1", "solved:3", "failed:1", "failed:3"]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps({"turn_id": f"{name}:1", "label": -1}) + "\n" for name in SESSIONS))
    measured = CliRunner().invoke(app, ["calibrate", str(extracted), str(labels), "--json"])
    assert measured.exit_code == 0, measured.stderr
    assert json.loads(measured.stdout)["labels"] == 1
