"""`opdkit rollout`: fresh replies of the student to the hinted turns of a run."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdkit.stages import RolloutConfig
    from opdkit.store import Summary


def run(config: "RolloutConfig") -> "Summary":
    """Answer the hinted turns of one run afresh into another; see `opdkit.rollout.stage`."""
    from opdkit.rollout.stage import run as rollout

    return rollout(config)
