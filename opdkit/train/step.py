"""Optimizer step: its gradients, over all forwards and processes, its metrics, and the bound on its size.

Shapes: R response tokens of one reply, N response tokens of several replies, K tokens of a support.
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.model.memory import Attempt, Budget, TooLargeError, find_budget
from opdkit.model.scoring import PromptResponse
from opdkit.model.windows import depends_on_length
from opdkit.store import stopping
from opdkit.train.batches import collect_ids, collect_tokens
from opdkit.train.forwards import Forward, Tree, group_replies, plan_forwards
from opdkit.train.objective.losses import divergence
from opdkit.train.objective.terms import Objective, compute_loss, count_totals, find_trained, make_terms
from opdkit.train.schedule import Position
from opdkit.train.sharding import find_trained_parameters, gather, release_weights
from opdkit.train.student import autocast, choose_compute_dtype
from opdkit.train.targets import Reply, make_sequence
from opdkit.train.training import Training
from opdkit.train.trust_region import PROBE_TOKENS, change_rate, choose_probe, raise_epsilon

STOP_REQUESTS = "stop_requests"  # metric: the number of processes that were asked to stop


@dataclass(frozen=True)
class Batch:
    """Replies of a step, also as sequences, with the objective that they train under and its divisors."""

    replies: Sequence[Reply]
    sequences: Sequence[PromptResponse]
    objective: Objective
    totals: Mapping[str, int]  # `count_totals` of all replies


class Gradients(NamedTuple):
    """Results of all forwards and backwards of this process in a step; the gradients are stored in the parameters."""

    forwards: list[Forward]
    shares: list[dict[str, Tensor]]  # per forward: its share of the step's loss and metrics
    logprobs: dict[int, Tensor]  # reply -> [R, 1 + K] before the step
    tokens_read: int  # by all processes


class Probe(NamedTuple):
    """Replies of a step that are read again after it, to measure how far it moved them."""

    replies: list[Reply]
    sequences: list[PromptResponse]
    before: list[Tensor]  # log-probs [R, 1 + K] of each reply before the step
    readings: int  # how often they were read before the step, besides its forwards


def take_optimizer_step(
    training: Training, replies: Sequence[Reply], objective: Objective, position: Position
) -> dict[str, float]:
    """Do one step on `replies`; each process reads its share of them. Return the metrics of the whole step.

    Raises OpdkitError before the step, with the ids of turns, if the loss or the gradient norm is not finite or a reply
    does not fit into memory. Raises TooLargeError later if the optimizer's state, or a reply read again, does not fit.
    """
    config: TrainConfig = training.config
    accelerator, model, optimizer = training.accelerator, training.model, training.optimizer
    tokens = collect_tokens(replies)
    totals = count_totals(make_terms(objective, tokens), tokens, objective.aggregation)
    batch = Batch(replies, [make_sequence(reply, training.prompts) for reply in replies], objective, totals)
    gradients = compute_gradients(training, batch)
    weights, max_norm = list(find_trained_parameters(model).values()), config.max_grad_norm or math.inf
    grad_norm = gather(accelerator.clip_grad_norm_(weights, max_norm))
    metrics = sum_shares(gradients.shares, accelerator) | {"grad_norm": float(grad_norm)}
    check_finite(metrics, gradients, replies)
    raise_epsilon(optimizer, config.epsilon, min(metrics["grad_norm"], max_norm), sum(w.numel() for w in weights))
    rate = position.rate * training.trust.factor
    for parameters in optimizer.param_groups:
        parameters["lr"] = rate
    is_measured = metrics["grad_norm"] and training.trust.is_measured(position.step_in_cycle)
    probe = make_probe(training, batch, gradients.logprobs) if is_measured else None
    with Attempt() as attempt:
        # Even if all gradients are 0, momentum and weight decay would move the weights: skip the step.
        if metrics["grad_norm"]:
            optimizer.step()
    if attempt.failed:  # some weights may have been updated already, so training cannot continue
        raise TooLargeError("the optimizer's state, two numbers per weight,", "try --lora-rank, --validate 0")
    metrics |= {"learning_rate": rate, "tokens_read": gradients.tokens_read}
    if probe:
        measure = partial(measure_movement, training, *probe[:3])
        bounded = training.trust.bound(position, partial(change_rate, optimizer), measure)
        metrics |= {"step_kl": bounded.kl, "learning_rate": bounded.rate}
        metrics["tokens_read"] += (probe.readings + bounded.measurements) * sum(map(len, probe.sequences))
    optimizer.zero_grad(set_to_none=True)  # a validation may need the memory
    return metrics | {name: count for name, count in totals.items() if name.endswith("_tokens")}


def compute_gradients(training: Training, batch: Batch) -> Gradients:
    """Add up the gradients of this process's share of `batch`, and exchange them with the other processes.

    If a forward or its backward does not fit into memory, all gradients are computed again from zero. This step and all
    later ones then read half as many tokens at once. So no gradient counts twice, and the sum is the same up to
    rounding. Raises OpdkitError with the turn id of a reply that does not fit into memory by itself.
    """
    accelerator, model = training.accelerator, training.model
    shortest = min(range(len(batch.replies)), key=lambda i: len(batch.replies[i]))
    idle = [Tree((shortest,), len(batch.replies[shortest]))]  # read by a process that has no reply, with a loss of 0
    budget, policy = find_budget(model, "training"), accelerator.unwrap_model(model)
    while True:
        size = min(training.config.micro_batch_tokens, budget.max_tokens)
        forwards, tokens_read = plan_forwards(batch.sequences, [reply.branch_root for reply in batch.replies], size,
                                              accelerator.process_index, accelerator.num_processes,
                                              packed=policy.packed, chains=policy.chains,
                                              strict=budget.is_strict)  # fmt: skip
        shares, logprobs = list[dict[str, Tensor]](), dict[int, Tensor]()
        training.optimizer.zero_grad(set_to_none=True)
        for n, trees in enumerate(forwards, start=1):
            # Gradients are exchanged once per step, in its last backward.
            exchange = contextlib.nullcontext() if n == len(forwards) else accelerator.no_sync(model)
            with Attempt() as attempt, exchange:
                share, own = add_gradients(training, batch, trees or idle, counts=bool(trees))
                shares.append(share)
                logprobs |= own
            if attempt.failed:
                lower_budget(training, budget, trees or idle, batch.replies, splits=policy.packed)
                break
        else:
            return Gradients(forwards, shares, logprobs, tokens_read)


def check_finite(metrics: dict[str, float], gradients: Gradients, replies: Sequence[Reply]) -> None:
    """Raise OpdkitError in all processes, with the ids of turns, if the loss or the gradient norm is not finite."""
    if math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"]):
        return
    suspects = [replies[i].turn_id for trees, share in zip(gradients.forwards, gradients.shares, strict=True)
                if not torch.isfinite(share["loss"]) for tree in trees for i in tree.replies]  # fmt: skip
    suspects = gather_object(suspects) or [reply.turn_id for reply in replies]
    raise OpdkitError(
        f"the loss is {metrics['loss']:g} and the gradient norm {metrics['grad_norm']:g}: stopped before the step, "
        f"at turns {', '.join(suspects[:8])}{f' and {len(suspects) - 8} more' if len(suspects) > 8 else ''}. Look "
        "at their rows in the targets; a lower --learning-rate or --dtype float32 may help"
    )


def add_gradients(
    training: Training, batch: Batch, trees: Forward, *, counts: bool
) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    """Add the gradients of one forward. Return its share of the step's loss and metrics, and reply -> log-probs.

    Both are detached. The log-probs are [R, 1 + K] per reply: the response tokens, then their supports. Without
    `counts` there are no log-probs, and the share is 0: the process only takes part in the exchange of gradients.
    """
    device = next(training.model.parameters()).device
    members = [i for tree in trees for i in tree.replies]
    replies = [batch.replies[i] for i in members]
    tokens = collect_tokens(replies).to(device)
    if not counts:
        tokens = dataclasses.replace(tokens, sampled_N=torch.zeros_like(tokens.sampled_N))
    ids_NK = collect_ids(replies, tokens)
    with autocast(training.config):
        logprobs_NK, entropy_N = training.model([[batch.sequences[i] for i in tree.replies] for tree in trees], ids_NK)
    by_reply = logprobs_NK.detach().split([len(reply.response_ids) for reply in replies])
    terms = make_terms(batch.objective, tokens)
    loss, metrics = compute_loss(logprobs_NK[:, 0], logprobs_NK[:, 1:], tokens, terms, batch.totals, batch.objective)
    metrics["entropy"] = entropy_N[find_trained(terms)].sum() / batch.totals["trained_tokens"]
    # The exchange averages gradients over processes, but the loss is a sum over them.
    (loss * training.accelerator.num_processes).backward()
    return {"loss": loss.detach(), **metrics}, dict(zip(members, by_reply, strict=True)) if counts else {}


def lower_budget(training: Training, budget: Budget, trees: Forward, replies: Sequence[Reply], *, splits: bool) -> None:
    """Halve the budget, since `trees` did not fit into memory. Raises OpdkitError if that cannot help.

    `splits`: with a lower budget, a tree of several replies is read in parts; else it is a chain, which stays whole.
    A reply that is too large cannot be left out, since that would change the loss of the step. Several processes cannot
    retry, since the others already wait to exchange gradients.
    """
    members, tokens = [replies[i] for tree in trees for i in tree.replies], sum(tree.tokens for tree in trees)
    remedy = "" if training.config.gradient_checkpointing else "--gradient-checkpointing, "
    # Several processes do not split the session of a reply that is longer than the budget: see `build_trees`.
    is_one = len(members) == 1 or not splits or (training.accelerator.num_processes > 1
                                                 and tokens > training.config.micro_batch_tokens)  # fmt: skip
    if len(trees) == 1 and is_one:
        longest = max(members, key=len)
        raise TooLargeError(
            f"turn {longest.turn_id} of {len(longest):,} tokens, in training,",
            f"try {remedy}--lora-rank, --dtype bfloat16, or leave it out with --max-tokens of the teacher stage",
        )
    if training.accelerator.num_processes > 1:
        raise OpdkitError(
            f"{tokens:,} tokens in one forward do not fit into the memory of this process, and the others wait for it: "
            f"start the same command again with {remedy}--micro-batch-tokens {tokens // 2}"
        )
    budget.halve(tokens)


def sum_shares(shares: Sequence[Mapping[str, Tensor]], accelerator: Accelerator) -> dict[str, float]:
    """Sum the shares of all micro-batches and processes, with one exchange and one wait for the device.

    STOP_REQUESTS is summed with them: a signal can reach processes during different steps, so they agree here.
    """
    names = list(shares[0])
    sums = torch.stack([torch.stack([share[name].float() for name in names]) for share in shares]).sum(0)
    sums = torch.cat([sums, sums.new_tensor([float(stopping.is_requested())])])
    return dict(zip([*names, STOP_REQUESTS], accelerator.reduce(sums, "sum").tolist(), strict=True))


def make_probe(training: Training, batch: Batch, logprobs: Mapping[int, Tensor]) -> Probe:
    """Choose the replies that are read again after a step, to measure it. Call this before the step.

    `logprobs` are the log-probs [R, 1 + K] before the step of the replies that this process read.
    """
    policy: Any = training.accelerator.unwrap_model(training.model)
    roots = [reply.branch_root for reply in batch.replies]
    trees = group_replies(batch.sequences, roots, PROBE_TOKENS, packed=policy.packed, chains=policy.chains)
    probe = choose_probe(batch.replies, sum(tree.tokens for tree in trees))
    replies, sequences = [batch.replies[i] for i in probe], [batch.sequences[i] for i in probe]
    if choose_compute_dtype(training.config) != torch.float32:
        # `logprobs` are from forwards of other shapes, whose rounding errors differ: these would count as movement. So
        # read these replies as they are read after the step, with the same errors.
        return Probe(replies, sequences, read_probe(training, replies, sequences), 1)
    own = {i: logprobs[i].cpu() for i in probe if i in logprobs}
    before = {i: x_RK for share in gather_object([own]) for i, x_RK in share.items()}
    return Probe(replies, sequences, [before[i] for i in probe], 0)


def read_probe(training: Training, replies: Sequence[Reply], sequences: Sequence[PromptResponse]) -> list[Tensor]:
    """Return the log-probs [R, 1 + K] of replies under the student as it is now, on the CPU.

    All processes read the same replies, at most --micro-batch-tokens at once.
    """
    model, config = training.model, training.config
    read: dict[int, Tensor] = {}
    tokens = min(config.micro_batch_tokens, find_budget(model, "training").max_tokens)
    # Its own budget: if memory runs out here, in one of several processes, the others still share out training alike.
    budget = find_budget(model, "measuring a step")
    for attempt in budget.batches(list(map(len, sequences)), 1 if depends_on_length(training.student) else tokens):
        members = sorted(attempt.items)
        own = [replies[i] for i in members]
        ids_NK = collect_ids(own, collect_tokens(own)).to(next(model.parameters()).device)
        with attempt, torch.no_grad(), autocast(config):
            read_NK, _ = training.accelerator.unwrap_model(model)([[sequences[i]] for i in members], ids_NK)
            read |= zip(members, read_NK.cpu().split([len(reply.response_ids) for reply in own]), strict=True)
        if attempt.too_large or (attempt.failed and config.sharding != "none"):  # sharded processes cannot retry alone
            less = "--micro-batch-tokens, " if len(members) > 1 else ""
            raise TooLargeError(f"turn {own[0].turn_id}, read to measure a step,",
                                f"try {less}--lora-rank, --dtype bfloat16 or --step-limit 0")  # fmt: skip
    release_weights(model)
    return [read[i] for i in range(len(replies))]


def measure_movement(
    training: Training, replies: Sequence[Reply], sequences: Sequence[PromptResponse], before: Sequence[Tensor]
) -> float:
    """Return the mean KL(before || now) of `replies`, over supports and the rest (nats per reply).

    The KL of a reply is a sum over positions: in a mean, the many tokens that follow from those before would dominate.

    `before` holds each reply's log-probs [R, 1 + K] before the step: of the response token, then of its support.
    Without a support, the KL has two bins: the response token and the rest.
    """
    now = read_probe(training, replies, sequences)
    kl = torch.zeros((), dtype=torch.float64)
    for is_supported, bins in ((True, slice(1, None)), (False, slice(0, 1))):
        if own := [i for i, reply in enumerate(replies) if (reply.support is not None) == is_supported]:
            # float64, since the terms of a small KL nearly cancel, and the rate is computed from its square root.
            now_NK, then_NK = (torch.cat([x[i][:, bins] for i in own]).double() for x in (now, before))
            kl += divergence(now_NK, then_NK, 0.0).sum()
    kl = (kl / len(replies)).to(next(training.model.parameters()).device, torch.float32)
    return float(training.accelerator.reduce(kl, "mean"))
