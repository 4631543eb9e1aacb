"""`opdkit calibrate`: how often the judge is right, by labels that people gave, and how many votes that takes."""

from opdkit.commands.calibrate.command import Calibration, measure, run

__all__ = ["Calibration", "measure", "run"]
