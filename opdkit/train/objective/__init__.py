"""Advantages, losses, and how an objective is put together from them: pure functions on tensors."""

from opdkit.train.objective.advantages import (
    behavior_weights,
    group_normalised,
    overlong,
    reward_advantages,
    support_advantages,
    teacher_advantages,
)
from opdkit.train.objective.losses import (
    divergence,
    entropy,
    gathered_logprobs,
    kl_from_old,
    kl_to_reference,
    log_rest,
    policy_gradient,
    with_rest,
)
from opdkit.train.objective.terms import (
    PRESETS,
    SUPPORTED,
    TERMS,
    Objective,
    Term,
    Tokens,
    step_loss,
    step_totals,
    terms_of,
    trained_positions,
)

__all__ = [
    "PRESETS",
    "SUPPORTED",
    "TERMS",
    "Objective",
    "Term",
    "Tokens",
    "behavior_weights",
    "divergence",
    "entropy",
    "gathered_logprobs",
    "group_normalised",
    "kl_from_old",
    "kl_to_reference",
    "log_rest",
    "overlong",
    "policy_gradient",
    "reward_advantages",
    "step_loss",
    "step_totals",
    "support_advantages",
    "teacher_advantages",
    "terms_of",
    "trained_positions",
    "with_rest",
]
