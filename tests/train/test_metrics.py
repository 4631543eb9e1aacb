"""Tests of the report on how far a training moved the model."""

from pathlib import Path

from opdkit.train.metrics import report_movement

ROWS = [{"step": n, "shift": n / 100, "skipped": False, "learning_rate": n / 1e4} for n in range(1, 13)]


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
