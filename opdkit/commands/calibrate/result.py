"""What `opdkit calibrate` finds."""

import dataclasses
from dataclasses import dataclass

from opdkit.commands.calibrate.agreement import ClassScore, HintScore, Level
from opdkit.config.fields import JSON

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Point:
    """The judge with so many votes. Measured over all subsets of the stored votes; null beyond their number.

    `independent` is what votes that err independently of each other would reach, each as often right as measured.
    """

    votes: int
    accuracy: float | None
    interval: Interval
    coverage: float | None
    independent: float | None


@dataclass(frozen=True)
class Calibration:
    """The judge against labels. Shares are of the labels that the judge answered; coverage says how many those are."""

    rows: int
    set_aside: dict[str, int]
    labels: int  # with a verdict
    answered: int
    statuses: dict[str, int]  # of the verdicts on labelled turns
    accuracy: float | None
    accuracy_interval: Interval
    kappa: float | None
    kappa_interval: Interval
    confusion: list[list[int]]  # rows: labels -1, 0, 1; columns: rewards -1, 0, 1
    classes: list[ClassScore]
    levels: list[Level]
    calibration_error: float | None
    stored_votes: int
    curve: list[Point]
    curve_labels: int  # those whose turns have all the votes
    votes_worth_paying: int | None
    hints: HintScore | None  # null where no label says whether something was wanted

    def as_json(self) -> JSON:
        """Everything, as JSON values."""
        return dataclasses.asdict(self)
