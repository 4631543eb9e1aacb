"""CSV files as spreadsheets save them: comma, semicolon or tab, with a byte-order mark or without."""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from opdkit.errors import ConfigError

_LONGEST_CELL = 1 << 20  # characters
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
_TIME = re.compile(r"[\d./ -]*:[\d:./ -]*")  # such as the turn 1:1:1


def read_utf8(path: Path) -> str:
    """Return the text of a file, without its byte-order mark. Raises ConfigError if it is missing or not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start:,}): save it as UTF-8 (CSV UTF-8)") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def read_csv_rows(path: Path, text: str, *, strict: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV `text`, the header first, as (line where the row begins, cells). Blank lines are skipped.

    The delimiter is the most frequent one in the header. With `strict`, a quotation mark inside a cell is an error.
    Raises ConfigError naming `path` and the line.
    """
    header = text.partition("\n")[0]
    limit = csv.field_size_limit(_LONGEST_CELL)  # a setting of the whole process
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=header.count), strict=strict)
    try:
        line = 1
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error}; is a quotation mark missing?") from error
    finally:
        csv.field_size_limit(limit)


def escape(text: str) -> str:
    """Return `text`, after a `'` if a spreadsheet may take it for a formula or a time; `unescape` reverses it."""
    is_formula = text.startswith(_FORMULA) and text not in ("-1", "+1")
    return f"'{text}" if is_formula or _TIME.fullmatch(text) else text


def unescape(text: str) -> str:
    """Return the text that `escape` was given."""
    return text[1:] if text.startswith("'") else text
