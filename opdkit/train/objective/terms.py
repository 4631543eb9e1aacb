"""How an objective is put together from terms, and the loss of an optimizer step.

N response positions of a micro-batch, one turn after the other; K tokens of a support; l the student's log-probs now.

A term has a weight, the positions that it applies to (its mask), and their number in the whole optimizer step over
all micro-batches and processes (its divisor). So each is a mean over ITS positions: a turn with a reward and no hint
trains on its reward alone, and is not in the teacher's count. An objective is a set of weights and nothing more.

    reward       clipped policy gradient of the sampled token, A = the turn's reward
    teacher      the same, A = clip(l_T - l_old)
    support      clipped policy gradient of each of the K tokens, A_v = w_v clip(l_T(v) - l_old(v)), summed over v
    divergence   of student and teacher over the K tokens and the rest
    kl           to the old policy, at the positions where any of the others applies

Reward and teacher speak about the same ratio, so one clip decision is taken for their sum: with advantages a_s, weights
w_s and divisors n_s, position i carries c_i = sum over s of w_s a_si / n_s, and the loss is the clipped policy gradient
of c. It is homogeneous in c, so where every position has every source it is the token mean for the advantage
A = w_reward reward + w_teacher teacher.

Whatever is not there is NaN until it has been masked, so that a mistake in a mask stops the run instead of training on
an invented number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from opdkit.train.objective.advantages import (
    behavior_weights,
    reward_advantages,
    support_advantages,
    teacher_advantages,
)
from opdkit.train.objective.losses import divergence, kl_from_old, kl_to_reference, policy_gradient, was_clipped

# objective -> the weights of its terms; one set, or several that optimizer steps take in turn. A reward speaks at every
# token, a teacher only where it disagrees: beside a teacher, a reward of weight 1 would be all that is heard.
PRESETS: dict[str, tuple[dict[str, float], ...]] = {
    "opd": ({"teacher": 1.0},),
    "binary": ({"reward": 1.0},),
    "combine": ({"reward": 0.2, "teacher": 1.0},),
    "topk": ({"support": 1.0},),
    "hybrid": ({"reward": 0.2, "support": 1.0},),
    "distill": ({"divergence": 1.0},),
    "blend": ({"reward": 0.1, "divergence": 1.0},),
    "alternate": ({"reward": 1.0}, {"teacher": 1.0}),
}
SUPPORTED = ("support", "divergence")  # the terms that need the teacher's support
SAMPLED = ("reward", "teacher")  # the terms that share the sampled token's ratio


@dataclass(frozen=True)
class Objective:
    """The weights of the terms, and the numbers in their formulas."""

    weights: Mapping[str, float]
    advantage_clip: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    divergence_alpha: float = 0.5
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    min_advantage: float = 0.0
    skip_first: int = 0
    confidence_weight: bool = False
    behavior_cap: float = 2.0
    blame_below: float = 0.95
    aggregation: str = "token-mean"


@dataclass(frozen=True)
class Tokens:
    """What is known about N response positions before the forward pass. NaN: not there."""

    turn_N: Tensor  # int64: which of the turns this is, from 0
    position_N: Tensor  # int64: index of the token in its response
    sampled_N: Tensor  # bool: the policy sampled this token (the response mask)
    old_logprobs_N: Tensor  # student before training, nats
    teacher_logprobs_N: Tensor  # nats; NaN where the turn has no hint
    behavior_logprobs_N: Tensor  # of the policy that wrote the log, nats; NaN where the log has none
    reward_N: Tensor  # what the turn's reward is worth; NaN where it has none
    supported_N: Tensor  # bool: the position has a support
    support_ids_NK: Tensor  # int64; 0 where there is none. K is 0 where no turn has a support
    support_old_NK: Tensor  # nats
    support_teacher_NK: Tensor  # nats

    def to(self, device: torch.device) -> "Tokens":
        return Tokens(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


@dataclass(frozen=True)
class Term:
    """One term at N positions. Outside the mask, advantages and scale are 0."""

    name: str
    mask_N: Tensor  # bool
    scale_N: Tensor  # weight of the term x weight of the token, before the division by the term's divisor
    advantages: Tensor | None  # [N], for support [N, K]; a divergence and a KL have none


# -- the terms ------------------------------------------------------------------------------------------------------


def terms_of(objective: Objective, tokens: Tokens) -> list[Term]:
    """The terms of an objective that have a weight."""
    terms = [_term(name, weight, objective, tokens) for name, weight in objective.weights.items() if weight]
    if objective.kl_coef:
        mask_N = trained_positions(terms)
        scale_N = _scale(objective, tokens, mask_N, objective.kl_coef * torch.ones_like(tokens.old_logprobs_N))
        terms.append(Term("kl", mask_N, scale_N, None))
    return terms


def _term(name: str, weight: float, objective: Objective, tokens: Tokens) -> Term:
    old_N, clip = tokens.old_logprobs_N, objective.advantage_clip
    mask_N = _rewarded(objective, tokens) if name == "reward" else _taught(name, objective, tokens)
    weight_N = weight * torch.ones_like(old_N)
    if name != "reward" and objective.confidence_weight:
        weight_N = weight_N * tokens.teacher_logprobs_N.exp()
    if name in SAMPLED:  # the others sum over tokens, whoever sampled the one that is there
        weight_N = weight_N * behavior_weights(old_N, tokens.behavior_logprobs_N, objective.behavior_cap)
    advantages: Tensor | None = None
    if name == "reward":
        advantages = reward_advantages(tokens.reward_N, mask_N)
    elif name == "teacher":
        advantages = teacher_advantages(tokens.teacher_logprobs_N, old_N, mask_N, clip)
    elif name == "support":
        advantages = support_advantages(tokens.support_old_NK, tokens.support_teacher_NK, mask_N, clip)
    return Term(name, mask_N, _scale(objective, tokens, mask_N, weight_N), advantages)


def _rewarded(objective: Objective, tokens: Tokens) -> Tensor:
    """Where the reward is felt: bool [N]. What the student was sure of is not what a negative reward is about."""
    mask_N = tokens.sampled_N & ~tokens.reward_N.isnan()
    if objective.blame_below < 1:
        mask_N = mask_N & ~((tokens.reward_N < 0) & (tokens.old_logprobs_N.exp() >= objective.blame_below))
    return mask_N


def _taught(name: str, objective: Objective, tokens: Tokens) -> Tensor:
    """Where the teacher has something to say, after the filters: bool [N]."""
    mask_N = tokens.sampled_N & ~tokens.teacher_logprobs_N.isnan() & (tokens.position_N >= objective.skip_first)
    if objective.min_advantage:
        mask_N = mask_N & ((tokens.teacher_logprobs_N - tokens.old_logprobs_N).abs() >= objective.min_advantage)
    return mask_N & tokens.supported_N if name in SUPPORTED else mask_N


def _scale(objective: Objective, tokens: Tokens, mask_N: Tensor, weight_N: Tensor) -> Tensor:
    """`weight_N` inside the mask, for a mean of per-turn means divided by the number of the turn's positions."""
    if objective.aggregation == "turn-mean" and len(mask_N):
        in_turn_T = torch.zeros(int(tokens.turn_N.max()) + 1, dtype=weight_N.dtype, device=weight_N.device)
        in_turn_T = in_turn_T.index_add(0, tokens.turn_N, mask_N.to(weight_N))
        weight_N = weight_N / in_turn_T[tokens.turn_N].clamp(min=1)
    return torch.where(mask_N, weight_N, 0.0)


