"""Objectives: sums of weighted terms, and the loss of an optimizer step.

Shapes: N response positions of a micro-batch, one turn after the other, n of them in a mask; K stored tokens (support).
l is the student's current log-prob, l_old its log-prob before training (old policy), and l_T the hinted teacher's.

A term has a weight, a mask (the positions that it applies to) and a divisor (their number in the whole optimizer step,
over all micro-batches and processes). So each term is a mean over its own positions: a turn with a reward and no hint
does not count in the teacher's divisor. An objective is a set of weights of TERMS; anchor and kl have their own.

    reward       clipped policy gradient of the sampled token, A = the turn's reward
    teacher      the same with A = clip(l_T - l_old)
    support      clipped policy gradient of each of the K tokens, A_v = w_v clip(l_T(v) - l_old(v)), summed over v
    divergence   divergence of student and teacher over the K tokens and the rest, plus some forward KL
    anchor       divergence of the student now and before training, over the K tokens and the rest, for turns without
                 a complaint; tokens of praised replies have a higher target probability (`apply_praise`)
    kl           KL to the reference (the old policy or a frozen model), at the positions where any other term applies

Reward and teacher share one ratio, so their sum is clipped as one: with advantages a_s, weights w_s and divisors n_s,
position i has the coefficient c_i = sum over s of w_s a_si / n_s, and the loss is the clipped policy gradient with c as
the advantage. This loss is homogeneous in c: if all positions have both advantages, it is the token mean for
A = w_reward reward + w_teacher teacher.

Missing values are NaN until they are masked, so that a wrong mask makes the loss NaN, which stops the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from opdkit.train.objective.advantages import apply_praise, behavior_weights, support_advantages, teacher_advantages
from opdkit.train.objective.losses import divergence, kl_to_reference, policy_gradient

TERMS = ("reward", "teacher", "support", "divergence")
SAMPLED = TERMS[:2]  # terms of the sampled token, which share its ratio
SUPPORTED = TERMS[2:]  # terms of the K tokens of the support

# objective -> weights of its terms, per phase; the optimizer steps of several phases alternate. A reward acts on every
# token, the teacher only where it disagrees with the student: with weight 1, the reward would outweigh the teacher.
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


@dataclass(frozen=True)
class Objective:
    """Weights of the terms, and the options of `opdkit train` that the formulas use, under the same names."""

    weights: Mapping[str, float]
    advantage_clip: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    divergence_alpha: float = 0.5
    forward_kl: float = 0.02
    anchor_weight: float = 0.0
    kl_coef: float = 0.0
    kl_estimator: str = "k1"
    min_advantage: float = 0.0
    skip_first: int = 0
    confidence_weight: bool = False
    behavior_cap: float = 2.0
    negative_below: float = 0.95
    aggregation: str = "token-mean"


@dataclass(frozen=True)
class Tokens:
    """N response positions before the forward pass. Log-probs are in nats; NaN: missing."""

    turn_N: Tensor  # int64: index of the turn, from 0
    position_N: Tensor  # int64: index of the token in its response
    sampled_N: Tensor  # bool: the policy sampled this token (the response mask)
    old_logprobs_N: Tensor  # of the student before training
    reference_N: Tensor  # log-probs of the reference of the KL
    teacher_logprobs_N: Tensor  # NaN where the turn has no hint
    behavior_logprobs_N: Tensor  # of the policy that wrote the log; NaN where the log has none
    reward_N: Tensor  # the turn's shaped reward; NaN where it has none
    supported_N: Tensor  # bool: the position has a support with the teacher's log-probs
    anchored_N: Tensor  # bool: the position has a support, and nobody complained about its turn
    praised_NK: Tensor  # bool: this token of the support is the response token, and its shaped reward is positive
    support_ids_NK: Tensor  # int64; 0 without a support. K is 0 if no turn has a support
    support_old_NK: Tensor
    support_teacher_NK: Tensor

    def to(self, device: torch.device) -> "Tokens":
        """Return a copy on `device`."""
        return Tokens(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


@dataclass(frozen=True)
class Term:
    """Term of an objective at N positions. Outside the mask, advantages and scale are 0."""

    name: str
    mask_N: Tensor  # bool
    scale_N: Tensor  # weight of the term x weight of the token, before the division by the term's divisor
    advantages: Tensor | None  # [N], for support [N, K]; None for divergence, anchor and kl
    target_NK: Tensor | None = None  # for divergence and anchor: log-probs of the support to move the student to


def make_terms(objective: Objective, tokens: Tokens) -> list[Term]:
    """Return the terms of an objective whose weight is not 0."""
    terms = [_term(name, weight, objective, tokens) for name, weight in objective.weights.items() if weight]
    if objective.anchor_weight:
        mask_N = tokens.sampled_N & tokens.anchored_N
        target_NK, weight_N = apply_praise(tokens.support_old_NK, tokens.praised_NK)
        scale_N = _scale(objective, tokens, mask_N, objective.anchor_weight * weight_N)
        terms.append(Term("anchor", mask_N, scale_N, None, target_NK))
    if objective.kl_coef:
        mask_N = find_trained(terms)
        terms.append(Term("kl", mask_N, _scale(objective, tokens, mask_N, objective.kl_coef), None))
    return terms


def _term(name: str, weight: float, objective: Objective, tokens: Tokens) -> Term:
    """Return one of TERMS: its mask, token weights and advantages; `make_terms` builds anchor and kl."""
    old_N, teacher_N, clip = tokens.old_logprobs_N, tokens.teacher_logprobs_N, objective.advantage_clip
    if name == "reward":
        mask_N = tokens.sampled_N & ~tokens.reward_N.isnan()
        if objective.negative_below < 1:  # a negative reward skips tokens that the student was sure of
            mask_N = mask_N & ~((tokens.reward_N < 0) & (old_N.exp() >= objective.negative_below))
    else:
        mask_N = tokens.sampled_N & ~teacher_N.isnan() & (tokens.position_N >= objective.skip_first)
        if objective.min_advantage:
            mask_N = mask_N & ((teacher_N - old_N).abs() >= objective.min_advantage)
        if name in SUPPORTED:
            mask_N = mask_N & tokens.supported_N
    weight_N: Tensor | float = weight
    if name != "reward" and objective.confidence_weight:
        weight_N = weight_N * teacher_N.exp()
    if name in SAMPLED:  # the other terms do not depend on the sampled token
        weight_N = weight_N * behavior_weights(old_N, tokens.behavior_logprobs_N, objective.behavior_cap)
    advantages: Tensor | None = None
    if name == "reward":  # the turn's reward at each of its tokens (OpenClaw-RL's binary objective)
        advantages = torch.where(mask_N, tokens.reward_N, 0.0)
    elif name == "teacher":
        advantages = teacher_advantages(teacher_N, old_N, mask_N, clip)
    elif name == "support":
        advantages = support_advantages(tokens.support_old_NK, tokens.support_teacher_NK, mask_N, clip)
    target_NK = tokens.support_teacher_NK if name == "divergence" else None
    return Term(name, mask_N, _scale(objective, tokens, mask_N, weight_N), advantages, target_NK)


def _scale(objective: Objective, tokens: Tokens, mask_N: Tensor, weight: Tensor | float) -> Tensor:
    """Return `weight` [N] inside the mask, else 0; for turn-mean, divided by the turn's number of positions in it."""
    weight_N = weight * torch.ones_like(tokens.old_logprobs_N)
    if objective.aggregation == "turn-mean" and len(mask_N):
        in_turn_T = torch.zeros(int(tokens.turn_N.max()) + 1, dtype=weight_N.dtype, device=weight_N.device)
        in_turn_T = in_turn_T.index_add(0, tokens.turn_N, mask_N.to(weight_N))
        weight_N = weight_N / in_turn_T[tokens.turn_N].clamp(min=1)
    return torch.where(mask_N, weight_N, 0.0)


