"""Tests of opdkit/model/rounding.py: differences worked by hand, and precisions that round."""

import math

import pytest
import torch
from model_families import FAMILIES, STATES, build

from opdkit.model.rounding import HALF_ROUNDING, find_difference
from opdkit.model.tree_reading import check_tree_reading


@pytest.fixture(scope="module")
def model():
    return build(*FAMILIES["grouped queries"])


def differ(model, found: list[float], expected: list[float]) -> float | None:
    return find_difference(model, torch.tensor(found), torch.tensor(expected))


def test_differences_by_hand(model):
    assert differ(model, [-1.0, -2.0005], [-1.0, -2.0]) is None
    assert differ(model, [-1.0, -2.5], [-1.0, -2.0]) == 0.5
    half = build(*FAMILIES["grouped queries"]).bfloat16()
    assert differ(half, [-1.0, -2.15], [-1.0, -2.0]) is None, "the mean is 0.075"
    assert differ(half, [-1.0, -2.5], [-1.0, -2.0]) == 0.25 > HALF_ROUNDING


def test_what_is_not_finite_is_the_same_only_where_it_was_expected(model):
    assert differ(model, [-1.0, math.nan], [-1.0, math.nan]) is None
    assert differ(model, [-1.0, -2.0], [-1.0, -math.inf]) is None
    for odd in (math.nan, -math.inf):
        assert differ(model, [-1.0, odd], [-1.0, -2.0]) == math.inf
    assert differ(model, [math.nan], [math.nan]) is None


@pytest.mark.parametrize("family", ["grouped queries", "LFM2"])
def test_a_model_under_autocast_rounds_as_half_precision_does(family, capsys):
    """In training, weights are float32, and the validation samples in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        assert check_tree_reading(build(*(FAMILIES | STATES)[family]))
    assert not capsys.readouterr().err
