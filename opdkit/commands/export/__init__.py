"""`opdkit export`: judged turns in the form that other trainers read."""

from opdkit.commands.export.command import run

__all__ = ["run"]
