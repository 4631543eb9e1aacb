"""Training under way, in one process: what its steps read and what they change."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.train.batches import Step
from opdkit.train.best_state import needs_another_cycle
from opdkit.train.objective.terms import Objective
from opdkit.train.targets import Prompts, Turn
from opdkit.train.trust_region import TrustRegion
from opdkit.train.validation import Validation


@dataclass
class Training:
    """Options, data, models and progress of a training."""

    config: TrainConfig
    objectives: Sequence[Objective]  # one for each phase
    turns: Sequence[Turn]
    prompts: Prompts
    cycles: Sequence[Sequence[Step]]  # of the schedule; each but the first begins where much is left to learn
    accelerator: Accelerator
    folder: Path  # of the checkpoints
    student: nn.Module
    model: nn.Module  # the student as the loss reads it; several processes share its gradients
    optimizer: torch.optim.Optimizer
    trust: TrustRegion
    rows: list[JSON]  # of the table `metrics`, one per step that was done
    validation: Validation | None
    validation_steps: Collection[int] = ()  # after which to validate
    cycle_start: int = 0  # steps before the cycle that is under way
    steps: Sequence[Step] = ()  # those before, and those of this cycle
    rollbacks: dict[int, int] = field(default_factory=dict)  # step after which it rolled back -> the earlier step
    is_ended: bool = False  # no step is left, or further ones are in vain
    saved: float = field(default_factory=time.monotonic)  # when the last checkpoint was written, or the training began

    def plan_steps(self) -> None:
        """Set `steps` to those of the cycles that have begun by the validations so far, and `cycle_start` to match."""
        self.cycle_start, self.steps = 0, list(self.cycles[0])
        for cycle in self.cycles[1:]:
            start, end = self.cycle_start, len(self.steps)
            if self.validation is None or not needs_another_cycle(self.validation.rows, start, end):
                return
            self.cycle_start, self.steps = end, [*self.steps, *cycle]
