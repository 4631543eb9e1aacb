"""`opdkit teacher`: verdicts -> targets."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdkit.stages import TeacherConfig
    from opdkit.store import Summary


def run(config: "TeacherConfig") -> "Summary":
    """Score every judged turn of a run; see `opdkit.teacher.stage`."""
    from opdkit.teacher.stage import run as score

    return score(config)
