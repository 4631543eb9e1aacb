"""`opdkit calibrate`: measure, print."""

import json

from opdkit.commands.calibrate.measure import measure
from opdkit.config.calibrate import CalibrateConfig


def run(config: CalibrateConfig) -> None:
    """Print how the judge does. Raises what `measure` raises."""
    measured = measure(config)
    if config.json:
        print(json.dumps(measured.as_json(), indent=2))
        return
    from opdkit.commands.calibrate.shown import show  # imported here: JSON needs no tables

    show(measured, config)
