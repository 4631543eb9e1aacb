"""`opdkit doctor`: findings about packages, machine, model, server and logs, with remedies. Changes nothing.

machine.py   versions, devices, memory, the disk of the run
model.py     the student: complete, known, how large, what its chat template takes
server.py    the judge's server: answers, knows the model, accepts the key
logs.py      the logs: readable, of which format
"""

from opdkit.commands.doctor.report import run

__all__ = ["run"]
