"""Tests of the report on how far a training moved the model, from the steps that led to the saved state."""

from pathlib import Path

from opdkit.train.metrics import report_movement, trace_rows

ROWS = [{"step": n, "shift": n / 100, "skipped": False, "learning_rate": n / 1e4} for n in range(1, 13)]


def test_steps_that_were_taken_back_and_those_after_the_best_state_do_not_count() -> None:
    def steps(kept: int, rollbacks: dict[int, int]) -> list[int]:
        return [row["step"] for row in trace_rows(kept, ROWS, rollbacks)]

    assert steps(3, {}) == [1, 2, 3]
    assert steps(12, {4: 2, 8: 6}) == [1, 2, 6, 10, 11, 12], "those after a rollback describe the state before it"
    assert steps(3, {4: 2}) == [1, 2, 3]
    assert steps(5, {4: 0}) == []


def test_the_largest_learning_rate_is_said(capsys) -> None:
    report_movement(ROWS[:5], Path("run"), validated=True, rolled_back=False)
    assert "the largest learning rate of a step was 0.0005" in capsys.readouterr().err


def test_a_training_that_rolled_back_is_not_told_to_take_a_higher_rate(capsys) -> None:
    still = [row | {"shift": 0.001} for row in ROWS]
    for rolled_back in (False, True):
        report_movement(still, Path("run"), validated=True, rolled_back=rolled_back)
        assert ("higher" in capsys.readouterr().err) != rolled_back
    report_movement([], Path("run"), validated=True, rolled_back=True)
    assert "gradient" not in capsys.readouterr().err
