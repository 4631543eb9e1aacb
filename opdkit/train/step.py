"""One optimizer step: the gradients of its turns, whoever reads them and in however many forwards."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor, nn

from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.model.memory import Budget, OutOfMemory, TooLargeError, budget_of, run_or_out_of_memory
from opdkit.model.scoring import PromptResponse as ScoredSequence
from opdkit.store import stopping
from opdkit.train.batches import tokens_of
from opdkit.train.forwards import Forward, Reading, Tree, reading
from opdkit.train.objective import Objective, step_loss, step_totals, terms_of, trained_positions
from opdkit.train.sharding import gathered
from opdkit.train.student import autocast, trained
from opdkit.train.targets import Turn

Prompts = Mapping[str, NDArray[np.int32]]  # turn_id -> token ids

ASKED = "asked_to_stop"  # processes


def optimizer_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Turn],
    prompts: Prompts,
    objective: Objective,
    config: TrainConfig,
    accelerator: Accelerator,
    rate: float,
) -> dict[str, float]:
    """One step on `batch`, of which this process reads its share. Returns the metrics of the whole step.

    Raises OpdkitError, naming turns, before the step when the loss or the gradient is not finite, or when a turn does
    not fit into memory.
    """
    whole = tokens_of(batch)
    totals = step_totals(terms_of(objective, whole), whole, objective.aggregation)
    sequences = [ScoredSequence(prompts[t.turn_id].tolist(), t.response_ids.tolist()) for t in batch]
    share, shares = _gradients(model, optimizer, batch, sequences, totals, objective, config, accelerator)
    grad_norm = gathered(accelerator.clip_grad_norm_(trained(model).values(), config.max_grad_norm or math.inf))
    summed = _summed(shares, accelerator) | {"grad_norm": float(grad_norm)}
    if not (math.isfinite(summed["loss"]) and math.isfinite(summed["grad_norm"])):
        suspects = [batch[i].turn_id for trees, part in zip(share.forwards, shares, strict=True)
                    if not torch.isfinite(part["loss"]) for tree in trees for i in tree.turns]  # fmt: skip
        _stop(summed, gather_object(suspects) or [t.turn_id for t in batch])
    for parameters in optimizer.param_groups:
        parameters["lr"] = rate
    if isinstance(
        run_or_out_of_memory(optimizer.step), OutOfMemory
    ):  # half done, perhaps: nothing can go on from there
        raise TooLargeError("the optimizer's state, two numbers a weight,", "try --lora-rank")
    counts = {name: count for name, count in totals.items() if name.endswith("_tokens")}
    return summed | counts | {"tokens_read": share.tokens}


def _gradients(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Turn],
    sequences: Sequence[ScoredSequence],
    totals: Mapping[str, int],
    objective: Objective,
    config: TrainConfig,
    accelerator: Accelerator,
) -> tuple[Reading, list[dict[str, Tensor]]]:
    """The gradients of a step, in the parameters; what this process read for them, and its shares of the metrics.

    Where a forward or its backward does not fit into memory, all of them are made anew from nothing, with half as many
    tokens at once in this step and those that follow: no gradient counts twice, and the sum is the same to rounding.
    """
    budget = budget_of(model, "training")
    while True:
        share = _share(model, batch, sequences, accelerator, budget.within(config.micro_batch_tokens))
        shares: list[dict[str, Tensor]] = []
        optimizer.zero_grad(set_to_none=True)
        for n, trees in enumerate(share.forwards):

            def add(trees: Forward, last: bool) -> dict[str, Tensor]:
                # Gradients are exchanged once a step. Their average over the processes is taken; the loss is a sum.
                with contextlib.nullcontext() if last else accelerator.no_sync(model):
                    loss, metrics = _forward(model, trees, batch, sequences, totals, objective, config)
                    (loss * accelerator.num_processes).backward()
                return {"loss": loss.detach(), **metrics}

            found = run_or_out_of_memory(partial(add, trees, n == len(share.forwards) - 1))
            if isinstance(found, OutOfMemory):
                optimizer.zero_grad(set_to_none=True)
                _less_at_once(budget, trees or [_shortest(batch)], batch, config, accelerator)
                break
            shares.append(found)
        else:
            return share, shares


def _less_at_once(
    budget: Budget, trees: Forward, batch: Sequence[Turn], config: TrainConfig, accelerator: Accelerator
) -> None:
    """A forward of these trees did not fit. Raises OpdkitError where no smaller one could help.

    A turn that is too large cannot be set aside: without it the step would have another objective. And the other
    processes of a step wait for this one to exchange gradients.
    """
    tokens, longest = sum(tree.tokens for tree in trees), max((batch[i] for t in trees for i in t.turns), key=len)
    remedy = "" if config.gradient_checkpointing else "--gradient-checkpointing, "
    if tokens <= len(longest):
        raise TooLargeError(
            f"turn {longest.turn_id} of {len(longest):,} tokens, in training,",
            f"try {remedy}--lora-rank, --dtype bfloat16, or leave it out with --max-tokens of the teacher stage",
        )
    if accelerator.num_processes > 1:
        raise OpdkitError(
            f"{tokens:,} tokens in one forward do not fit into the memory of this process, and the others wait for it: "
            f"start again with --overwrite and {remedy}--micro-batch-tokens {tokens // 2}"
        )
    budget.halve(tokens)


def _share(
    model: nn.Module,
    batch: Sequence[Turn],
    sequences: Sequence[ScoredSequence],
    accelerator: Accelerator,
    tokens: int,
) -> Reading:
    """What this process reads of a step, at most so many `tokens` at once."""
    return reading(
        sequences,
        [turn.session_id for turn in batch],
        tokens,
        accelerator.process_index,
        accelerator.num_processes,
        packed=accelerator.unwrap_model(model).packed,
    )


def _forward(
    model: nn.Module,
    trees: Forward,
    batch: Sequence[Turn],
    sequences: Sequence[ScoredSequence],
    totals: Mapping[str, int],
    objective: Objective,
    config: TrainConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The share of these trees in the step's loss and metrics. Without a tree: all zeros, of the shortest turn."""
    read = trees or [_shortest(batch)]
    device = next(model.parameters()).device
    tokens = tokens_of([batch[i] for tree in read for i in tree.turns]).to(device)
    if not trees:
        tokens = dataclasses.replace(tokens, sampled_N=torch.zeros_like(tokens.sampled_N))
    ids_N1 = torch.tensor([[t] for tree in read for i in tree.turns for t in sequences[i].response_ids], device=device)
    with autocast(config):
        logprobs_NK, entropy_N = model(
            [[sequences[i] for i in tree.turns] for tree in read], torch.cat([ids_N1, tokens.support_ids_NK], -1)
        )
    terms = terms_of(objective, tokens)
    loss, metrics = step_loss(logprobs_NK[:, 0], logprobs_NK[:, 1:], tokens, terms, totals, objective)
    metrics["entropy"] = entropy_N[trained_positions(terms)].sum() / totals["trained_tokens"]
    return loss, metrics