def trained_positions(terms: Sequence[Term]) -> Tensor:
    """Where at least one term applies: bool [N]."""
    return torch.stack([term.mask_N for term in terms]).any(0)


def step_totals(terms: Sequence[Term], tokens: Tokens, aggregation: str) -> dict[str, int]:
    """Counts over a whole optimizer step: the divisor of each term under its name, and its tokens as `NAME_tokens`.

    The divisor is the number of tokens, or with turn-mean of turns. `trained_tokens` counts the positions of any term,
    `ratios` all probability ratios.
    """
    totals = {f"{term.name}_tokens": int(term.mask_N.sum()) for term in terms}
    for term in terms:
        turns = len(tokens.turn_N[term.mask_N].unique())
        totals[term.name] = turns if aggregation == "turn-mean" else totals[f"{term.name}_tokens"]
    totals["trained_tokens"] = int(trained_positions(terms).sum())
    sampled = [term.mask_N for term in terms if term.name in SAMPLED]
    totals["ratios"] = int(torch.stack(sampled).any(0).sum()) if sampled else 0
    totals["ratios"] += totals.get("support_tokens", 0) * tokens.support_ids_NK.shape[-1]
    return totals


# -- the loss of a step ---------------------------------------------------------------------------------------------


def step_loss(
    logprobs_N: Tensor,
    support_NK: Tensor,
    tokens: Tokens,
    terms: Sequence[Term],
    totals: Mapping[str, int],
    objective: Objective,
) -> tuple[Tensor, dict[str, Tensor]]:
    """This micro-batch's share of the optimizer step's loss, and its share of each metric.

    `logprobs_N` and `support_NK` are the student's log-probs now, of the sampled tokens and of the supports. `totals`
    are `step_totals` of the whole step: summed over its micro-batches and processes, the shares are the loss and the
    metrics of the step, however it was split. Metrics (no gradient): `NAME_loss` of each term, `NAME_advantage` of
    those that have one, `clip_fraction` where there are ratios, `approx_kl`.
    """
    losses = [_sampled_loss(logprobs_N, tokens, [t for t in terms if t.name in SAMPLED], totals, objective)]
    for term in terms:
        if term.name not in SAMPLED:
            losses.append(_term_loss(logprobs_N, support_NK, tokens, term, totals, objective))
    metrics: dict[str, Tensor] = {}
    with torch.no_grad():
        for _, _, shares in losses:
            metrics |= shares
        for term in terms:
            if term.advantages is not None:
                metrics[f"{term.name}_advantage"] = term.advantages.sum() / max(totals[f"{term.name}_tokens"], 1)
        if totals["ratios"]:
            metrics["clip_fraction"] = torch.stack([clipped for _, clipped, _ in losses]).sum() / totals["ratios"]
        trained_N = trained_positions(terms)
        kl_K = kl_from_old(logprobs_N[trained_N], tokens.old_logprobs_N[trained_N])
        metrics["approx_kl"] = kl_K.sum() / max(totals["trained_tokens"], 1)
    return torch.stack([loss for loss, _, _ in losses]).sum(), metrics


