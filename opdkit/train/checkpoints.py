"""Checkpoints of a training run: one file each, complete or absent.

A file holds what is trained, the optimizer's state and the metrics of the steps so far; their number is the position.
The order of the turns, the learning rate and the random streams are functions of the plan and the step, and the old
policy is in the targets, so there is nothing else to remember. Only the newest file is kept: it is larger than the
model. A sharded student is written whole, so that any number of processes can go on from it.
"""

import os
from pathlib import Path

import torch
from torch import nn

from opdkit.config.fields import JSON
from opdkit.console import warn
from opdkit.store.atomic import sync
from opdkit.train.sharding import kept, placed
from opdkit.train.student import trained


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, rows: list[JSON], *, main: bool) -> None:
    """Write the state after `len(rows)` steps; then let the older files go. All processes call, `main` writes."""
    weights = {name: kept(parameter, main) for name, parameter in trained(model).items()}
    state = optimizer.state_dict()
    moments = {i: {name: kept(value, main) for name, value in each.items()} for i, each in state["state"].items()}
    if main:
        _write(folder, {"weights": weights, "optimizer": state | {"state": moments}, "rows": rows})


def _write(folder: Path, state: JSON) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{len(state['rows']):08d}.pt"
    temporary = folder / f".{final.name}-{os.getpid()}"
    with temporary.open("wb") as handle:
        torch.save(state, handle)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(final)
    sync(folder)  # before the one that it replaces goes
    for path in [*folder.glob("step-*.pt"), *folder.glob(".step-*")]:
        if path != final:
            path.unlink(missing_ok=True)


def newest(folder: Path) -> JSON | None:
    """The newest checkpoint as it was written, still in its file; None without one.

    A file that cannot be read is passed over with a warning: the one before it, or the beginning, is as good.
    """
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state: JSON = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # a damaged pickle can raise anything
            warn(f"{path} cannot be read ({type(error).__name__}: {error}); going on without it")
            continue
        return state
    return None


def restore(state: JSON, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint into model and optimizer. Where they are sharded, all processes must have the same one."""
    with torch.no_grad():
        for name, parameter in trained(model).items():
            parameter.copy_(placed(state["weights"][name], parameter))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {
        i: {name: placed(value, parameters[i]) if value.ndim else value.clone() for name, value in each.items()}
        for i, each in state["optimizer"]["state"].items()
    }
    optimizer.load_state_dict(state["optimizer"] | {"state": moments})


def clear(folder: Path) -> None:
    """Remove the checkpoints of a run that has finished."""
    for path in [*folder.glob("step-*.pt"), *folder.glob(".step-*")]:
        path.unlink(missing_ok=True)
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
