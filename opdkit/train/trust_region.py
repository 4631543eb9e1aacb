"""Trust region of a training: how far one optimizer step may move the student's own replies.

The same learning rate moves one model a little and destroys another. So a step is limited by a KL: some replies of the
step are read again after it, and a step that moved them too far is made smaller, as in TRPO (Schulman et al. 2015),
which backtracks along one direction until a KL constraint holds. Without a given learning rate, the first step of a
cycle finds one: the rate that moves the replies by the limit.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from opdkit.config.train import TrainConfig
from opdkit.console import warn
from opdkit.store.stable_hash import stable_hash
from opdkit.train.schedule import Position, choose_first_rate
from opdkit.train.targets import Reply

PROBE_SHARE = 0.05  # share of a step's tokens that is read again after the step, in whole replies (the probe)
# Cap on the probe where prefixes are not shared, and size of the trees by which `bound_step` counts a step's tokens. It
# does not depend on --micro-batch-tokens: else the split of a step would decide the probe, and so the learning rate.
PROBE_TOKENS = 8192
FIRST_STEPS = 8  # every one of these is measured, in each cycle
MEASURE_EVERY = 5  # after them: steps 10, 15, and so on
# Largest learning rate, as a share of the root mean square of the weights. Twice that forgets facts that the log does
# not mention, and no reply of the validation shows it.
MAX_RATE_TO_WEIGHTS = 0.005
_SLACK = 2.0  # a KL within this factor of the limit is accepted, since it is an estimate from a few replies
_LEAST = 0.02  # smallest limit of a step, as a share of the limit at the peak of the schedule
_TRIES = 8  # most rates that are tried for one step
_MAX_CHANGE = 100.0  # largest factor between the rates of successive tries


class BoundedStep(NamedTuple):
    """Step within the trust region: its KL (nats per reply), its learning rate, and how often the KL was measured."""

    kl: float
    rate: float
    measurements: int


@dataclass
class TrustRegion:
    """Limit of a step, and the factor on the schedule's learning rates that keeps steps within the limit.

    The factor starts low, and the first steps raise it, up to `max_factor`: small steps can be undone more exactly.
    """

    limit: float  # nats per reply, for a step at the peak of the schedule; 0: no limit
    factor: float = 1.0
    max_factor: float = 1.0

    def is_measured(self, step: int) -> bool:
        """Return True for a step (from 1) whose movement is measured."""
        return bool(self.limit) and (step <= FIRST_STEPS or step % MEASURE_EVERY == 0)

    def bound(
        self, position: Position, move: Callable[[float, float], None], measure: Callable[[], float]
    ) -> BoundedStep:
        """Shrink the step just taken until its KL is at most _SLACK times its limit; a cycle's first may also grow.

        Stop after _TRIES measurements. A KL grows with the square of the rate, so the limit follows the square of the
        schedule. `move(a, b)` replaces a step at rate a by one at rate b; `measure()` returns the KL (nats).
        """
        # _LEAST: in bfloat16, even a tiny step moves the replies, because some weights are then rounded differently.
        limit = self.limit * max(position.relative_rate**2, _LEAST)
        rate, measurements = position.rate * self.factor, 0
        while True:
            kl, measurements = measure(), measurements + 1
            kl = math.inf if math.isnan(kl) else kl
            too_large = kl > _SLACK * limit
            too_small = position.step_in_cycle == 1 and kl < limit / _SLACK and self.factor < 0.99 * self.max_factor
            if measurements == _TRIES or not (too_large or too_small):
                break
            change = math.sqrt(limit / max(kl, 1e-30))
            change = min(max(change, 1 / _MAX_CHANGE), _MAX_CHANGE, self.max_factor / self.factor)
            move(rate, rate * change)
            rate, self.factor = rate * change, self.factor * change
        if position.step_in_cycle <= FIRST_STEPS and kl < limit / _SLACK**2:  # the next steps may be larger
            self.factor = min(self.factor * math.sqrt(_SLACK), self.max_factor)
        return BoundedStep(kl, rate, measurements)


def make_trust_region(config: TrainConfig, student: nn.Module) -> TrustRegion:
    """Return the trust region of a training.

    A given learning rate is the largest that a step may have. The KL is only measured on a few trained replies, not on
    new ones that become likely. So a rate is also at most MAX_RATE_TO_WEIGHTS of the weights' root mean square (of
    all matrices, trained or not), as in Adafactor (Shazeer and Stern 2018): AdamW moves a weight by about its rate.
    Warn if the given rate is larger.
    """
    if not config.step_limit:
        return TrustRegion(0.0)
    matrices: Iterable[torch.Tensor] = (p for p in student.parameters() if p.ndim >= 2)  # one at a time
    if any(hasattr(matrix, "quant_state") for matrix in student.parameters()):
        # Imported only here, since importing bitsandbytes takes more than a second.
        from transformers.integrations.bitsandbytes import dequantize_bnb_weight

        matrices = map(dequantize_bnb_weight, matrices)
    squares, sizes = zip(*((float(m.detach().float().square().sum()), m.numel()) for m in matrices), strict=True)
    max_rate = MAX_RATE_TO_WEIGHTS * math.sqrt(sum(squares) / sum(sizes))
    if config.learning_rate is None:
        max_factor, start = max_rate / choose_first_rate(config), 1.0
    else:
        rate = max(config.learning_rate, 1e-30)
        if rate > max_rate:
            warn(f"no step has the given --learning-rate {rate:g}: for this model's weights, opdkit allows at most "
                 f"{max_rate:.2g} (--step-limit 0 trains without any limit)")  # fmt: skip
        max_factor, start = min(max_rate / rate, 1.0), choose_first_rate(config) / rate
    return TrustRegion(config.step_limit, min(start, max_factor), max_factor)


@torch.no_grad()
def change_rate(optimizer: torch.optim.Optimizer, before: float, after: float) -> None:
    """Turn the weights after a step of AdamW at rate `before` into those after the same step at rate `after`.

    A step maps p to p (1 - rate decay) - rate u, where u depends only on the optimizer's state (Loshchilov and Hutter
    2019). So it can be undone, up to rounding, without a copy of the weights.
    """
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            step, decay = float(state["step"]), group["weight_decay"]
            scale = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
            update = (state["exp_avg"] / (1 - beta1**step)).div_(scale)
            parameter.add_(update, alpha=before).mul_((1 - after * decay) / (1 - before * decay))
            parameter.sub_(update, alpha=after)


def raise_epsilon(optimizer: torch.optim.Optimizer, share: float, grad_norm: float, weights: int) -> None:
    """Raise AdamW's epsilon to `share` of the largest gradient so far (root mean square over all weights).

    AdamW divides each gradient by its own recent size. Once the replies are learned, gradients are a hundredth of the
    first ones. But with the usual epsilon of 1e-8, their noise would still move the weights at the full rate.
    """
    for group in optimizer.param_groups:
        group["eps"] = max(group["eps"], share * grad_norm / math.sqrt(weights))


def choose_probe(replies: Sequence[Reply], step_tokens: int) -> list[int]:
    """Return the indices of the replies to read again after a step: replies with a hint first, in the order of a hash.

    They hold PROBE_SHARE of the tokens of all replies, up to PROBE_TOKENS, but at least PROBE_SHARE of `step_tokens`,
    in which common prefixes count once. The cap is needed because each prompt is read from its beginning. The replies
    of a long session, counted in full, can be many times the tokens of the step.
    """
    order = sorted(range(len(replies)), key=lambda i: (not replies[i].is_hinted, stable_hash(replies[i].turn_id)))
    wanted = max(PROBE_SHARE * step_tokens, min(PROBE_SHARE * sum(map(len, replies)), PROBE_TOKENS))
    chosen: list[int] = []
    while sum(len(replies[i]) for i in chosen) < wanted:
        chosen.append(order[len(chosen)])
    return chosen
