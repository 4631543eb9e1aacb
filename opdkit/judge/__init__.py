"""`opdkit judge`: turns -> verdicts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdkit.stages import JudgeConfig
    from opdkit.store import Summary


def run(config: "JudgeConfig") -> "Summary":
    """Judge every trainable turn of a run; see `opdkit.judge.stage`."""
    from opdkit.judge.stage import run as judge

    return judge(config)
