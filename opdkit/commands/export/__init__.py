"""`opdkit export`: judged turns in the form that other trainers read.

command.py    the loop: part by part, one file, whole or not there
turns.py      the judged turns of a run, and why one is not exported
messages.py   messages as trainers take them
files.py      Parquet and JSONL
sdft.py kto.py sft.py verl.py openai.py    a target each: which turns, which columns
"""

from opdkit.commands.export.command import run

__all__ = ["run"]
