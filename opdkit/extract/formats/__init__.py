"""Log formats, one module each. docs/logs.md says how each format is read; the modules do not repeat it.

To add the format NAME, write `opdkit/extract/formats/NAME.py` with a `READER` (reader.py), and add NAME to `FORMATS`
(opdkit/config/extract.py), the choices of `--format`. Two functions make the usual readers: `line_reader`
(sessions.py) for a session per line, `call_reader` (chains.py) for a model call with its whole prompt per record.
"""

from importlib import import_module

from opdkit.config.extract import FORMATS
from opdkit.extract.formats.reader import Reader

READERS: dict[str, Reader] = {name: import_module(f"{__name__}.{name}").READER for name in FORMATS if name != "auto"}
