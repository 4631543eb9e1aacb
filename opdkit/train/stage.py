"""`opdkit train`: targets -> a better model.

One pass over the targets, off-policy: the replies are those of the log, the old policy is the student as the teacher
stage scored it. Runs in one process, or in several that share every optimizer step (`torchrun`, `accelerate launch`);
a step's loss and gradient are the same to rounding, however it is split.
"""

import contextlib
import dataclasses
import importlib.util
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from numpy.typing import NDArray
from torch import Tensor, nn

from opdkit.chat import Chat
from opdkit.config import JSON
from opdkit.console import progress, say, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.models import load_tokenizer, resolve_device
from opdkit.objective import SOURCES, Term, Tokens, entropy, step_loss, terms_of, token_counts, trained_positions
from opdkit.scoring import Sequence as ScoredSequence
from opdkit.scoring import response_logits, token_logprobs
from opdkit.stages import TrainConfig
from opdkit.store import PartWriter, Stage, Summary
from opdkit.tables import METRICS
from opdkit.train import checkpoints
from opdkit.train.batches import micro_batches, optimizer_steps, tokens_of
from opdkit.train.student import autocast, learning_rate, load_student, make_optimizer, save_student, trainable
from opdkit.train.targets import Turn, load_prompts, load_turns, refuse_another_student, scored_template_args, select

LINES = 20  # lines of progress in a whole run


def run(config: TrainConfig) -> Summary:
    """Train `--model` on the targets of the run; resumes from its newest checkpoint."""
    _refuse(config)
    identity = refuse_another_student(config.run, config.model)
    template_args = scored_template_args(config.run, config.template_arg)
    accelerator = _accelerator(config)
    scored = load_turns(config.run, config.limit)
    turns, dropped = select(scored, SOURCES[config.objective], config.holdout)
    _require_signal(turns, config, dropped)
    stage = _open(config, accelerator, identity)
    if stage.todo():
        with _committing(stage, accelerator) as out:
            tokenizer = load_tokenizer(config.model)
            prompts = load_prompts(config.run, turns, Chat(tokenizer, template_args))
            model = load_student(config)
            rows = _train(model, turns, prompts, config, accelerator, stage)
            out.rows("metrics", rows)
            if accelerator.is_main_process:
                save_student(model, tokenizer, config, stage.home)
            out.counters.rows_in, out.counters.rows_out, out.counters.dropped = len(scored), len(turns), dropped
            out.counters.extra["steps"] = len(rows)
        if accelerator.is_main_process:
            checkpoints.clear(stage.home / "checkpoints")
    accelerator.end_training()
    return stage.summary()


# -- the loop -------------------------------------------------------------------------------------------------------


def _train(
    student: nn.Module,
    turns: Sequence[Turn],
    prompts: Mapping[str, NDArray[np.int32]],
    config: TrainConfig,
    accelerator: Accelerator,
    stage: Stage,
) -> list[JSON]:
    """Train `student` in place; one metrics row a step."""
    optimizer = make_optimizer(student, config)
    rows = checkpoints.restore(stage.home / "checkpoints", student, optimizer)
    steps = optimizer_steps(len(turns), config.batch_turns, config.epochs, config.seed)
    if rows:
        say(f"going on after step {len(rows)} of {len(steps)}")
    model = accelerator.prepare_model(student)  # several processes: DistributedDataParallel
    trained = sum(len(step) for step in steps[: len(rows)])
    for number in progress(range(len(rows) + 1, len(steps) + 1), "train", len(steps) - len(rows), "steps"):
        start = time.monotonic()
        torch.manual_seed(config.seed + number)  # no stream to remember: a resumed step draws what it would have drawn
        batch = [turns[i] for i in steps[number - 1]]
        rate = learning_rate(config, number, len(steps))
        metrics = _optimizer_step(model, optimizer, batch, prompts, config, accelerator, rate)
        trained += len(batch)
        rows.append(_row(number, trained / len(turns), metrics, rate, batch, time.monotonic() - start))
        accelerator.log({k: v for k, v in rows[-1].items() if v is not None}, step=number)
        if number % math.ceil(len(steps) / LINES) == 0 or number == len(steps):
            say(_line(rows[-1], len(steps)))
        if config.checkpoint_every and number % config.checkpoint_every == 0 and accelerator.is_main_process:
            checkpoints.save(stage.home / "checkpoints", student, optimizer, rows)
    return rows


