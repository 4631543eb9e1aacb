"""Time of a training step that reads each session once, and of one that has a padded row per turn.

    python -m tests.benchmarks.training

Measured on real sessions (tau-bench, ../shared/data). The usual way has one sample per turn, batches of 8 sorted by
length and padded on the right, and logits at every position. Both ways have the same loss and optimizer, and untrained
weights: the time depends on sizes, not on values. The gradients of both ways are compared before they are timed.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opdkit.config.train import TrainConfig
from opdkit.model.scoring import PromptResponse
from opdkit.train.forwards import Forward, plan_forwards
from opdkit.train.objective.losses import policy_gradient
from opdkit.train.policy import Policy

from . import usual
from .models import add_model_options, build_for, weights
from .pairs import PAIRS, RESULTS, Comparison, clock_of, save, turn_about
from .sessions import evenly_spaced, length, taubench

BUDGET = TrainConfig.micro_batch_tokens
APART = "difference of the gradients, relative"  # name of a fact


@dataclass(frozen=True)
class Step:
    """Turns of an optimizer step, the session of each, and the number of their response tokens."""

    turns: list[PromptResponse]
    sessions: list[str]

    @property
    def tokens(self) -> int:
        return sum(len(t.response_ids) for t in self.turns)


def loss_of(logprobs_R: Tensor, tokens: int) -> Tensor:
    """Return one turn's share of the clipped policy gradient loss of a first step; advantages go from -1 to 2."""
    advantages_R = torch.linspace(-1, 2, len(logprobs_R), device=logprobs_R.device)
    return policy_gradient(logprobs_R, logprobs_R.detach(), advantages_R, 0.2, 0.28)[0].sum() / tokens


def usual_losses(model: nn.Module, step: Step) -> Iterator[Tensor]:
    """Yield the loss of each batch, as most trainers compute it."""
    for batch in usual.read(model, step.turns):
        yield torch.stack([loss_of(reply_R, step.tokens) for _, reply_R in batch]).sum()


def plan(policy: Policy, step: Step) -> tuple[list[Forward], int]:
    """Return the forwards of a step, and the tokens that they read."""
    return plan_forwards(step.turns, step.sessions, BUDGET, 0, 1, packed=policy.packed, chains=policy.chains)


def our_losses(policy: Policy, step: Step) -> Iterator[Tensor]:
    """Yield the loss of each forward pass, as `opdkit train` computes it."""
    model: Any = policy.model
    for trees in plan(policy, step)[0]:
        read = [[step.turns[i] for i in tree.replies] for tree in trees]
        ids_N1 = torch.tensor([[i] for tree in read for turn in tree for i in turn.response_ids], device=model.device)
        logprobs_NK, _ = policy(read, ids_N1)
        replies = logprobs_NK[:, 0].split([len(turn.response_ids) for tree in read for turn in tree])
        yield torch.stack([loss_of(reply_R, step.tokens) for reply_R in replies]).sum()


def take(losses: Iterator[Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()


def difference(policy: Policy, step: Step) -> float:
    """Return the distance between the gradients of the two ways, relative to the norm of the gradient."""
    found = []
    for losses in (usual_losses(policy.model, step), our_losses(policy, step)):
        policy.zero_grad()
        for loss in losses:
            loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in policy.parameters()]))
    return float((found[0] - found[1]).norm() / found[0].norm())


def compare(name: str, policy: Policy, step: Step, pairs: int, facts: dict) -> Comparison:
    """Time both ways to take a step, in alternation. The learning rate is 0, so that every step is the same."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.0)
    apart, clock = difference(policy, step), clock_of(policy.model.device)  # type: ignore[arg-type]
    seconds = turn_about(lambda: take(usual_losses(policy.model, step), optimizer),
                         lambda: take(our_losses(policy, step), optimizer), pairs, clock)  # fmt: skip
    facts = {
        "sessions": len(set(step.sessions)),
        "turns": len(step.turns),
        "tokens read, usual": sum(map(len, step.turns)),
        "tokens read, ours": plan(policy, step)[1],
        APART: f"{apart:.1g}",
        "weights": weights(policy.model),  # type: ignore[arg-type]
        "threads": torch.get_num_threads(),
    } | facts
    found = Comparison(name, usual.NAME, *seconds, facts)
    print(found.line(), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=3, help="that many of tau-bench")
    parser.add_argument("--tokens", type=int, default=5000, help="longest turn")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    add_model_options(parser)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    tokenizer, every = taubench()
    fitting = [s for s in every if length(s) <= options.tokens]
    chosen = evenly_spaced(fitting, options.sessions)
    step = Step([t.student for some in chosen for t in some], [str(n) for n, some in enumerate(chosen) for _ in some])
    facts = {"chosen": f"{len(chosen)} sessions, evenly spaced by length among the {len(fitting)} of {len(every)} "
                       f"whose turns are at most {options.tokens:,} tokens"}  # fmt: skip
    policy = Policy(build_for(options, len(tokenizer)))
    found = compare(f"a step on tau-bench, {options.size} model", policy, step, options.pairs, facts)
    print(save("training", [found], options.results))


if __name__ == "__main__":
    main()
