"""Tests of the teacher stage with little memory: the rows are the same, and a turn too large by itself is counted."""

import pytest
from judged_runs import message, one_part, session, targets, three_parts, turn, verdict, write_run
from small_memory import room_for

from opdkit.commands.status import run as status
from opdkit.config.status import StatusConfig
from opdkit.model.memory import TOO_LARGE
from opdkit.teacher import stage as teacher

pytestmark = pytest.mark.slow

NUMBERS = ("old_logprobs", "teacher_logprobs")


def same_rows(actual: list[dict], expected: list[dict]) -> None:
    assert [row["turn_id"] for row in actual] == [row["turn_id"] for row in expected]
    for row, other in zip(actual, expected, strict=True):
        assert row["response_ids"] == other["response_ids"]
        assert row["support_ids"] == other["support_ids"]
        for name in NUMBERS:
            assert row[name] == (None if other[name] is None else pytest.approx(other[name], abs=1e-5))


@pytest.mark.parametrize("turn_by_turn", [False, True])
@pytest.mark.parametrize("tokens", [400, 200])
def test_the_rows_are_those_of_a_large_machine(run, config, tmp_path, turn_by_turn, tokens) -> None:
    options = {"turn_by_turn": turn_by_turn, "top_k": 4}
    teacher.run(config(run, **options))
    again = write_run(tmp_path / "again", three_parts())
    with room_for(tokens) as room:
        summary = teacher.run(config(again, **options))
    assert room.refused
    assert not summary.counters.dropped[TOO_LARGE]
    same_rows(targets(again), targets(run))


def test_a_turn_too_large_alone_is_counted_and_the_others_are_scored(tmp_path, config, capsys) -> None:
    def talk(name: str, said: str) -> dict:
        return session(name, message("user", said), message("assistant", "Yes."), message("user", "No."))

    sessions = [talk("a", "Hi"), talk("b", "many words " * 60), talk("c", "Hello")]
    turns, verdicts = ([make(f"{n}:1", **more) for n in "abc"] for make, more in ((turn, {}), (verdict, {"reward": 1})))
    path = write_run(tmp_path / "run", one_part(sessions, turns, verdicts))
    whole = write_run(tmp_path / "whole", one_part(sessions, turns, verdicts))
    teacher.run(config(whole))
    with room_for(100) as room:
        summary = teacher.run(config(path))
    assert room.refused
    assert dict(summary.counters.dropped) == {TOO_LARGE: 1}
    assert (summary.counters.rows_in, summary.counters.rows_out) == (3, 2)
    assert f"1 dropped ({TOO_LARGE} 1)" in summary.line()
    same_rows(targets(path), [row for row in targets(whole) if row["turn_id"] != "b:1"])
    capsys.readouterr()
    status(StatusConfig(run=path))
    assert "memory 1" in " ".join(capsys.readouterr().out.split())