def _optimizer_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Turn],
    prompts: Mapping[str, NDArray[np.int32]],
    config: TrainConfig,
    accelerator: Accelerator,
    rate: float,
) -> dict[str, float]:
    """One step on `batch`, of which this process reads its share. Returns the metrics of the whole step.

    Raises OpdkitError, naming turns, before the step when the loss or the gradient is not finite.
    """
    counts = token_counts(_terms(tokens_of(batch), config))
    processes = accelerator.num_processes
    mine = micro_batches([len(t) for t in batch], config.micro_batch_tokens, accelerator.process_index, processes)
    shares = []
    optimizer.zero_grad(set_to_none=True)
    for n, group in enumerate(mine):
        last = n == len(mine) - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(model):  # gradients are exchanged once a step
            loss, metrics = _forward(
                model, [batch[i] for i in group] or [min(batch, key=len)], bool(group), prompts, counts, config
            )
            (loss * processes).backward()  # DistributedDataParallel averages over the processes; the loss is a sum
        shares.append({"loss": loss.detach(), **metrics})
    grad_norm = accelerator.clip_grad_norm_(trainable(model), config.max_grad_norm or math.inf)
    totals = _summed(shares, accelerator) | {"grad_norm": float(grad_norm)}
    if not (math.isfinite(totals["loss"]) and math.isfinite(totals["grad_norm"])):
        suspects = [batch[i].turn_id for group, share in zip(mine, shares, strict=True)
                    if not torch.isfinite(share["loss"]) for i in group]  # fmt: skip
        _stop(totals, gather_object(suspects) or [t.turn_id for t in batch])
    for parameters in optimizer.param_groups:
        parameters["lr"] = rate
    optimizer.step()
    return totals | {f"{name}_tokens": count for name, count in counts.items()}


def _forward(
    model: nn.Module,
    turns: Sequence[Turn],
    counted: bool,
    prompts: Mapping[str, NDArray[np.int32]],
    counts: Mapping[str, int],
    config: TrainConfig,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The share of these turns in the step's loss and metrics; all zeros where they are not `counted`."""
    sequences = [ScoredSequence(prompts[t.turn_id].tolist(), t.response_ids.tolist()) for t in turns]
    with autocast(config):
        logits_NV, _ = response_logits(model, sequences)
    tokens = _on(tokens_of(turns), logits_NV.device)
    if not counted:
        tokens = dataclasses.replace(tokens, sampled_N=torch.zeros_like(tokens.sampled_N))
    terms = _terms(tokens, config)
    ids_N = torch.tensor([i for s in sequences for i in s.response_ids], device=logits_NV.device)
    logprobs_N = token_logprobs(logits_NV, ids_N)
    loss, metrics = step_loss(logprobs_N, tokens.old_logprobs_N, terms, counts, config.clip_low, config.clip_high)
    with torch.no_grad():
        entropy_N = entropy(logits_NV.detach())
        metrics["entropy"] = entropy_N[trained_positions(terms)].sum() / counts["trained"]
    return loss, metrics


def _terms(tokens: Tokens, config: TrainConfig) -> list[Term]:
    weights = {"reward": config.reward_weight, "teacher": config.teacher_weight}
    return terms_of(config.objective, tokens, weights, config.advantage_clip)


def _on(tokens: Tokens, device: torch.device) -> Tokens:
    return Tokens(**{f.name: getattr(tokens, f.name).to(device) for f in dataclasses.fields(tokens)})


def _summed(shares: Sequence[Mapping[str, Tensor]], accelerator: Accelerator) -> dict[str, float]:
    """The shares of all micro-batches and processes added up: one exchange, one wait for the device."""
    names = list(shares[0])
    sums = torch.stack([torch.stack([share[name].float() for name in names]) for share in shares]).sum(0)
    return dict(zip(names, accelerator.reduce(sums, "sum").tolist(), strict=True))


def _stop(totals: Mapping[str, float], turn_ids: Sequence[str]) -> None:
    names = ", ".join(turn_ids[:8]) + (f" and {len(turn_ids) - 8} more" if len(turn_ids) > 8 else "")
    raise OpdkitError(
        f"the loss is {totals['loss']:g} and the gradient norm {totals['grad_norm']:g}: stopped before the step, at "
        f"turns {names}. Look at them with `opdkit show`; a lower --learning-rate or --dtype float32 may help"
    )


# -- what is reported -----------------------------------------------------------------------------------------------


def _row(
    number: int, epoch: float, metrics: Mapping[str, float], rate: float, batch: Sequence[Turn], seconds: float
) -> JSON:
    tokens = sum(len(turn) for turn in batch)
    counts = {source: int(metrics.get(f"{source}_tokens", 0)) for source in ("reward", "teacher")}
    terms = {f"{source}_{what}": metrics[f"{source}_{what}"] if count else None  # a mean over no tokens is no 0
             for source, count in counts.items() for what in ("loss", "advantage")}  # fmt: skip
    return {
        "step": number,
        "epoch": epoch,
        **{name: metrics[name] for name in ("loss", "clip_fraction", "approx_kl", "entropy", "grad_norm")},
        **terms,
        **{f"{source}_tokens": count for source, count in counts.items()},
        "learning_rate": rate,
        "turns": len(batch),
        "tokens": tokens,
        "tokens_per_second": tokens / max(seconds, 1e-9),
        "seconds": seconds,
    }


def _line(row: JSON, steps: int) -> str:
    advantages = "".join(
        f", {source} advantage {row[f'{source}_advantage']:+.3f}"
        for source in ("teacher", "reward")
        if row[f"{source}_advantage"] is not None
    )
    return (
        f"step {row['step']} of {steps}: loss {row['loss']:+.4f}{advantages}, KL {row['approx_kl']:.4f}, "
        f"gradient {row['grad_norm']:.3g}, {row['tokens_per_second']:,.0f} tokens/s"
    )


def _require_signal(turns: Sequence[Turn], config: TrainConfig, dropped: Mapping[str, int]) -> None:
    """Say what trains on what. Raises OpdkitError when there is nothing to learn from."""
    hinted = sum(turn.teacher_logprobs is not None for turn in turns)
    rewards = [turn.reward for turn in turns if turn.reward is not None]
    left_out = ", ".join(f"{reason} {n}" for reason, n in dropped.items()) or "none"
    if not turns:
        raise OpdkitError(f"no turn can train with --objective {config.objective} (left out: {left_out}). "
                          + _REMEDIES[config.objective])  # fmt: skip
    if config.objective == "binary" and not any(rewards):
        raise OpdkitError(f"all {len(rewards)} rewards are 0: there is nothing to learn. " + _REMEDIES["binary"])
    steps = len(optimizer_steps(len(turns), config.batch_turns, config.epochs, config.seed))
    say(f"{len(turns)} turns: {hinted} with a hint; rewards: {rewards.count(1)} +1, {rewards.count(0)} 0, "
        f"{rewards.count(-1)} -1; left out: {left_out}; {steps} optimizer steps")  # fmt: skip
    if steps < 10:
        warn(
            f"{steps} optimizer steps will hardly move the model: more --epochs, a smaller --batch-turns, or more logs"
        )


_REMEDIES = {
    "opd": "It learns from hints: see in the closing lines of judge and teacher whether there were none or whether "
    "they were dropped, try a stronger --judge, or train on the rewards with --objective binary.",
    "binary": "It learns from rewards: try a stronger --judge or more --votes, or train on the hints with "
    "--objective opd.",
    "combine": "It learns from hints and rewards: try a stronger --judge or more --votes.",
}


# -- setting up -----------------------------------------------------------------------------------------------------


def _refuse(config: TrainConfig) -> None:
    if config.shard != "auto":
        raise ConfigError("--shard: training is not cut into parts; for several processes use `accelerate launch -m "
                          "opdkit train ...` or `torchrun -m opdkit train ...`")  # fmt: skip
    if config.dtype == "float16":
        raise ConfigError("--dtype float16 is too narrow to train in; use bfloat16 or float32")
    packages = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "trackio": ("trackio",)}
    if config.tracker and not any(importlib.util.find_spec(name) for name in packages[config.tracker]):
        raise ConfigError(f"--tracker {config.tracker} needs its package: pip install {config.tracker}")


