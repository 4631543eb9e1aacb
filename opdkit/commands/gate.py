"""`opdkit gate`: may the trained model replace the one before it? From what `opdkit eval` stored, without a model."""

import json
from dataclasses import asdict

from opdkit.config.command_line import quote
from opdkit.config.gate import GateConfig
from opdkit.errors import OpdkitError
from opdkit.evaluate.conclusion import is_evaluated
from opdkit.evaluate.gate import Decision, decide
from opdkit.store.plans import check_upstream
from opdkit.store.reading import read_arrow, read_part


def run(config: GateConfig) -> bool:
    """Print the decision as Markdown, and return True for a model that may be shipped. Raises what `gate` raises."""
    decision = gate(config)
    print(json.dumps(asdict(decision), indent=2) if config.json else decision.markdown())
    return decision.ship


def gate(config: GateConfig) -> Decision:
    """Return the decision. Raises OpdkitError where there is no evaluation, or a stage was run again since."""
    if not is_evaluated(config.run):
        raise OpdkitError(f"{config.run} has no evaluation: run `opdkit eval {quote(config.run)} --prompts FILE`, "
                          "or with --from-log in place of --prompts, and then this again")  # fmt: skip
    check_upstream(config.run, ["eval"])
    replies = read_arrow(config.run, "replies", 0)
    return decide(replies, read_part(config.run, "scores", 0), config.max_loss, config.allow)
