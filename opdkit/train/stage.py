"""`opdkit train`: targets -> a better model.

One pass over the targets, off-policy: the replies are those of the log, the old policy is the student as the teacher
stage scored it. Runs in one process, or in several that share every optimizer step (`torchrun`, `accelerate launch`);
a step's loss and gradient are the same to rounding, however it is split.
"""

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from opdkit import stopping
from opdkit.chat import Chat
from opdkit.config import JSON
from opdkit.console import is_main_process, progress, say
from opdkit.errors import OpdkitError
from opdkit.memory import Budget, NoRoom, TooLargeError, budget_of, tried
from opdkit.models import load_tokenizer, resolve_device
from opdkit.objective import (
    SUPPORTED,
    Objective,
    step_loss,
    step_totals,
    terms_of,
    trained_positions,
)
from opdkit.scoring import Sequence as ScoredSequence
from opdkit.stages import TrainConfig, home
from opdkit.store import Counters, Summary
from opdkit.train import checkpoints
from opdkit.train.batches import Step, optimizer_steps, tokens_of
from opdkit.train.forwards import Forward, Reading, Tree, reading
from opdkit.train.launch import accelerator_of, committing, open_stage, refuse, refuse_another_position
from opdkit.train.metrics import line, metrics_row
from opdkit.train.plan import at_step, objectives
from opdkit.train.policy import Policy
from opdkit.train.sharding import gathered, shard, unsharded
from opdkit.train.signal import TrainingSet, check_signal, describe, shaped, training_set
from opdkit.train.student import (
    autocast,
    compute_dtype,
    epoch_home,
    learning_rate,
    load_student,
    make_optimizer,
    save_student,
    trained,
)
from opdkit.train.targets import (
    Turn,
    capped,
    load_prompts,
    load_turns,
    refuse_another_student,
    scored_template_args,
    select,
)

Prompts = Mapping[str, NDArray[np.int32]]  # turn_id -> token ids

LINES = 20  # lines of progress in a whole run
ASKED = "asked_to_stop"  # processes


def run(config: TrainConfig) -> Summary:
    """Train `--model` on the targets of the run; resumes from its newest checkpoint."""
    refuse(config)
    phases = objectives(config)
    identity = refuse_another_student(config.run, config.model)
    chat = Chat(load_tokenizer(config.model), scored_template_args(config.run, config.template_arg))
    data, prompts = _load(config, phases, chat)
    steps = _steps(config, data)
    check_signal(data, steps, config, phases)
    if config.dry_run:
        return _dry_run(config, data, steps)
    accelerator = accelerator_of(config)
    stage = open_stage(config, accelerator, identity)
    if stage.todo():
        with stopping.in_steps(), committing(stage, accelerator) as out:
            prompts = prompts or load_prompts(config.run, data.turns, chat)
            student = load_student(config, on_cpu=config.sharding == "fsdp")
            save = partial(_save, tokenizer=chat.tokenizer, config=config, accelerator=accelerator)
            rows = _train(student, data.turns, steps, phases, prompts, config, accelerator, stage.home, save)
            out.rows("metrics", rows)
            save(student, home=stage.home)
            _count(out.counters, data, len(rows))
        if accelerator.is_main_process:
            checkpoints.clear(stage.home / "checkpoints")
    accelerator.end_training()
    return stage.summary()


def _load(config: TrainConfig, phases: Sequence[Objective], chat: Chat) -> tuple[TrainingSet, Prompts]:
    """The training set; and the prompts, where the rewards could not be shaped without them."""
    terms = {name for phase in phases for name in phase.weights}
    scored = load_turns(config.run, config.limit, supports=not terms.isdisjoint(SUPPORTED))
    turns, dropped = select(scored, terms, config.holdout)
    turns, over = capped(turns, config.max_turns_per_session, config.seed)
    prompts = {} if config.group_normalise == "off" else load_prompts(config.run, turns, chat)
    return training_set(shaped(turns, config, prompts), phases, len(scored), dropped + over), prompts


def _steps(config: TrainConfig, data: TrainingSet) -> list[Step]:
    sessions = [turn.session_id for turn in data.turns] if config.batch_by == "session" else None
    return optimizer_steps(
        data.phases, data.strengths, sessions, config.batch_turns, config.epochs, config.seed, config.order
    )


