"""Advantages and losses: pure functions on tensors.

N   response positions of a micro-batch, one turn after the other
l   log-prob of the token that the log has there, under the student as it is now (nats, temperature 1)

An objective is a sum of terms. A term is a source of advantages with a weight, the positions it applies to, and the
number of such positions in the whole optimizer step, over all micro-batches and processes. Each term is a mean over
ITS positions: with advantages a_s, weights w_s and counts n_s, position i carries the coefficient

    c_i = sum over s of w_s a_si / n_s        (s only where it applies to i)

and the loss of the step is the clipped policy gradient of c, summed over all positions. That loss is homogeneous in c,
so where every position has every source it is the token mean for the advantage A = w_reward reward + w_teacher
teacher; a turn with a reward and no hint trains on its reward alone, and is not in the teacher's count. One clip
decision is taken for the sum, not one for each source: sources that disagree cancel before the clip sees them.

Advantages are constants: no gradient flows through them. Whatever is not there is NaN until it has been masked, so
that a mistake in a mask stops the run instead of training on an invented number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(20) is 5e8: beyond it the ratio says nothing, and exp would overflow at 89

# objective -> the sources that it adds up
SOURCES = {"opd": ("teacher",), "binary": ("reward",), "combine": ("reward", "teacher")}


@dataclass(frozen=True)
class Tokens:
    """What is known about N response positions before the forward pass."""

    sampled_N: Tensor  # bool: the policy sampled this token (the response mask)
    old_logprobs_N: Tensor  # student before training, nats
    teacher_logprobs_N: Tensor  # nats; NaN where the turn has no hint
    reward_N: Tensor  # the turn's reward; NaN where it has none


@dataclass(frozen=True)
class Term:
    """One source of advantages. `advantages_N` is 0 outside `mask_N`."""

    name: str
    weight: float
    advantages_N: Tensor
    mask_N: Tensor


# -- advantages -----------------------------------------------------------------------------------------------------


def reward_advantages(reward_N: Tensor, mask_N: Tensor) -> Tensor:
    """The turn's reward at each of its tokens [N], 0 outside the mask (OpenClaw-RL's binary objective)."""
    return torch.where(mask_N, reward_N, 0.0)


def teacher_advantages(teacher_logprobs_N: Tensor, old_logprobs_N: Tensor, mask_N: Tensor, clip: float) -> Tensor:
    """clip(l_T - l_old, -clip, +clip) in nats [N], 0 outside the mask; `clip` 0 is off (OpenClaw-RL's OPD, verl)."""
    advantages_N = torch.where(mask_N, teacher_logprobs_N - old_logprobs_N, 0.0)
    return advantages_N.clamp(-clip, clip) if clip else advantages_N


def terms_of(objective: str, tokens: Tokens, weights: Mapping[str, float], advantage_clip: float) -> list[Term]:
    """The terms of an objective. `weights` are used where sources are mixed; a single source has weight 1."""
    names = SOURCES[objective]
    return [_term(name, tokens, weights[name] if len(names) > 1 else 1.0, advantage_clip) for name in names]


def _term(name: str, tokens: Tokens, weight: float, advantage_clip: float) -> Term:
    if name == "reward":
        mask_N = tokens.sampled_N & ~tokens.reward_N.isnan()
        return Term(name, weight, reward_advantages(tokens.reward_N, mask_N), mask_N)
    mask_N = tokens.sampled_N & ~tokens.teacher_logprobs_N.isnan()
    advantages_N = teacher_advantages(tokens.teacher_logprobs_N, tokens.old_logprobs_N, mask_N, advantage_clip)
    return Term(name, weight, advantages_N, mask_N)


def trained_positions(terms: Sequence[Term]) -> Tensor:
    """Where at least one term applies: bool [N]."""
    return torch.stack([term.mask_N for term in terms]).any(0)


def token_counts(terms: Sequence[Term]) -> dict[str, int]:
    """Positions of each term, and under "trained" of any. Taken over a whole optimizer step, these are the divisors."""
    counts = {term.name: int(term.mask_N.sum()) for term in terms}
    return counts | {"trained": int(trained_positions(terms).sum())}


# -- losses ---------------------------------------------------------------------------------------------------------


def policy_gradient(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Clipped policy gradient: (loss [N], ratio [N]), loss = -min(rho A, clip(rho, 1 - low, 1 + high) A) = -ratio A.

    rho = exp(l - l_old), its log clamped to +-20; `ratio` is rho or its clipped value, whichever the minimum took.
    PPO (Schulman et al. 2017) with the wider upper bound of DAPO's clip-higher (Yu et al. 2025).
    """
    rho_N = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped_N = rho_N.clamp(1 - clip_low, 1 + clip_high)
    ratio_N = torch.where(rho_N * advantages_N <= clipped_N * advantages_N, rho_N, clipped_N)
    return -ratio_N * advantages_N, ratio_N


def kl_from_old(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """k3 estimate of KL(old || student) at tokens drawn from old (nats, [N], never negative; Schulman 2020)."""
    log_ratio_N = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio_N.expm1() - log_ratio_N


def step_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    terms: Sequence[Term],
    counts: Mapping[str, int],
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's share of the optimizer step's loss, and its share of each metric.

    `counts` are `token_counts` of the whole step: summed over its micro-batches and processes, the shares are the loss
    and the metrics of the step, however it was split. Metrics (no gradient): `NAME_loss`, `NAME_advantage` of each
    term, `clip_fraction`, `approx_kl`.
    """
    trained_N = trained_positions(terms)
    logprobs_K, old_logprobs_K = logprobs_N[trained_N], old_logprobs_N[trained_N]  # what is left out gets gradient 0
    shares = {t.name: t.weight * t.advantages_N[trained_N] / max(counts[t.name], 1) for t in terms}
    coefficients_K = torch.stack(list(shares.values())).sum(0)
    loss_K, ratio_K = policy_gradient(logprobs_K, old_logprobs_K, coefficients_K, clip_low, clip_high)
    with torch.no_grad():
        metrics = {f"{name}_loss": (-ratio_K * share_K).sum() for name, share_K in shares.items()}
        metrics |= {f"{t.name}_advantage": t.advantages_N.sum() / max(counts[t.name], 1) for t in terms}
        rho_K = (logprobs_K - old_logprobs_K).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        metrics["clip_fraction"] = (ratio_K != rho_K).to(rho_K).sum() / max(counts["trained"], 1)
        metrics["approx_kl"] = kl_from_old(logprobs_K, old_logprobs_K).sum() / max(counts["trained"], 1)
    return loss_K.sum(), metrics


def entropy(logits_NV: Tensor, rows: int = 256) -> Tensor:
    """Entropy of each softmax (nats, [N]), `rows` at a time: a second copy of the logits would be too much."""
    parts = []
    for chunk_nV in logits_NV.split(rows):
        logprobs_nV = chunk_nV.log_softmax(-1)
        parts.append(-(logprobs_nV.exp() * logprobs_nV).nan_to_num(0.0).sum(-1))  # p log p is 0 where p is 0
    return torch.cat(parts) if parts else logits_NV.new_zeros(0)
