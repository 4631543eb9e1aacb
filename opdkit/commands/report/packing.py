"""JSON packed until a limit is reached: gzip, in the base64 that a browser unpacks."""

import base64
import zlib
from typing import Any

import orjson

from opdkit.config.fields import JSON

_GZIP = 31  # zlib's window bits for a gzip header and trailer; no time in it, so equal data packs equally


class Packed:
    """`{"summary": ..., "rows": ..., "views": [...]}`, in at most `room` characters of base64."""

    def __init__(self, room: int) -> None:
        self._most = room // 4 * 3 - 64  # what closes the document comes on top
        self._zip = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._out = bytearray()
        self.views = 0

    def head(self, summary: JSON, rows: JSON) -> bool:
        """Add what every report has; False, and nothing added, where it does not fit."""
        return self._add(b'{"summary":' + _json(summary) + b',"rows":' + _json(rows) + b',"views":[')

    def view(self, view: JSON) -> bool:
        """Add one turn; False, and nothing added, where it does not fit."""
        added = self._add((b"," if self.views else b"") + _json(view))
        self.views += added
        return added

    def text(self) -> str:
        """The document, closed."""
        self._out += self._zip.compress(b"]}") + self._zip.flush()
        return base64.b64encode(self._out).decode("ascii")

    def _add(self, data: bytes) -> bool:
        trial = self._zip.copy()
        if len(self._out) + len(trial.compress(data)) + len(trial.flush()) > self._most:
            return False
        self._out += self._zip.compress(data)
        return True


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
