"""Metrics of an optimizer step: a row of the table, and a line of text."""

from collections.abc import Mapping, Sequence

from opdkit.config.fields import JSON
from opdkit.console import with_sign
from opdkit.train.objective.terms import TERMS, Objective
from opdkit.train.targets import Turn

ADVANTAGES = ("reward", "teacher", "support")


def metrics_row(metrics: Mapping[str, float], objective: Objective, batch: Sequence[Turn], seconds: float) -> JSON:
    """Return the row of a step without its number, epoch and learning rate. A mean over nothing is null, not 0."""
    read = int(metrics["tokens_read"])
    penalties = [turn.length_penalty for turn in batch if turn.length_penalty is not None]
    has_tokens = {name for name in (*TERMS, "kl") if metrics.get(f"{name}_tokens")}
    return {
        **{name: metrics[name] for name in ("loss", "approx_kl", "shift", "entropy", "grad_norm")},
        **{f"{name}_loss": metrics[f"{name}_loss"] if name in has_tokens else None for name in (*TERMS, "kl")},
        **{f"{name}_advantage": metrics[f"{name}_advantage"] if name in has_tokens else None for name in ADVANTAGES},
        "length_penalty": sum(penalties) / len(penalties) if penalties else None,
        **{f"{name}_tokens": int(metrics.get(f"{name}_tokens", 0)) for name in TERMS},
        "clip_low": objective.clip_low,
        "clip_high": objective.clip_high,
        "clip_fraction": metrics.get("clip_fraction"),
        "skipped": not metrics["grad_norm"],
        "turns": len(batch),
        "turn_ids": [turn.turn_id for turn in batch],
        "tokens": sum(len(turn) for turn in batch),
        "tokens_read": read,
        "tokens_per_second": read / max(seconds, 1e-9),
        "seconds": seconds,
    }


def metrics_line(row: JSON, steps: int) -> str:
    """Return a row as one line of text."""
    values = [f"{name} advantage {with_sign(row[f'{name}_advantage'], 3)}" for name in ADVANTAGES
              if row[f"{name}_advantage"] is not None]  # fmt: skip
    if row["divergence_loss"] is not None:
        values.append(f"divergence {row['divergence_loss']:.4f}")
    return ", ".join([
        f"step {row['step']} of {steps}: loss {with_sign(row['loss'], 4)}", *values, f"KL {row['approx_kl']:.4f}",
        f"gradient {row['grad_norm']:.3g}", f"{row['tokens_per_second']:,.0f} tokens/s",
    ])  # fmt: skip