# The loss of some terms, how many of their ratios were clipped, and the share of each term in the loss.
_Loss = tuple[Tensor, Tensor, dict[str, Tensor]]


def _sampled_loss(
    logprobs_N: Tensor, tokens: Tokens, terms: Sequence[Term], totals: Mapping[str, int], objective: Objective
) -> _Loss:
    """The terms of the sampled token, with one clip decision for their sum."""
    where_N = trained_positions(terms) if terms else torch.zeros_like(tokens.sampled_N)
    # What is left out is not even computed: its gradient is 0, and its NaN stays where it is.
    now, old = logprobs_N[where_N], tokens.old_logprobs_N[where_N]
    shares = {t.name: (t.scale_N * _advantages(t))[where_N] / max(totals[t.name], 1) for t in terms}
    coefficients = torch.stack(list(shares.values())).sum(0) if terms else torch.zeros_like(now)
    loss, ratio = policy_gradient(now, old, coefficients, *_clips(objective))
    parts = {f"{name}_loss": (-ratio.detach() * share).sum() for name, share in shares.items()}
    return loss.sum(), was_clipped(ratio, now, old).to(now).sum().detach(), parts


def _term_loss(
    logprobs_N: Tensor,
    support_NK: Tensor,
    tokens: Tokens,
    term: Term,
    totals: Mapping[str, int],
    objective: Objective,
) -> _Loss:
    mask_N, clipped = term.mask_N, logprobs_N.new_zeros(())
    scale_N = term.scale_N[mask_N] / max(totals[term.name], 1)
    if term.name == "support":
        now, old, advantages = support_NK[mask_N], tokens.support_old_NK[mask_N], _advantages(term)[mask_N]
        loss, ratio = policy_gradient(now, old, advantages, *_clips(objective))
        loss_N, clipped = loss.sum(-1), was_clipped(ratio, now, old).to(now).sum().detach()
    elif term.name == "divergence":
        loss_N = divergence(support_NK[mask_N], tokens.support_teacher_NK[mask_N], objective.divergence_alpha)
    else:
        loss_N = kl_to_reference(logprobs_N[mask_N], tokens.old_logprobs_N[mask_N], objective.kl_estimator)
    loss = (scale_N * loss_N).sum()
    return loss, clipped, {f"{term.name}_loss": loss.detach()}


def _advantages(term: Term) -> Tensor:
    assert term.advantages is not None
    return term.advantages


def _clips(objective: Objective) -> tuple[float, float, float]:
    return objective.clip_low, objective.clip_high, objective.dual_clip
