"""`opdkit check`: whether a run is what its stages wrote. Reads everything, changes nothing unless asked.

plans.py     manifests: readable, unchanged, bound to each other
parts.py     files: there, nothing else there, the bytes that were committed, schema, counters
decisions.py what people decided: files, keys, and what was computed from it
rows.py      values: keys between tables, ranges, finite numbers
weights.py   the trained model
recompute.py what to remove so that the stages do only what is missing
"""

from opdkit.commands.check.stage import run

__all__ = ["run"]
