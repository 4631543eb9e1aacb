"""`opdkit export`: judged turns in the form that other trainers read.

command.py    the loop: part by part, into one file
messages.py   the judged turns of a run, and their messages as trainers take them
targets.py    the targets: their rows, columns and kinds of file
files.py      Parquet and JSONL, complete or absent
"""

from opdkit.commands.export.command import run

__all__ = ["run"]
