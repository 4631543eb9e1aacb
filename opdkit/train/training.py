"""Training under way, in one process: what its steps read and what they change."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.train.batches import Step
from opdkit.train.objective.terms import Objective
from opdkit.train.targets import Prompts, Turn
from opdkit.train.trust_region import TrustRegion
from opdkit.train.validation import Validation


@dataclass
class Training:
    """Options, data, models and progress of a training."""

    config: TrainConfig
    phases: Sequence[Objective]
    turns: Sequence[Turn]
    prompts: Prompts
    steps: Sequence[Step]
    accelerator: Accelerator
    folder: Path  # of the checkpoints
    student: nn.Module
    model: nn.Module  # the student as the loss reads it; several processes share its gradients
    optimizer: torch.optim.Optimizer
    trust: TrustRegion
    rows: list[JSON]  # of the table `metrics`, one per step that was done
    validation: Validation | None
