"""Schemas of all tables: the contract between the stages. Missing is null, never 0.0 and never "".

`tables.toml` beside this file declares the columns, with their meanings.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opdkit.errors import OpdkitError

# The names of types in tables.toml, besides "list of ..." and the structs that it declares under [types].
_TYPES = {
    "bool": pa.bool_(), "text": pa.string(), "int8": pa.int8(), "int32": pa.int32(), "int64": pa.int64(),
    "float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(),
}  # fmt: skip
_DICTIONARY_BYTES = 64_000_000  # pyarrow's own limit, 1 MB, is less than the text of a part
EDIT = -1  # value of the column `written` for a reply as a person edited it
WRITTEN_BY = "written by the teacher", "edited by people"  # counters of written replies
_FACTS = ("version", "option")  # keys of a table in tables.toml that are not columns
_DECLARED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Table:
    """Table of a stage, with its version, its columns, and the option that makes the stage write it (None: always)."""

    stage: str
    name: str
    version: int
    schema: pa.Schema
    option: str | None = None


def _declare(columns: Mapping[str, Sequence[str]]) -> list[pa.Field]:
    """Return the columns of a table or a struct, from name -> (type, meaning)."""
    fields = []
    for name, (kind, meaning) in columns.items():
        type_ = _find_type(kind.removesuffix(" or null"))
        fields.append(pa.field(name, type_, nullable=kind.endswith(" or null"), metadata={"meaning": meaning}))
    return fields


def _find_type(kind: str) -> pa.DataType:
    if kind.startswith("list of "):
        return pa.list_(pa.field("item", _find_type(kind.removeprefix("list of ")), nullable=False))
    return _TYPES[kind] if kind in _TYPES else pa.struct(_declare(_DECLARED["types"][kind]))


def _read_tables(stage: str) -> list[Table]:
    """Return the tables of a stage, the primary one first."""
    return [
        Table(stage, name, t["version"], pa.schema(_declare({c: t[c] for c in t if c not in _FACTS})), t.get("option"))
        for name, t in _DECLARED[stage].items()
    ]


SESSIONS, TURNS, REJECTED = _read_tables("extract")
VERDICTS, ESCALATED, REVIEWS = _read_tables("judge")
TARGETS, HINT_CHECKS = _read_tables("teacher")
METRICS, VALIDATIONS = _read_tables("train")
REPLIES, SCORES = _read_tables("eval")

# Written by the stages, part by part.
TABLES = {t.name: t for t in (SESSIONS, TURNS, REJECTED, VERDICTS, ESCALATED, TARGETS, HINT_CHECKS, METRICS,
                              VALIDATIONS, REPLIES, SCORES)}  # fmt: skip
# Stage -> its primary table, whose files say which parts are done.
PRIMARY = {table.stage: table for table in reversed(TABLES.values())}
# Written by people at any time, one line per decision. They are in the folder of a stage, but it never removes them.
APPENDED = {t.name: t for t in (REVIEWS,)}

Row = dict[str, Any] | tuple[Any, ...]


def to_arrow(table: Table, rows: Sequence[Row]) -> pa.Table:
    """Return rows as Arrow under the table's schema. A list of lists may be given as a 2-D array.

    The rows are all dicts, or all tuples in the order of the columns, which take a fraction of the time.

    Raises OpdkitError for an unknown or missing column, for a null in a column that is not nullable, and for a value
    that does not fit its type. Without this check, pyarrow drops unknown columns and fills missing ones with nulls.
    """
    names = table.schema.names
    if any(isinstance(row, tuple) for row in rows):
        for row in rows:
            if not isinstance(row, tuple) or len(row) != len(names):
                raise OpdkitError(
                    f"table {table.name}: every row must be a tuple of its {len(names)} columns, not {row!r:.200}"
                )
        values = [list(column) for column in zip(*rows, strict=True)]
    else:
        expected = set(names)
        dicts: Sequence[Any] = rows
        for row in dicts:
            if row.keys() != expected:
                missing, unknown = sorted(expected - row.keys()), sorted(row.keys() - expected)
                raise OpdkitError(f"table {table.name}: missing columns {missing}, unknown columns {unknown}")
        values = [[row[name] for row in dicts] for name in names]
    try:
        columns = [_make_column(field.type, column) for field, column in zip(table.schema, values, strict=True)]
        arrow = pa.Table.from_arrays(columns, schema=table.schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OpdkitError(f"table {table.name}: {error}") from error
    for field, column in zip(table.schema, arrow.columns, strict=True):
        for chunk in column.chunks:
            _check_nulls(field, chunk, f"{table.name}.{field.name}")
    return arrow


def _make_column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if not (_is_nested(kind) and any(isinstance(value, np.ndarray) and value.ndim == 2 for value in values)):
        return pa.array(values, kind)
    # Convert the arrays directly: as lists, the supports of one part would be hundreds of millions of Python numbers.
    item = np.dtype(kind.value_type.value_type.to_pandas_dtype())
    blocks = [np.empty((0, 0), item) if value is None else np.asarray(value) for value in values]
    flat = np.concatenate([block.reshape(-1) for block in blocks])
    inner = pa.array(flat.astype(item, casting="same_kind", copy=False))
    widths = np.concatenate([np.full(len(block), block.shape[1]) for block in blocks])
    per_row = pa.ListArray.from_arrays(_sum_up(widths), inner, type=kind.value_type)
    missing = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(_sum_up([len(b) for b in blocks]), per_row, type=kind, mask=missing)


def _is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) and pa.types.is_list(kind.value_type)


def _sum_up(lengths: Any) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32))


def choose_parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of pyarrow's ParquetWriter for the file of a table: compression, checksums, encodings.

    Columns are dictionary-encoded, so that messages that several branches of a conversation share are stored once. A
    table with supports is not: with half a million token ids, dictionaries only add to the size. Instead, the bytes of
    the ids are split, so that zstd finds the high bytes side by side. That would make half-precision numbers smaller,
    too (33 bytes per token at K = 50), but DuckDB cannot read them split.
    """
    options: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
    nested = {f.name: f.type.value_type.value_type for f in schema if _is_nested(f.type)}
    split = [f"{name}.list.element.list.element" for name, kind in nested.items() if pa.types.is_integer(kind)]
    if nested:
        return options | {"use_dictionary": False, "column_encoding": dict.fromkeys(split, "BYTE_STREAM_SPLIT")}
    return options | {"dictionary_pagesize_limit": _DICTIONARY_BYTES}


def _check_nulls(field: pa.Field, array: pa.Array, path: str) -> None:
    """Raise OpdkitError for a null in a non-nullable column: pyarrow writes it, and readers disagree about it."""
    if array.null_count and not field.nullable:
        raise OpdkitError(f"table {path}: null in a column that has none")
    if pa.types.is_list(field.type):
        _check_nulls(field.type.value_field, array.flatten(), f"{path}[]")
    elif pa.types.is_struct(field.type):
        # The children of a null struct may be null.
        valid = array.drop_null() if array.null_count else array
        for i, child in enumerate(field.type):
            _check_nulls(child, valid.field(i), f"{path}.{child.name}")
