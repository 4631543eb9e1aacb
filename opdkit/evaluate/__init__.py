"""`opdkit eval`: the model before and after training, side by side."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdkit.stages import EvalConfig
    from opdkit.store import Summary


def run(config: "EvalConfig") -> "Summary":
    """Compare two models on held-out prompts and on the logs; see `opdkit.evaluate.stage`."""
    from opdkit.evaluate.stage import run as evaluate

    return evaluate(config)
