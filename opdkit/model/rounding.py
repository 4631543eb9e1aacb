"""Comparison of log-probs that were computed in two ways and may differ only by rounding."""

import math

import torch
from torch import Tensor
from transformers import PreTrainedModel

# The largest difference in a log-prob that counts as rounding, in nats. Half precision rounds a logit of 20 by 0.06 and
# sometimes more, so there the mean over all tokens is compared.
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-3}
HALF_ROUNDING = 0.1


def measure_differences(found_N: Tensor, expected_N: Tensor) -> Tensor:
    """Return the absolute differences of log-probs (nats). If only the found one is not finite, that is infinity.

    Tokens whose expected log-prob is not finite are left out.
    """
    return (found_N - expected_N)[expected_N.isfinite()].abs().nan_to_num(math.inf, math.inf)


def find_difference(model: PreTrainedModel, found_N: Tensor, expected_N: Tensor) -> float | None:
    """Return by how many nats log-probs of a model differ from the expected ones; None if that is only rounding."""
    differences = measure_differences(found_N, expected_N)
    if not len(differences):
        return None
    limit = ROUNDING.get(find_compute_dtype(model))
    difference = float(differences.mean() if limit is None else differences.max())
    return difference if difference > (HALF_ROUNDING if limit is None else limit) else None


def find_compute_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the dtype of a model's forwards: that of autocast, if it is on."""
    kind = model.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype
