"""Conversion of JSON arrays, and of JSON over several lines, to JSON lines: each object on a line of its own.

    [{"a": 1}, {"a": 2}]  ->  {"a": 1}
                              {"a": 2}

The text is converted while it is read, by looking only at quotes, backslashes and braces. So memory grows neither with
the file nor with an object, and a malformed object spoils no other. Brackets and commas between objects are dropped, so
an array of arrays is read as the objects in them. Any other element becomes a line too, which the reader rejects. A
line break in an object becomes a carriage return, which JSON treats alike. An array that is a conversation stays whole:

    [{"role": ...}, ...]  ->  {"messages":[{"role": ...}, ...]}
"""

import io
import re
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16
_LONGEST_GAP = 1 << 20  # most bytes between two objects that are held at once
_ELEMENT = re.compile(rb'(?:"(?:[^"\\]|\\.)*+"?|[^",\[\]])++', re.DOTALL)  # of an array; a string may hold commas
_QUOTE, _BACKSLASH = b'"\\'
OBJECTS, MESSAGES = "{}", "[]"  # what becomes a line: an object, or an array that is a conversation


class DocumentReader(io.RawIOBase):
    """Stream of JSON lines over a stream of JSON documents."""

    def __init__(self, handle: io.BufferedReader, documents: str = OBJECTS) -> None:
        self._handle = handle
        self._open, self._close = documents.encode()
        self._before, self._behind = (b'{"messages":', b"}\n") if documents == MESSAGES else (b"", b"\n")
        self._ready = memoryview(b"")
        self._kept = b""  # end of the last block: what follows its last object, or a backslash within an object
        self._depth, self._in_text = 0, False  # at the start of the next block: open braces; True in a string

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._handle.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            block = self._handle.read1(_BLOCK)
            if not block and not self._kept:
                return 0
            self._ready = memoryview(self._convert(block))
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _convert(self, block: bytes) -> bytes:
        """Return the objects of the next block (b"": end of the file), with a line end after each whole object."""
        data = self._kept + block
        codes = np.frombuffer(bytearray(data), np.uint8)
        escaped = _find_escaped(codes)
        codes[escaped[escaped < len(data)]] = 0
        quotes = np.flatnonzero(codes == _QUOTE)
        braces = np.flatnonzero((codes == self._open) | (codes == self._close))
        braces = braces[(np.searchsorted(quotes, braces) + self._in_text) % 2 == 0]  # those outside strings
        depths = self._depth + np.cumsum(np.where(codes[braces] == self._open, 1, -1))
        depths -= np.minimum.accumulate(np.minimum(depths, 0))  # an unmatched closing brace closes nothing
        depths = np.concatenate(([self._depth], depths))
        continues = self._depth > 0
        starts = [0] * continues + braces[(depths[:-1] == 0) & (depths[1:] == 1)].tolist()
        ends = (braces[(depths[:-1] == 1) & (depths[1:] == 0)] + 1).tolist()
        self._depth = int(depths[-1])
        self._in_text = self._depth > 0 and bool((len(quotes) + self._in_text) % 2)

        last = len(data)  # bytes from here on are kept for the next block
        if block and self._depth:
            last -= int(last in escaped[-1:])
        elif block and last - (end := max(ends, default=0)) < _LONGEST_GAP:
            last = end
        self._kept = data[last:]
        lines: list[bytes] = []
        at = 0
        for start, end in zip_longest(starts, ends, fillvalue=last):
            lines += _take_rest(data[at:start]), b"" if continues else self._before
            lines += data[start:end].replace(b"\n", b"\r"), self._behind
            at, continues = end, False
        if self._depth:
            lines.pop()  # the last object continues in the next block
        return b"".join([*lines, _take_rest(data[at:last])])


def _find_escaped(codes: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the positions of escaped bytes: each follows the first, third, fifth, ... of adjacent backslashes."""
    places = np.flatnonzero(codes == _BACKSLASH)
    runs = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    begins = np.repeat(places[runs], np.diff(runs, append=len(places)))
    return places[(places - begins) % 2 == 0] + 1


def _take_rest(data: bytes) -> bytes:
    """Return the elements between two objects, one per line, without brackets, commas and blanks."""
    elements = (match[0].strip(b" \t\r\n\f\v\xef\xbb\xbf") for match in _ELEMENT.finditer(data))  # no byte-order mark
    return b"".join(element.replace(b"\n", b"\r") + b"\n" for element in elements if element)
