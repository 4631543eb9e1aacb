"""`opdkit check`: compare a run with what its stages wrote. Reads everything, changes nothing unless asked.

plans.py     manifests: readable, unchanged, bound to each other
parts.py     files: complete, nothing else beside them, the committed bytes, schema, counters
decisions.py decisions of people: files, keys, and what was computed from them
rows.py      values: keys between tables, ranges, finite numbers
weights.py   the trained model
recompute.py the parts to remove so that the stages compute only what is missing
"""

from opdkit.commands.check.stage import run

__all__ = ["run"]
