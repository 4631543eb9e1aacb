"""Blame: how much each turn of a training taught what the model now does worse.

L is what was lost: the mean log-prob of the failing replies after training minus that of the passing replies before
training. The mean is over the prompts that got worse, each weighted by how much worse it got. l_i is turn i's share of
the training loss. A small step of gradient descent on l_i alone changes L by -g . grad l_i, where g = grad L. This is
the blame of turn i, as in TracIn (Pruthi et al. 2020) with a single checkpoint: the model before training. The model
after training is a worse checkpoint: the gradient of a turn that was learned is small there and may point anywhere.

The gradients of single turns are never computed. By central differences along g, the blame is

    -g . grad l_i = (l_i(w - h g) - l_i(w + h g)) / 2h

so two forwards over the training set give the blame of all turns. w are the weights of the last half of the layers,
which saves memory. In all 20 seeds of tests/benchmarks/blame.py this ranked the culprit first.

Shapes: T turns, N response tokens.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from opdkit.config.fields import JSON
from opdkit.console import progress
from opdkit.evaluate.gate import choose_measured_rows
from opdkit.model.scoring import PromptResponse
from opdkit.train.batches import collect_ids, collect_tokens
from opdkit.train.forwards import plan_forwards
from opdkit.train.objective.terms import Objective, compute_loss, count_totals, make_terms
from opdkit.train.policy import Policy
from opdkit.train.targets import Prompts, make_sequence
from opdkit.train.training_set import TrainingSet

LAYERS = 0.5  # share of the layers, counted from the last, whose weights are w
_CHANGE = 0.02  # of L by a step h along g, in nats: far above rounding error, small enough that l_i stays linear


@dataclass(frozen=True)
class WorsePrompt:
    """Prompt at which the model got worse: its share of right replies fell by `share`."""

    prompt_id: str
    domain: str
    share: float
    passing: list[JSON]  # rows of `replies`: those before training that pass
    failing: list[JSON]  # those after training that fail


@dataclass(frozen=True)
class WeightedReply:
    """Reply and its weight: L is the sum of weight times log-prob over such replies."""

    sequence: PromptResponse
    weight: float  # positive for a failing reply


def find_worse_prompts(replies: pa.Table, domain: str | None = None) -> tuple[list[JSON], list[WorsePrompt]]:
    """Return each domain with its share of right replies before and after, and the worse prompts of domains that fell.

    The domain that fell most comes first.
    Only the replies of the gate's `choose_measured_rows` count, and only prompts with a verdict on both models.
    """
    sides: dict[str, dict[str, list[JSON]]] = {}
    for row in choose_measured_rows(replies).to_pylist():
        if row["passed"] is not None and domain in (None, row["domain"]):
            sides.setdefault(row["prompt_id"], {}).setdefault(row["model"], []).append(row)
    prompts, shares = list[WorsePrompt](), dict[str, list[tuple[float, float]]]()
    for prompt_id, rows in sides.items():
        if len(rows) < 2:
            continue
        before, after = (sum(row["passed"] for row in rows[side]) / len(rows[side]) for side in ("before", "after"))
        name = rows["before"][0]["domain"]
        shares.setdefault(name, []).append((before, after))
        if before > after:
            passing = [row for row in rows["before"] if row["passed"]]
            failing = [row for row in rows["after"] if not row["passed"]]
            prompts.append(WorsePrompt(prompt_id, name, before - after, passing, failing))
    domains: list[JSON] = []
    for name, pairs in shares.items():
        before, after = np.mean(pairs, 0).tolist()
        domains.append({"domain": name, "prompts": len(pairs), "before": before, "after": after})
    domains.sort(key=lambda row: row["after"] - row["before"])
    worse = {row["domain"] for row in domains if row["after"] < row["before"]}
    return domains, [prompt for prompt in prompts if prompt.domain in worse]


def blame_turns(
    model: nn.Module,
    replies: Sequence[WeightedReply],
    data: TrainingSet,
    prompts: Prompts,
    objectives: Sequence[Objective],
    batch_tokens: int,
) -> NDArray[np.float64]:
    """Return the blame [T] of each turn of a training set, in nats of L per unit step; positive: it made L grow.

    `model` is the student before training, in float32. The weights of its last layers are changed.
    """
    policy = Policy(model)
    weights = choose_weights(model)
    add_gradient(policy, replies, batch_tokens)
    square = sum(float(p.grad.double().square().sum()) for p in weights if p.grad is not None)
    step = _CHANGE / max(square, 1e-30)
    sides = []
    for change in (step, -2 * step):  # to w + h g, then to w - h g
        with torch.no_grad():
            for p in weights:
                if p.grad is not None:
                    p.add_(p.grad, alpha=change)
        sides.append(measure_turn_losses(policy, data, prompts, objectives, batch_tokens))
    return (sides[1] - sides[0]) / (2 * step)


def choose_weights(model: nn.Module) -> list[nn.Parameter]:
    """Enable gradients only in the last LAYERS of the layers, or everywhere if none is found; return these weights."""
    number = {name: int(match[1]) for name, _ in model.named_parameters() if (match := re.search(r"\.(\d+)\.", name))}
    first = (1 - LAYERS) * (1 + max(number.values(), default=0))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not number or number.get(name, -1) >= first)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def add_gradient(policy: Policy, replies: Sequence[WeightedReply], batch_tokens: int) -> None:
    """Add the gradient of L, the weighted sum of the log-probs of `replies`, to the `grad` of the weights."""
    sequences = [reply.sequence for reply in replies]
    ids = [torch.tensor(s.response_ids)[:, None] for s in sequences]
    prompts = [repr(s.prompt_ids) for s in sequences]  # replies with equal prompts share one pass over the prompt
    for members, logprobs in read_forwards(policy, sequences, prompts, ids, batch_tokens):
        sum(replies[i].weight * x_N1.sum() for i, x_N1 in zip(members, logprobs, strict=True)).backward()


@torch.no_grad()
def measure_turn_losses(
    policy: Policy, data: TrainingSet, prompts: Prompts, objectives: Sequence[Objective], batch_tokens: int
) -> NDArray[np.float64]:
    """Return the loss [T] of each turn, scaled so that the mean over a phase is the loss of one step on all turns."""
    turns, device = data.replies, next(policy.parameters()).device
    totals = list[dict[str, int]]()
    for phase, objective in enumerate(objectives):
        tokens = collect_tokens([turn for turn, p in zip(turns, data.phases, strict=True) if p == phase] or turns)
        totals.append(count_totals(make_terms(objective, tokens), tokens, objective.aggregation))
    sequences = [make_sequence(turn, prompts) for turn in turns]
    ids = [collect_ids([turn], collect_tokens([turn])) for turn in turns]
    losses, turns_in = np.zeros(len(turns)), Counter(data.phases)
    for members, logprobs in read_forwards(policy, sequences, [turn.branch_root for turn in turns], ids, batch_tokens):
        for i, x_NK in zip(members, logprobs, strict=True):
            phase = data.phases[i]
            tokens, objective = collect_tokens([turns[i]]).to(device), objectives[phase]
            terms = make_terms(objective, tokens)
            loss, _ = compute_loss(x_NK[:, 0], x_NK[:, 1:], tokens, terms, totals[phase], objective)
            losses[i] = float(loss) * turns_in[phase]
    return losses


def read_forwards(
    policy: Policy, sequences: Sequence[PromptResponse], sessions: Sequence[str], ids: Sequence[Tensor], tokens: int
) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield, per forward of at most `tokens` tokens, the indices of its sequences and the log-probs [N, K] of each."""
    forwards, _ = plan_forwards(sequences, sessions, tokens, 0, 1, packed=policy.packed, chains=policy.chains)
    device = next(policy.parameters()).device
    for trees in progress(forwards, "blame", len(forwards), "forwards"):
        members = [i for tree in trees for i in tree.replies]
        width = max(ids[i].shape[1] for i in members)
        ids_NK = torch.cat([pad(ids[i], (0, width - ids[i].shape[1])) for i in members]).to(device)
        logprobs_NK, _ = policy([[sequences[i] for i in tree.replies] for tree in trees], ids_NK)
        parts = logprobs_NK.split([len(ids[i]) for i in members])
        yield members, [x_NK[:, : ids[i].shape[1]] for i, x_NK in zip(members, parts, strict=True)]
