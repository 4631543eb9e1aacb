"""Trust region of a training: how far one optimizer step may move the student's own replies.

The same learning rate moves one model a little and destroys another. So the limit of a step is a KL: some turns of the
step are read again after it, and a step that moved them too far is made smaller, as in TRPO (Schulman et al. 2015),
which backtracks along one direction until a KL holds. Where no learning rate is given, the first step finds it: the
rate that moves the replies by the limit.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from opdkit.config.train import TrainConfig
from opdkit.store.stable_hash import stable_hash
from opdkit.train.schedule import Position, choose_first_rate
from opdkit.train.targets import Turn

PROBE_SHARE = 0.05  # of a step's tokens: the turns that are read again after it hold about so many
# At most so many where prefixes are read once. It does not follow --micro-batch-tokens: how a step is split would then
# decide what is read again, and so the learning rate.
PROBE_TOKENS = 8192
FIRST_STEPS = 8  # all of these are measured
MEASURE_EVERY = 5  # after them: steps 10, 15, and so on
MAX_RATE_TO_WEIGHTS = 0.01  # rate of a step, as a share of the root mean square of the weights
_SLACK = 2.0  # a KL up to this multiple of the limit stays: it is an estimate from a few turns
_LEAST = 0.02  # of the limit is allowed to the smallest step of the schedule
_TRIES = 8  # sizes that are tried for one step
_MAX_CHANGE = 100.0  # of a rate from one try to the next, as a factor


class BoundedStep(NamedTuple):
    """Step within the trust region: its KL (nats per reply), its learning rate, and how often the KL was measured."""

    kl: float
    rate: float
    measurements: int


@dataclass
class TrustRegion:
    """Limit of a step, and the factor by which the learning rates of the schedule are multiplied to keep within it.

    The first steps also raise the factor, up to `max_factor`: a small step can be taken back exactly.
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
        """Rescale the step just taken until its KL is within _SLACK of the limit. Only the first step is also enlarged.

        The KL of a step grows with the square of its rate, so the limit falls with the square of the schedule.
        `move(a, b)` turns the weights after the step at rate a into those at rate b. `measure()` returns the KL (nats).
        """
        # In bfloat16 a small step moves the replies more than its rate says: weights are rounded another way.
        limit = self.limit * max(position.relative_rate**2, _LEAST)
        rate, measurements = position.rate * self.factor, 0
        while True:
            kl, measurements = measure(), measurements + 1
            too_large = not kl <= _SLACK * limit  # NaN is too large
            too_small = position.step == 1 and kl < limit / _SLACK and self.factor < 0.99 * self.max_factor
            if measurements == _TRIES or not (too_large or too_small):
                break
            change = math.sqrt(limit / kl) if kl > 0 and math.isfinite(kl) else 0.0 if too_large else math.inf
            change = min(max(change, 1 / _MAX_CHANGE), _MAX_CHANGE, self.max_factor / self.factor)
            move(rate, rate * change)
            rate, self.factor = rate * change, self.factor * change
        if position.step <= FIRST_STEPS and kl < limit / _SLACK**2:  # there is room in the next steps
            self.factor = min(self.factor * math.sqrt(_SLACK), self.max_factor)
        return BoundedStep(kl, rate, measurements)


def make_trust_region(config: TrainConfig, student: nn.Module) -> TrustRegion:
    """Return the trust region of a training.

    A learning rate that is given is the most that a step may take. The KL is measured on few replies, and not on those
    that training makes likely. So no rate moves the weights by more than MAX_RATE_TO_WEIGHTS of their root mean square
    (of all matrices, trained or not), as in Adafactor (Shazeer and Stern 2018): AdamW moves a weight by its rate.
    """
    if not config.step_limit:
        return TrustRegion(0.0)
    matrices: Iterable[torch.Tensor] = (p for p in student.parameters() if p.ndim >= 2)  # one at a time
    if any(hasattr(matrix, "quant_state") for matrix in student.parameters()):
        # Imported where it is needed: bitsandbytes takes more than a second, of every training.
        from transformers.integrations.bitsandbytes import dequantize_bnb_weight

        matrices = map(dequantize_bnb_weight, matrices)
    squares, sizes = zip(*((float(m.detach().float().square().sum()), m.numel()) for m in matrices), strict=True)
    max_rate = MAX_RATE_TO_WEIGHTS * math.sqrt(sum(squares) / sum(sizes))
    if config.learning_rate is None:
        max_factor, start = max_rate / choose_first_rate(config), 1.0
    else:
        rate = max(config.learning_rate, 1e-30)
        max_factor, start = min(max_rate / rate, 1.0), choose_first_rate(config) / rate
    return TrustRegion(config.step_limit, min(start, max_factor), max_factor)


@torch.no_grad()
def change_rate(optimizer: torch.optim.Optimizer, before: float, after: float) -> None:
    """Turn the weights after a step of AdamW at rate `before` into those after the same step at rate `after`.

    A step is p (1 - rate decay) - rate u, with u from the optimizer's state alone (Loshchilov and Hutter 2019). So it
    can be taken back without a copy of the weights, up to rounding.
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
    first ones, and with the usual epsilon of 1e-8 the noise in them would still be followed at full rate.
    """
    for group in optimizer.param_groups:
        group["eps"] = max(group["eps"], share * grad_norm / math.sqrt(weights))


def choose_probe(batch: Sequence[Turn], step_tokens: int) -> list[int]:
    """Return the turns of a step that are read again after it, as indices: first turns with a hint, in random order.

    They hold PROBE_SHARE of the tokens of all turns, up to PROBE_TOKENS, and PROBE_SHARE of the `step_tokens` at least,
    in which common prefixes count once. Each is read from its beginning: the turns of a long session would be many
    times the tokens of the step.
    """
    order = sorted(range(len(batch)), key=lambda i: (batch[i].teacher_logprobs is None, stable_hash(batch[i].turn_id)))
    wanted = max(PROBE_SHARE * step_tokens, min(PROBE_SHARE * sum(map(len, batch)), PROBE_TOKENS))
    chosen: list[int] = []
    while sum(len(batch[i]) for i in chosen) < wanted:
        chosen.append(order[len(chosen)])
    return chosen
