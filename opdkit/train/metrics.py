"""Metrics of optimizer steps: a row of the table, a line of text, and how far the steps moved the student."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.console import add_sign, say, warn
from opdkit.model.rounding import HALF_ROUNDING
from opdkit.train.objective.terms import TERMS, Objective
from opdkit.train.targets import Reply

ADVANTAGES = ("reward", "teacher", "support")
# Bounds of `shift`, in nats per token. Below the first, the probability of a token changed by less than 2% on average.
# Above the second, the average token is outside the range of the default ratio clip: log(1 + 0.28) is 0.247.
HARDLY_MOVED, FAR_MOVED = 0.02, 0.25


def make_metrics_row(
    metrics: Mapping[str, float], objective: Objective, replies: Sequence[Reply], seconds: float
) -> JSON:
    """Return the row of a step, without step number and epoch. A mean over no tokens or replies is null, not 0."""
    read = int(metrics["tokens_read"])
    penalties = [reply.length_penalty for reply in replies if reply.length_penalty is not None]
    terms = (*TERMS, "anchor", "kl")
    has_tokens = {name for name in terms if metrics.get(f"{name}_tokens")}
    return {
        **{name: metrics[name] for name in ("loss", "approx_kl", "shift", "entropy", "grad_norm")},
        **{f"{name}_loss": metrics[f"{name}_loss"] if name in has_tokens else None for name in terms},
        **{f"{name}_advantage": metrics[f"{name}_advantage"] if name in has_tokens else None for name in ADVANTAGES},
        "length_penalty": sum(penalties) / len(penalties) if penalties else None,
        **{f"{name}_tokens": int(metrics.get(f"{name}_tokens", 0)) for name in TERMS},
        "clip_low": objective.clip_low,
        "clip_high": objective.clip_high,
        "clip_fraction": metrics.get("clip_fraction"),
        "learning_rate": metrics["learning_rate"],
        "step_kl": metrics.get("step_kl"),
        "skipped": not metrics["grad_norm"],
        "turns": len(replies),
        "turn_ids": [reply.turn_id for reply in replies],
        "tokens": sum(map(len, replies)),
        "tokens_read": read,
        "tokens_per_second": read / max(seconds, 1e-9),
        "seconds": seconds,
    }


def format_metrics(row: JSON, steps: int) -> str:
    """Return a row as one line of text."""
    values = [f"{name} advantage {add_sign(row[f'{name}_advantage'], 3)}" for name in ADVANTAGES
              if row[f"{name}_advantage"] is not None]  # fmt: skip
    if row["divergence_loss"] is not None:
        values.append(f"divergence {row['divergence_loss']:.4f}")
    return ", ".join([
        f"step {row['step']} of {steps}: loss {add_sign(row['loss'], 4)}", *values, f"KL {row['approx_kl']:.4f}",
        f"gradient {row['grad_norm']:.3g}", f"learning rate {row['learning_rate']:.2g}",
        f"{row['tokens_per_second']:,.0f} tokens/s",
    ])  # fmt: skip


def check_first_step(row: JSON) -> None:
    """Warn if the student, before its first update, is not the old policy that the teacher stage scored."""
    if row["shift"] > HALF_ROUNDING:
        warn(f"before any training, the log-probs of the replies differ from those of the teacher stage by "
             f"{row['shift']:.2f} nats per token: here this model computes something else, so the result is doubtful. "
             "Compare --dtype and the versions of torch and transformers")  # fmt: skip


def report_movement(rows: Sequence[JSON], run: Path, *, validated: bool, rolled_back: bool) -> None:
    """Say the largest learning rate, and how far the log-probs of the trained tokens moved; warn if little or much.

    The movement is the mean of `shift` over the last quarter of the steps. It comes from the forwards before each
    update, so nothing is read again, and a single step shows no movement. A `validated` state may move far without a
    warning, since it is better than the student before training. After a rollback, no higher rate is advised.
    """
    if rows and all(row["skipped"] for row in rows):
        warn("no step had a gradient: the weights are those of the model before")
        return
    if rows:
        say(f"the largest learning rate of a step was {max(row['learning_rate'] for row in rows):.2g}")
    if len(rows) < 2:
        say("how far one optimizer step moves a model is not measured here; `opdkit eval` measures it")
        return
    last = rows[-max(1, len(rows) // 4) :]
    moved = sum(row["shift"] for row in last) / len(last)
    say(f"log-probs of trained replies moved by {moved:.4f} nats per token, measured from step {last[0]['step']} on")
    if moved < HARDLY_MOVED:
        remedy = "it went back from broken states; a lower" if rolled_back else "use a higher"
        warn(f"the model hardly moved, by less than {HARDLY_MOVED} nats per token: {remedy} --learning-rate or more "
             f"--epochs{' may help' if rolled_back else ''}")  # fmt: skip
    elif moved > FAR_MOVED and not validated:
        warn(f"the model moved far, by more than {FAR_MOVED} nats per token: look at its replies before you use it "
             f"(`opdkit eval {quote(run)} --prompts FILE`); a lower --learning-rate moves it less")  # fmt: skip
