"""What is reported of each optimizer step: a row of the metrics table, and a line for who watches."""

from collections.abc import Mapping, Sequence

from opdkit.config.fields import JSON
from opdkit.console import with_sign
from opdkit.train.objective import Objective
from opdkit.train.targets import Turn

LOSSES = ("reward", "teacher", "support", "divergence", "kl")
ADVANTAGES = ("reward", "teacher", "support")
COUNTED = ("reward", "teacher", "support", "divergence")


def metrics_row(
    number: int,
    epoch: float,
    metrics: Mapping[str, float],
    objective: Objective,
    rate: float,
    batch: Sequence[Turn],
    seconds: float,
) -> JSON:
    """The row of a step. A mean over nothing is null, not 0."""
    read = int(metrics["tokens_read"])

    def mean(name: str, what: str) -> float | None:
        return metrics[f"{name}_{what}"] if metrics.get(f"{name}_tokens") else None

    return {
        "step": number,
        "epoch": epoch,
        **{name: metrics[name] for name in ("loss", "approx_kl", "entropy", "grad_norm")},
        **{f"{name}_loss": mean(name, "loss") for name in LOSSES},
        **{f"{name}_advantage": mean(name, "advantage") for name in ADVANTAGES},
        **{f"{name}_tokens": int(metrics.get(f"{name}_tokens", 0)) for name in COUNTED},
        "clip_low": objective.clip_low,
        "clip_high": objective.clip_high,
        "clip_fraction": metrics.get("clip_fraction"),
        "learning_rate": rate,
        "turns": len(batch),
        "turn_ids": [turn.turn_id for turn in batch],
        "tokens": sum(len(turn) for turn in batch),
        "tokens_read": read,
        "tokens_per_second": read / max(seconds, 1e-9),
        "seconds": seconds,
    }


def line(row: JSON, steps: int) -> str:
    """A row in words."""
    shown = [f"{name} advantage {with_sign(row[f'{name}_advantage'], 3)}" for name in ADVANTAGES
             if row[f"{name}_advantage"] is not None]  # fmt: skip
    if row["divergence_loss"] is not None:
        shown.append(f"divergence {row['divergence_loss']:.4f}")
    return ", ".join([
        f"step {row['step']} of {steps}: loss {with_sign(row['loss'], 4)}", *shown, f"KL {row['approx_kl']:.4f}",
        f"gradient {row['grad_norm']:.3g}", f"{row['tokens_per_second']:,.0f} tokens/s",
    ])  # fmt: skip
