"""Advantages of turns and tokens, and weights of tokens: pure functions. The loss treats them as constants.

Shapes: N positions, K tokens of a support. All log-probs are natural logs of the full-vocabulary softmax at
temperature 1.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

MIN_STD = 1e-8  # rewards with a smaller standard deviation count as equal
ODDS = 4.0  # assumed ratio P(praise | the logged token) / P(praise | another token in its place)
PRAISE = 9.0  # the anchor weight of a praised token is 1 + this times the token's probability


def penalise_overlong(length: int, longest: int, cache: int, shape: str = "linear") -> float:
    """Return the penalty for a reply of `length` tokens: 0 up to `longest - cache`, then falling to -1 at `longest`.

    Let x be the share of the last `cache` tokens that the reply uses. The penalty is -x if `shape` is "linear" (soft
    overlong punishment of DAPO, Yu et al. 2025) and -x^2 if it is "quadratic". `longest` 0 is off.
    """
    if not longest or length <= longest - cache:
        return 0.0
    used = min((length - (longest - cache)) / cache, 1.0)
    return -(used**2) if shape == "quadratic" else -used


def normalise_in_groups(
    rewards: Sequence[float], groups: Sequence[Hashable], *, keep_lone: bool, divide: bool = True
) -> list[float]:
    """Return (r - mean) / std of each reward within its group, with the unbiased std (GRPO; Shao et al. 2024).

    Without `divide`, it is r - mean (Dr. GRPO; Liu et al. 2025), so nearly equal rewards are not scaled up. A group of
    equal rewards gives 0. A group of one keeps its reward with `keep_lone`, else it gives 0.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        members[group].append(i)
    normalised = [0.0] * len(rewards)
    for indices in members.values():
        values = torch.tensor([rewards[i] for i in indices], dtype=torch.float64)
        if len(indices) == 1:
            normalised[indices[0]] = float(rewards[indices[0]]) if keep_lone else 0.0
        elif values.std() >= MIN_STD:
            scale = values.std() if divide else 1.0
            for i, value in zip(indices, ((values - values.mean()) / scale).tolist(), strict=True):
                normalised[i] = value
    return normalised


def teacher_advantages(teacher_logprobs_N: Tensor, old_logprobs_N: Tensor, mask_N: Tensor, clip: float) -> Tensor:
    """Return clip(l_T - l_old, -clip, +clip) in nats [N], 0 outside the mask; `clip` 0 is off (OpenClaw-RL, verl)."""
    advantages_N = torch.where(mask_N, teacher_logprobs_N - old_logprobs_N, 0.0)
    return advantages_N.clamp(-clip, clip) if clip else advantages_N


def support_advantages(old_NK: Tensor, teacher_NK: Tensor, mask_N: Tensor, clip: float) -> Tensor:
    """Return w_v clip(l_T(v) - l_old(v), -clip, +clip) for each token v of the support [N, K], 0 outside the mask.

    w is the softmax of l_old over the support, so the sum over v is the expected advantage of a token drawn from the
    support (OpenClaw-RL v2). The loss uses full-vocabulary probability ratios with it. `clip` 0 is off.
    """
    difference_NK = teacher_NK - old_NK
    if clip:
        difference_NK = difference_NK.clamp(-clip, clip)
    return torch.where(mask_N[:, None], old_NK.softmax(-1) * difference_NK, 0.0)


def apply_praise(old_NK: Tensor, praised_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(v | the reply was praised) for each token v of the support [N, K], and weights of the positions [N].

    `praised_NK` marks the tokens of praised replies. By Bayes' rule, praise multiplies the odds of a token by ODDS. The
    token was right, and if its probability p was high, the student's own choice. Hints on other replies must not change
    it, so its position has the weight 1 + PRAISE p. Other positions keep their log-probs, with the weight 1.
    """
    praised_N = torch.where(praised_NK, old_NK, -math.inf).exp().sum(-1)
    likelier_NK = torch.where(praised_NK, old_NK + math.log(ODDS), old_NK)
    return likelier_NK - (1 + (ODDS - 1) * praised_N).log()[:, None], 1 + PRAISE * praised_N


def behavior_weights(old_logprobs_N: Tensor, behavior_logprobs_N: Tensor, cap: float) -> Tensor:
    """Return min(exp(l_old - l_behavior), cap) [N]; 1 where the log has no log-probs (NaN), or if `cap` is 0.

    Truncated importance sampling (Ionides 2008): the policy that wrote the log, not the old policy, drew the tokens.
    """
    if not cap:
        return torch.ones_like(old_logprobs_N)
    # The logarithm is capped, since exp of a large difference would overflow.
    log_weights_N = (old_logprobs_N - behavior_logprobs_N).clamp(max=math.log(cap))
    return torch.where(behavior_logprobs_N.isnan(), 1.0, log_weights_N.exp())
