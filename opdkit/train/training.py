"""State of a training in one process: what its steps read and what they change."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.store.turn_ids import prompt_turn_id
from opdkit.train.batches import Step
from opdkit.train.best_state import needs_another_cycle
from opdkit.train.objective.terms import Objective
from opdkit.train.targets import Prompts, Reply
from opdkit.train.trust_region import TrustRegion
from opdkit.train.validation import Validation


@dataclass
class Training:
    """Options, data, models and progress of a training."""

    config: TrainConfig
    objectives: Sequence[Objective]  # one for each phase
    replies: Sequence[Reply]
    prompts: Prompts
    cycles: Sequence[Sequence[Step]]  # steps per cycle of the schedule; later ones only run if much is left to learn
    accelerator: Accelerator
    folder: Path  # of the checkpoints
    student: nn.Module
    model: nn.Module  # the student in a Policy; with several processes also in DistributedDataParallel, or sharded
    optimizer: torch.optim.Optimizer
    trust: TrustRegion
    rows: list[JSON]  # of the table `metrics`: one per finished step
    validation: Validation | None
    validation_steps: Collection[int] = ()  # numbers of the steps after which to validate
    cycle_start: int = 0  # number of steps before the current cycle
    steps: Sequence[Step] = ()  # all steps up to the end of the current cycle
    is_ended: bool = False  # no step is left, or validation ended the training
    saved: float = field(default_factory=time.monotonic)  # time of the last checkpoint, or of the start

    @property
    def measurements(self) -> Sequence[JSON]:
        """Rows of the table `validations` so far."""
        return self.validation.rows if self.validation else ()

    @property
    def distance(self) -> str:
        """Column of the table `validations` that says how much is left to learn.

        It is the score, or hint_kl if the student is trained on prompts with a hint: more cycles could undo wanted
        changes of other replies, and these prompts would not show that.
        """
        prompts = self.validation.prompts if self.validation else ()
        hinted = {prompt_turn_id(prompt.turn_id) for prompt in prompts if prompt.hinted}
        return "hint_kl" if any(prompt_turn_id(reply.turn_id) in hinted for reply in self.replies) else "score"

    def plan_steps(self) -> None:
        """Set `steps` and `cycle_start` for the cycles that the validations so far have called for."""
        self.cycle_start, self.steps = 0, list(self.cycles[0])
        rows, distance = self.measurements, self.distance
        for cycle in self.cycles[1:]:
            start, end = self.cycle_start, len(self.steps)
            if not rows or not needs_another_cycle(rows, start, end, distance):
                return
            self.cycle_start, self.steps = end, [*self.steps, *cycle]
