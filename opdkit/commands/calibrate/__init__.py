"""`opdkit calibrate`: how often the judge is right, by labels that people gave, and how many votes that takes.

command.py    measures and prints
measure.py    all figures, from a run and labels
result.py     what those figures are
labels.py     the file of labels
cases.py      a label beside what the judge said
agreement.py  confusion, accuracy, kappa, calibration: pure
voting.py     what fewer votes, or independent ones, would have said: pure
intervals.py  how sure all that is
shown.py      tables for people
"""

from opdkit.commands.calibrate.command import run
from opdkit.commands.calibrate.measure import measure
from opdkit.commands.calibrate.result import Calibration

__all__ = ["Calibration", "measure", "run"]
