"""`opdkit train`: targets -> a better model."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdkit.stages import TrainConfig
    from opdkit.store import Summary


def run(config: "TrainConfig") -> "Summary":
    """Train the student on the targets of a run; see `opdkit.train.stage`."""
    from opdkit.train.stage import run as train

    return train(config)
