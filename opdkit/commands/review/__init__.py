"""`opdkit review`: people accept, edit or strike hints and rewards, in the browser or in a spreadsheet.

server.py    HTTP on loopback: who may speak to it, and how
api.py       what is asked and answered: turn views, decisions
sheet.py     the same decisions as a CSV file, there and back
"""

from typing import TYPE_CHECKING

from opdkit.commands.review.sheet import Imported, read_csv, write_csv

if TYPE_CHECKING:
    from opdkit.config.review import ReviewConfig

__all__ = ["Imported", "read_csv", "run", "write_csv"]


def run(config: "ReviewConfig") -> None:
    """Serve the page until stopped; see `opdkit.commands.review.server`."""
    from opdkit.commands.review.server import run as serve

    serve(config)
