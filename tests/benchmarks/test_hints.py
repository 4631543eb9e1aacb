"""Planted bad hints: `--check-hints` drops them and keeps good hints; the sample model writes the replies."""

import pytest

from .hints import measure


@pytest.mark.slow
def test_planted_bad_hints_are_dropped_and_good_ones_stay() -> None:
    """Recall and precision of the dropped hints are at least 0.9, although the judge errs in 5% of its votes."""
    found = measure(0.05, ["weather", "cooking"], seed=5, samples=8, limit=60)
    assert found["planted"] >= 8
    assert found["recall"] >= 0.9
    assert found["precision"] >= 0.9
