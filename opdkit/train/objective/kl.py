"""KL estimates from one sampled token per position. Shapes and units as in losses.py."""

from torch import Tensor

from opdkit.train.objective.losses import MAX_LOG_RATIO


def kl_to_reference(
    logprobs_N: Tensor, reference_N: Tensor, estimator: str, old_logprobs_N: Tensor | None = None
) -> Tensor:
    """Estimate KL(student || reference) from one sampled token at each position (nats, [N]; Schulman 2020).

    The tokens were drawn from the old policy, which is the reference if `old_logprobs_N` is None. With r = l - l_ref:
    k2 = r^2 / 2 and k3 = exp(-r) - 1 + r, as in other trainers. k1 is rho r with rho = exp(l - l_old), not r alone:
    where the tokens come from the student, the expected gradient of r is zero, and minimising r on logged tokens would
    only lower their log-probs. With rho, value and gradient are unbiased for tokens of the old policy.
    """
    log_ratio_N = logprobs_N - reference_N
    if estimator == "k1":
        from_old_N = log_ratio_N if old_logprobs_N is None else logprobs_N - old_logprobs_N
        return from_old_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * log_ratio_N
    if estimator == "k2":
        return log_ratio_N.square() / 2
    return (-log_ratio_N).clamp(max=MAX_LOG_RATIO).expm1() + log_ratio_N


def kl_from_old(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """Return the k3 estimate (Schulman 2020) of KL(old || student) at tokens drawn from old (nats, [N], >= 0)."""
    log_ratio_N = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio_N.expm1() - log_ratio_N