def _dry_run(config: TrainConfig, data: TrainingSet, steps: Sequence[Step]) -> Summary:
    if is_main_process():
        describe(data, steps)
    counters = Counters()
    _count(counters, data, len(steps))
    return Summary("train --dry-run", counters, 0, 1, home(config.run, "train"))


def _count(counters: Counters, data: TrainingSet, steps: int) -> None:
    counters.rows_in, counters.rows_out, counters.dropped = data.scored, len(data.turns), data.dropped
    counters.extra["steps"] = steps


# -- the loop -------------------------------------------------------------------------------------------------------


def _train(
    student: nn.Module,
    turns: Sequence[Turn],
    steps: Sequence[Step],
    phases: Sequence[Objective],
    prompts: Prompts,
    config: TrainConfig,
    accelerator: Accelerator,
    folder: Path,
    save: Callable[..., None],
) -> list[JSON]:
    """Train `student` in place; one metrics row a step. Raises stopping.Stopped after a step when asked to."""
    model: nn.Module = Policy(student)  # tries itself on a few sequences, so before it is wrapped
    if config.sharding == "fsdp":
        shard(model, resolve_device(config.device), compute_dtype(config))
    optimizer = make_optimizer(student, config)
    state = checkpoints.newest(folder / "checkpoints")
    rows: list[JSON] = state["rows"] if state else []
    refuse_another_position(len(rows))
    if state:
        checkpoints.restore(state, student, optimizer)
        say(f"going on after step {len(rows)} of {len(steps)}")
    if config.sharding == "none":
        model = accelerator.prepare_model(model)  # several processes: DistributedDataParallel
    done = sum(len(step.turns) for step in steps[: len(rows)])
    for number in progress(range(len(rows) + 1, len(steps) + 1), "train", len(steps) - len(rows), "steps"):
        start = time.monotonic()
        torch.manual_seed(config.seed + number)  # no stream to remember: a resumed step draws what it would have drawn
        step = steps[number - 1]
        batch = [turns[i] for i in step.turns]
        objective = at_step(phases[step.phase], config, number, len(steps))
        rate = learning_rate(config, number, len(steps))
        metrics = _optimizer_step(model, optimizer, batch, prompts, objective, config, accelerator, rate)
        done += len(batch)
        seconds = time.monotonic() - start
        rows.append(metrics_row(number, done / len(turns), metrics, objective, rate, batch, seconds))
        accelerator.log({k: v for k, v in rows[-1].items() if v is not None}, step=number)
        if number % math.ceil(len(steps) / LINES) == 0 or number == len(steps):
            say(line(rows[-1], len(steps)))
        if config.keep_epochs and done % len(turns) == 0:
            save(student, home=epoch_home(folder, done // len(turns)), goes_on=True)
        stop = metrics[ASKED] > 0 and number < len(steps)
        if stop or (config.checkpoint_every and number % config.checkpoint_every == 0):
            main = accelerator.is_main_process
            checkpoints.save(folder / "checkpoints", student, optimizer, rows, main=main)
        if stop:
            _stop_here(number, len(steps), accelerator)
    return rows


def _stop_here(number: int, steps: int, accelerator: Accelerator) -> None:
    """End all processes after the same step, once its checkpoint is there: who ends first has the others killed."""
    accelerator.wait_for_everyone()
    stopping.after_part()
    say(f"stopping after step {number} of {steps}")
    accelerator.end_training()
    raise stopping.Stopped


def _save(
    student: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainConfig,
    accelerator: Accelerator,
    home: Path,
    *,
    goes_on: bool = False,
) -> None:
    """Write the model to `home`, where the main process is; the student is spent unless it `goes_on`."""
    main = accelerator.is_main_process
    if config.sharding == "fsdp":
        found = unsharded(student, partial(load_student, config, on_cpu=True), main)
    else:
        found = copy.deepcopy(student) if goes_on and main else student
    if main and found is not None:
        save_student(found, tokenizer, config, home)


def _optimizer_step(
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
    if isinstance(tried(optimizer.step), NoRoom):  # half done, perhaps: nothing can go on from there
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

            found = tried(partial(add, trees, n == len(share.forwards) - 1))
            if isinstance(found, NoRoom):
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
