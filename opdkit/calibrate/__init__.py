"""`opdkit calibrate`: how often the judge is right, by labels that people gave, and how many votes that takes.

command.py    reads, measures, prints
labels.py     the file of labels
cases.py      a label beside what the judge said
agreement.py  confusion, accuracy, kappa, calibration: pure
voting.py     what fewer votes, or independent ones, would have said: pure
intervals.py  how sure all that is
shown.py      tables for people
"""

from opdkit.calibrate.command import Calibration, measure, run

__all__ = ["Calibration", "measure", "run"]