def _shortest(batch: Sequence[Turn]) -> Tree:
    shortest = min(range(len(batch)), key=lambda i: len(batch[i]))
    return Tree((shortest,), len(batch[shortest]))


def _summed(shares: Sequence[Mapping[str, Tensor]], accelerator: Accelerator) -> dict[str, float]:
    """The shares of all micro-batches and processes added up: one exchange, one wait for the device.

    And how many processes were asked to stop: no signal reaches them all before the same step, so they agree here.
    """
    names = list(shares[0])
    sums = torch.stack([torch.stack([share[name].float() for name in names]) for share in shares]).sum(0)
    sums = torch.cat([sums, sums.new_tensor([float(stopping.requested())])])
    return dict(zip([*names, ASKED], accelerator.reduce(sums, "sum").tolist(), strict=True))


def _stop(totals: Mapping[str, float], turn_ids: Sequence[str]) -> None:
    names = ", ".join(turn_ids[:8]) + (f" and {len(turn_ids) - 8} more" if len(turn_ids) > 8 else "")
    raise OpdkitError(
        f"the loss is {totals['loss']:g} and the gradient norm {totals['grad_norm']:g}: stopped before the step, at "
        f"turns {names}. Look at their rows in the targets; a lower --learning-rate or --dtype float32 may help"
    )
