"""Writing the tables of a stage, part by part."""

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.config.fields import JSON, StageConfig
from opdkit.config.shard import parse_shard
from opdkit.store import stopping
from opdkit.store.atomic import find_left_overs, make_owned_name, move_into_place, remove_entries, temporary_file
from opdkit.store.counters import (
    COUNTERS_KEY,
    FILES_KEY,
    INPUTS_KEY,
    PART_KEY,
    PLAN_KEY,
    VERSION_KEY,
    Counters,
    Summary,
    read_inputs,
)
from opdkit.store.digests import digest_file, forget_digest, record_digest
from opdkit.store.disk import disk_errors_explained
from opdkit.store.plans import DRAW, check_upstream, identify_model, manifest, stage_dir, write_or_check_manifest
from opdkit.store.progress_marks import mark_part
from opdkit.store.reading import check_parts_exist, part_path, summary_of
from opdkit.store.tables import TABLES, Row, Table, choose_parquet_options, to_arrow
from opdkit.version import __version__


class PartWriter:
    """Collector of the rows of one part, which `Stage.writing` commits."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.counters = Counters()
        self._rows: dict[str, list[Row]] = {table.name: [] for table in tables}
        self._arrow: dict[str, pa.Table] = {}

    def add_rows(self, table: str, rows: Sequence[Row]) -> None:
        self._rows[table].extend(rows)

    def set_table(self, table: str, arrow: pa.Table) -> None:
        """Set all rows of a table, given as Arrow."""
        self._arrow[table] = arrow

    def to_arrow(self, table: Table) -> pa.Table:
        return self._arrow[table.name] if table.name in self._arrow else to_arrow(table, self._rows[table.name])


@dataclass
class Stage:
    """Stage of a run. A part is done if its file of `tables[0]`, the primary table, exists and has current inputs."""

    config: StageConfig
    name: str
    tables: Sequence[Table]
    parts: int
    fingerprint: str  # of the plan
    part_inputs: Callable[[int], JSON] | None = None

    @property
    def folder(self) -> Path:
        return stage_dir(self.config.run, self.name)

    @classmethod
    def open(
        cls,
        config: StageConfig,
        name: str,
        tables: Sequence[Table],
        *,
        parts: int,
        inputs: JSON | None = None,
        upstream: Sequence[str] = (),
        command: str | None = None,
        part_inputs: Callable[[int], JSON] | None = None,
        may_change: bool = False,
    ) -> "Stage":
        """Write the plan into the manifest, or check that the existing manifest pins the same plan.

        `upstream` are the stages that this stage reads. `command` is the command that writes the stage, if it is not
        the stage's own. `part_inputs(k)` are inputs of part k that may change under the same plan (review decisions);
        they are stored in the footer, and a part whose stored inputs differ is computed again. With `may_change`, the
        same plan may give other rows the next time (replies of a server): every new manifest has another fingerprint.

        Raises ConfigError if the stage was begun under another plan (unless `--overwrite`), with the differences.
        Raises OpdkitError if an `upstream` stage is outdated or, with `--overwrite`, lacks a part: nothing is removed.
        """
        plan: JSON = {
            "stage": name, "opdkit": __version__, "schemas": {t.name: t.version for t in tables}, "parts": parts,
            "config": config.plan(), "inputs": inputs or {},
            "upstream": {stage: manifest(config.run, stage)["fingerprint"] for stage in upstream},
        }  # fmt: skip
        plan |= ({"command": command} if command else {}) | ({DRAW: uuid.uuid4().hex[:16]} if may_change else {})
        check_upstream(config.run, upstream)
        if config.overwrite and command is None:  # rollout begins two stages at once: the first is not done
            check_parts_exist(config.run, upstream)
        digest = write_or_check_manifest(config, plan)
        stage = cls(config, name, tables, parts, digest, part_inputs)
        if not config.is_dry_run:
            with disk_errors_explained(stage.folder):
                for folder in (config.run, config.run / ".failed", stage.folder, stage.folder / ".tmp"):
                    remove_entries(find_left_overs(folder))
        return stage

    def is_done(self, part: int) -> bool:
        path = part_path(self.config.run, self.tables[0].name, part)
        return path.exists() and (self.part_inputs is None or read_inputs(path) == self.part_inputs(part))

    def todo(self) -> list[int]:
        """Return the parts of this shard that are not done yet; with `--dry-run --overwrite` all of them."""
        shard, shards = parse_shard(self.config.shard)
        replaces = self.config.is_dry_run and self.config.overwrite
        return [k for k in range(shard, self.parts, shards) if replaces or not self.is_done(k)]

    @contextlib.contextmanager
    def writing(self, part: int, *, may_stop: bool = True) -> Iterator[PartWriter]:
        """Commit the part's tables if the block succeeds; leave nothing behind if it fails.

        If another process has committed the part in the meantime, its result stays. With `may_stop`, raises Stopped
        before the block if the process was asked to stop. Raises OpdkitError, naming the path and the remedy, if the
        disk is full or read-only, in the block or in the commit.
        """
        if may_stop:
            stopping.raise_if_requested()
        with disk_errors_explained(self.folder), mark_part(self.folder / ".tmp", self.tables[0].name, part):
            start = time.monotonic()
            writer = PartWriter(self.tables)
            yield writer
            if not self.is_done(part):
                arrows = {table.name: writer.to_arrow(table) for table in self.tables}
                writer.counters.rows_out = writer.counters.rows_out or arrows[self.tables[0].name].num_rows
                writer.counters.seconds = time.monotonic() - start
                for table in reversed(self.tables):  # the primary table last: its file says that the part is done
                    arrow = arrows[table.name]
                    counters = Counters(rows_out=arrow.num_rows) if table is not self.tables[0] else writer.counters
                    self._commit(table, part, arrow, counters)
        stopping.count_finished()

    def _commit(self, table: Table, part: int, arrow: pa.Table, counters: Counters) -> None:
        """Write one file, record its digest, and move it into place once both are on the disk."""
        primary = table is self.tables[0]
        beside = self.folder.iterdir() if primary and self.parts == 1 else ()  # train writes its models there
        models = sorted(p for p in beside if p.is_dir() and p.name not in TABLES and p.name[0] != ".")
        files = {p.name: identify_model(str(p))["files"] for p in models if any(p.glob("*.safetensors"))}
        arrow = arrow.replace_schema_metadata({
            VERSION_KEY: str(table.version), PLAN_KEY: self.fingerprint,
            COUNTERS_KEY: counters.to_json(), PART_KEY: f"{table.name}/{part}",
            FILES_KEY: json.dumps(files),
            **({INPUTS_KEY: json.dumps(self.part_inputs(part))} if self.part_inputs and primary else {}),
        })  # fmt: skip
        final = part_path(self.config.run, table.name, part)
        record = None
        name = make_owned_name(f"{table.name}-{part:05d}", ".parquet")
        with disk_errors_explained(final), temporary_file(final, self.folder / ".tmp" / name) as temporary:
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary.parent.mkdir(exist_ok=True)
            with pq.ParquetWriter(temporary, arrow.schema, **choose_parquet_options(arrow.schema)) as file:
                if arrow.num_rows:  # some readers cannot take an empty row group
                    file.write_table(arrow)
            try:
                record = record_digest(self.folder, table.name, part, digest := digest_file(temporary))
                # If a primary file exists but the part is not done, it was computed from other part inputs.
                replaced = digest_file(final) if primary and final.exists() and not self.is_done(part) else None
                # Files of other tables are replaced: a killed process left them, without its primary table.
                move_into_place(temporary, final, replace=not primary or replaced is not None)
            except BaseException:
                if record is not None and not (final.exists() and digest_file(final) == digest):  # it is not there
                    record.unlink(missing_ok=True)
                raise
            if replaced is not None:
                forget_digest(self.folder, table.name, part, replaced)

    def summary(self) -> Summary:
        """Sum the counters of all finished parts, whichever process wrote them."""
        return summary_of(self.config.run, self.name, self.tables[0])
