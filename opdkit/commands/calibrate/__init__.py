"""`opdkit calibrate`: how often the judge is right, by labels that people gave, and how many votes that takes.

command.py    measures and prints
labels.py     labels of people, and the judge's verdicts on the same turns
agreement.py  confusion, accuracy, kappa, calibration: pure
voting.py     rewards that fewer votes, or independent ones, would have given: pure
table.py      tables for people
"""

from opdkit.commands.calibrate.command import Calibration, measure, run

__all__ = ["Calibration", "measure", "run"]
