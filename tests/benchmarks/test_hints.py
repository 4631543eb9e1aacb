"""Planted bad hints: `--check-hints` finds them, and leaves good ones; the sample model answers."""

import pytest

from .hints import measure


@pytest.mark.slow
def test_planted_bad_hints_are_dropped_and_good_ones_stay() -> None:
    """With a judge of whose votes a twentieth is wrong, on the first turns of two topics."""
    found = measure(0.05, ["weather", "cooking"], seed=5, samples=8, limit=60)
    assert found["planted"] >= 8
    assert found["recall"] >= 0.9
    assert found["precision"] >= 0.9
