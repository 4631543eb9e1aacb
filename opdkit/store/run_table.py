"""Table of a run as Arrow, pandas, `datasets` or dicts."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from opdkit.config.fields import JSON, did_you_mean
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.plans import has_stage
from opdkit.store.reading import count_parts, count_rows, part_path, read_all, read_arrow
from opdkit.store.tables import TABLES

if TYPE_CHECKING:
    import datasets
    import pandas as pd


class RunTable:
    """Table of a run, as it is on disk: every call reads it again."""

    def __init__(self, run: Path, name: str) -> None:
        if name not in TABLES:
            raise ConfigError(f"there is no table {name!r}; {did_you_mean(name, list(TABLES))}")
        self.run, self.name, self.schema = run, name, TABLES[name].schema

    def arrow(self, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return the table, or some columns of it, as Arrow. Raises OpdkitError if parts are missing or damaged."""
        for column in columns or ():
            if column not in self.schema.names:
                raise ConfigError(f"{self.name} has no column {column!r}; {did_you_mean(column, self.schema.names)}")
        parts = [read_arrow(self.run, self.name, k, columns) for k in range(len(self._list_paths()))]
        return pa.concat_tables([part.replace_schema_metadata(None) for part in parts])

    def pandas(self, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return the table as a pandas data frame. Integers are nullable (`Int64`, ...), never rounded to floats."""
        import pandas as pd

        nullable = {pa.int8(): pd.Int8Dtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
        return self.arrow(columns).to_pandas(types_mapper=nullable.get)

    def dataset(self) -> "datasets.Dataset":
        """Return the table as a `datasets.Dataset` in memory-mapped files, for tables that do not fit in memory."""
        import datasets

        paths = self._list_paths()
        if missing := [path for path in paths if not path.exists()]:
            raise OpdkitError(f"{missing[0]} does not exist: the stage has not finished; call its method again")
        return cast("datasets.Dataset", datasets.Dataset.from_parquet([glob.escape(str(path)) for path in paths]))

    def rows(self) -> Iterator[JSON]:
        """Yield the rows as dicts, with one part in memory at a time."""
        return read_all(self.run, self.name)

    __iter__ = rows

    def __len__(self) -> int:
        return sum(count_rows(self.run, self.name, k) for k, path in enumerate(self._list_paths()) if path.exists())

    def _list_paths(self) -> list[Path]:
        return [part_path(self.run, self.name, k) for k in range(count_parts(self.run, TABLES[self.name].stage))]

    def __repr__(self) -> str:
        """Return the number of rows, and every column with its type and meaning."""
        count = f"{len(self):,} rows" if has_stage(self.run, TABLES[self.name].stage) else "not there yet"
        columns = [f"  {f.name}: {f.type} - {f.metadata[b'meaning'].decode()}" for f in self.schema]
        return "\n".join([f"{self.name} of {self.run}: {count}", *columns])