def find_trained(terms: Sequence[Term]) -> Tensor:
    """Return a mask [N] of the positions where at least one term applies."""
    return torch.stack([term.mask_N for term in terms]).any(0)


def count_totals(terms: Sequence[Term], tokens: Tokens, aggregation: str) -> dict[str, int]:
    """Return counts over a whole optimizer step: the divisor of each term as NAME, its tokens as `NAME_tokens`.

    The divisor is the number of tokens or, with turn-mean, of turns. `trained_tokens` counts the positions where any
    term applies, `ratios` all probability ratios.
    """
    totals = {f"{term.name}_tokens": int(term.mask_N.sum()) for term in terms}
    for term in terms:
        turns = len(tokens.turn_N[term.mask_N].unique())
        totals[term.name] = turns if aggregation == "turn-mean" else totals[f"{term.name}_tokens"]
    totals["trained_tokens"] = int(find_trained(terms).sum())
    sampled = [term.mask_N for term in terms if term.name in SAMPLED]
    totals["ratios"] = int(torch.stack(sampled).any(0).sum()) if sampled else 0
    totals["ratios"] += totals.get("support_tokens", 0) * tokens.support_ids_NK.shape[-1]
    return totals


def compute_loss(
    logprobs_N: Tensor,
    support_NK: Tensor,
    tokens: Tokens,
    terms: Sequence[Term],
    totals: Mapping[str, int],
    objective: Objective,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return this micro-batch's share of the optimizer step's loss, and its share of each metric.

    `logprobs_N` and `support_NK` are the student's current log-probs of the sampled tokens and of the supports.
    `totals` is the `count_totals` of the whole step. So the shares sum, over micro-batches and processes, to the step's
    loss and metrics, however it was split. Metrics (no gradient): `NAME_loss` of each term, `NAME_advantage` of terms
    with advantages, `clip_fraction` if there are ratios, `approx_kl`, and `shift` (mean |l - l_old|, nats per token).
    """
    sampled_terms = [term for term in terms if term.name in SAMPLED]
    loss, clipped, metrics = _compute_sampled_loss(logprobs_N, tokens, sampled_terms, totals, objective)
    losses = [loss]
    for term in terms:
        if term.name in SAMPLED:
            continue
        mask_N = term.mask_N
        if term.name == "support":
            assert term.advantages is not None
            now, old = support_NK[mask_N], tokens.support_old_NK[mask_N]
            bounds = objective.clip_low, objective.clip_high, objective.dual_clip
            loss_nK, _, clipped_nK = policy_gradient(now, old, term.advantages[mask_N], *bounds)
            loss_n, clipped = loss_nK.sum(-1), clipped + clipped_nK.sum()
        elif term.target_NK is not None:
            alpha, forward_kl = objective.divergence_alpha, objective.forward_kl
            loss_n = divergence(support_NK[mask_N], term.target_NK[mask_N], alpha, forward_kl)
        else:
            now, old, reference = (x[mask_N] for x in (logprobs_N, tokens.old_logprobs_N, tokens.reference_N))
            loss_n = kl_to_reference(now, reference, objective.kl_estimator, old)
        losses.append((term.scale_N[mask_N] / max(totals[term.name], 1) * loss_n).sum())
        metrics[f"{term.name}_loss"] = losses[-1].detach()
    with torch.no_grad():
        for term in terms:
            if term.advantages is not None:
                metrics[f"{term.name}_advantage"] = term.advantages.sum() / max(totals[f"{term.name}_tokens"], 1)
        if totals["ratios"]:
            metrics["clip_fraction"] = clipped.to(logprobs_N) / totals["ratios"]
        trained_N = find_trained(terms)
        kl_n = kl_to_reference(tokens.old_logprobs_N[trained_N], logprobs_N[trained_N], "k3")  # KL(old || now)
        metrics["approx_kl"] = kl_n.sum() / max(totals["trained_tokens"], 1)
        shift_n = (logprobs_N[trained_N] - tokens.old_logprobs_N[trained_N]).abs()
        metrics["shift"] = shift_n.sum() / max(totals["trained_tokens"], 1)
    return torch.stack(losses).sum(), metrics


def _compute_sampled_loss(
    logprobs_N: Tensor, tokens: Tokens, terms: Sequence[Term], totals: Mapping[str, int], objective: Objective
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return (loss of the sampled token's terms, clipped together; number of clipped ratios; each `NAME_loss`)."""
    trained_N = find_trained(terms) if terms else torch.zeros_like(tokens.sampled_N)
    # Other positions are left out: their gradient is 0, and NaN there must not reach the sum.
    now, old = logprobs_N[trained_N], tokens.old_logprobs_N[trained_N]
    shares = {}
    for term in terms:
        assert term.advantages is not None
        shares[term.name] = (term.scale_N * term.advantages)[trained_N] / max(totals[term.name], 1)
    coefficients = torch.stack(list(shares.values())).sum(0) if terms else torch.zeros_like(now)
    bounds = objective.clip_low, objective.clip_high, objective.dual_clip
    loss, ratio, clipped = policy_gradient(now, old, coefficients, *bounds)
    metrics = {f"{name}_loss": (-ratio.detach() * share).sum() for name, share in shares.items()}
    return loss.sum(), clipped.sum(), metrics
