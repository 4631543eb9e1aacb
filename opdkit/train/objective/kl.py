"""KL estimates from one sampled token per position. Shapes and units as in losses.py."""

from torch import Tensor

from opdkit.train.objective.losses import MAX_LOG_RATIO


def kl_to_reference(logprobs_N: Tensor, reference_N: Tensor, estimator: str) -> Tensor:
    """Estimate KL(student || reference) from one sampled token at each position (nats, [N]; Schulman 2020).

    With r = l - l_ref: k2 = r^2 / 2 and k3 = exp(-r) - 1 + r, as in other trainers. k1 is rho r with rho = exp(r), not
    r alone: the expected gradient of r is zero, so minimising r would only lower the log-prob of every logged token.
    With rho, value and gradient are unbiased for tokens drawn from the reference.
    """
    log_ratio_N = logprobs_N - reference_N
    if estimator == "k1":
        return log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * log_ratio_N
    if estimator == "k2":
        return log_ratio_N.square() / 2
    return (-log_ratio_N).clamp(max=MAX_LOG_RATIO).expm1() + log_ratio_N


def kl_from_old(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """Return the k3 estimate (Schulman 2020) of KL(old || student) at tokens drawn from old (nats, [N], >= 0)."""
    log_ratio_N = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio_N.expm1() - log_ratio_N
