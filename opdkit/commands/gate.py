"""`opdkit gate`: decide from the tables of `opdkit eval` whether the trained model may replace the one before it."""

import json
from dataclasses import asdict

from opdkit.config.gate import GateConfig
from opdkit.evaluate.conclusion import check_evaluated
from opdkit.evaluate.gate import Decision, decide
from opdkit.store.reading import read_arrow, read_part


def run(config: GateConfig) -> bool:
    """Print the decision as Markdown or JSON. Return True if the model may be shipped. Raises what `gate` raises."""
    decision = gate(config)
    print(json.dumps(asdict(decision), indent=2) if config.json else decision.markdown())
    return decision.ship


def gate(config: GateConfig) -> Decision:
    """Return the decision. Raises OpdkitError if there is no evaluation, or a stage was run again after it."""
    check_evaluated(config.run)
    replies = read_arrow(config.run, "replies", 0)
    return decide(replies, read_part(config.run, "scores", 0), config.max_loss, config.allow)
