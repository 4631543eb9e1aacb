"""`opdkit report`: a run as one HTML file that opens offline, for a person who wants to see the feedback."""

from opdkit.commands.report.command import run
from opdkit.commands.report.page import page

__all__ = ["page", "run"]
