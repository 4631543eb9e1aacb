"""Checkpoints of a training run: one file each, complete or absent.

A file holds what is trained, the optimizer's state and the metrics of the steps so far; their number is the position.
The order of the turns, the learning rate and the random streams are functions of the plan and the step, so there is
nothing else to remember. Only the newest file is kept: it is larger than the model.
"""

import os
from pathlib import Path

import torch
from torch import nn

from opdkit.config import JSON
from opdkit.console import warn


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, rows: list[JSON]) -> None:
    """Write the state after `len(rows)` steps; then let the older files go."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{len(rows):08d}.pt"
    temporary = folder / f".{final.name}-{os.getpid()}"
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    with temporary.open("wb") as handle:
        torch.save({"weights": weights, "optimizer": optimizer.state_dict(), "rows": rows}, handle)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(final)
    for path in [*folder.glob("step-*.pt"), *folder.glob(".step-*")]:
        if path != final:
            path.unlink(missing_ok=True)


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[JSON]:
    """Put the newest checkpoint into model and optimizer; the metrics of the steps it stands for, [] without one.

    A file that cannot be read is passed over with a warning: the one before it, or the beginning, is as good.
    """
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle can raise anything
            warn(f"{path} cannot be read ({type(error).__name__}: {error}); going on without it")
            continue
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(state["weights"][name])
        optimizer.load_state_dict(state["optimizer"])
        rows: list[JSON] = state["rows"]
        return rows
    return []


def clear(folder: Path) -> None:
    """Remove the checkpoints of a run that has finished."""
    for path in [*folder.glob("step-*.pt"), *folder.glob(".step-*")]:
        path.unlink(missing_ok=True)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