def _accelerator(config: TrainConfig) -> Accelerator:
    """The processes of this run. The model itself stays where `--device` puts it and in the dtype it was loaded in.

    On CPUs `cpu=True` is what makes processes see each other; without it each would train on its own, unnoticed.
    """
    on_cpu = resolve_device(config.device).type == "cpu"
    home = config.run / "train"
    accelerator = Accelerator(
        cpu=on_cpu, mixed_precision="no", device_placement=False, log_with=config.tracker, project_dir=home
    )
    kinds = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU, DistributedType.MULTI_XPU)
    if accelerator.distributed_type not in kinds:
        raise ConfigError(f"training under {accelerator.distributed_type.value} is not supported: each process holds "
                          "the whole model; configure `accelerate launch` with --multi_gpu")  # fmt: skip
    if accelerator.num_processes > 1 and config.device not in ("auto", "cpu"):
        raise ConfigError(f"--device {config.device}: with several processes the launcher gives each its device")
    return accelerator


def _open(config: TrainConfig, accelerator: Accelerator, identity: JSON) -> Stage:
    """The stage, pinned by the main process before the others look at it."""
    alone = dataclasses.replace(config, shard="0/1")
    for main in (True, False):
        if main == accelerator.is_main_process:
            # What to overwrite, the main process has overwritten.
            mine = dataclasses.replace(alone, overwrite=config.overwrite and main)
            stage = Stage.open(mine, "train", [METRICS], parts=1, inputs={"model": identity}, upstream=["teacher"])
        accelerator.wait_for_everyone()
    if config.tracker and stage.todo():
        settings: dict[str, Any] = {k: v for k, v in config.effective().items() if isinstance(v, (int, float, str))}
        accelerator.init_trackers("opdkit", settings)
    return stage


@contextlib.contextmanager
def _committing(stage: Stage, accelerator: Accelerator) -> Iterator[PartWriter]:
    """Stage.writing in the main process; the others write nothing, and wait until it has."""
    if accelerator.is_main_process:
        with stage.writing(0) as out:
            yield out
    else:
        yield PartWriter(stage.tables)
    accelerator.wait_for_everyone()
