"""Log formats, one module each.

To add the format NAME, write one file and add one line:

1. The file `opdkit/extract/formats/NAME.py` with a `READER`: a Reader (reader.py) that says how to recognise a record,
   what one unit of the log is, and how to turn a unit into conversations. Two functions make the usual ones:
   `line_reader` (sessions.py) for a session per line, `call_reader` (chains.py) for a model call with its whole prompt
   per record.
2. The line in `FORMATS` (opdkit/config/extract.py), which is what `--format` offers.
"""

from importlib import import_module

from opdkit.config.extract import FORMATS
from opdkit.extract.formats.reader import Reader

READERS: dict[str, Reader] = {name: import_module(f"{__name__}.{name}").READER for name in FORMATS if name != "auto"}
