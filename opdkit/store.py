"""The run directory: a plan pinned in a manifest, parts committed by rename, resume, shards, counters in the footers.

    stage = Stage.open(config, "judge", [VERDICTS], parts=12, upstream=["extract"])
    for part in stage.todo():
        with stage.writing(part) as out:
            out.rows("verdicts", rows)
            out.counters.drop("no_quorum")
    return stage.summary()

A part that exists is complete: it was written beside its folder, fsynced and renamed into place. Its footer says which
plan wrote it and what was counted, so that a summary is a fold over footers and nothing is kept twice. Each page has a
CRC, which every reader here verifies, and opdkit/digests.py records what `opdkit check` compares the file with.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit import __version__, stopping
from opdkit.config import JSON, StageConfig, parse_shard, refuse_missing_folder
from opdkit.digests import file_digest, record, sync
from opdkit.disk import explained
from opdkit.errors import ConfigError, OpdkitError
from opdkit.running import claim_name, marked, read_claim
from opdkit.stages import home
from opdkit.tables import TABLES, Row, Table, encodings, to_arrow

# In the footer of every part. PART and FILES came later: a part without PART has no recorded digest.
VERSION_KEY, PLAN_KEY, COUNTERS_KEY = b"opdkit.schema_version", b"opdkit.plan", b"opdkit.counters"
PART_KEY, FILES_KEY = b"opdkit.part", b"opdkit.files"


@dataclass
class Counters:
    """What one part, or a whole stage, did. Mergeable."""

    rows_in: int = 0
    rows_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    extra: Counter[str] = field(default_factory=Counter)  # what a stage counts beside rows: tokens, sessions, votes

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] += count

    def merge(self, other: "Counters") -> None:
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.dropped.update(other.dropped)
        self.seconds += other.seconds
        self.extra.update(other.extra)

    def to_json(self) -> str:
        return json.dumps({
            "rows_in": self.rows_in, "rows_out": self.rows_out, "dropped": dict(sorted(self.dropped.items())),
            "seconds": round(self.seconds, 3), "extra": dict(sorted(self.extra.items())),
        })  # fmt: skip

    @classmethod
    def from_json(cls, text: bytes) -> "Counters":
        raw = json.loads(text)
        return cls(raw["rows_in"], raw["rows_out"], Counter(raw["dropped"]), raw["seconds"], Counter(raw["extra"]))


def mostly_dropped(stage: str, counters: Counters) -> list[str]:
    """In words, when a stage kept less than half of what it was given."""
    if 2 * sum(counters.dropped.values()) <= counters.rows_in:
        return []
    reason, count = counters.dropped.most_common(1)[0]
    remedy = "; --max-tokens and --too-long decide what fits" if reason == "too long" else ""
    return [f"{stage} dropped most of what it was given: {reason} {count:,} of {counters.rows_in:,}{remedy}"]


@dataclass
class Summary:
    """The closing line of a stage, and what tests and callers read from it."""

    stage: str
    counters: Counters
    parts_done: int
    parts: int
    where: Path

    def line(self) -> str:
        c = self.counters
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in c.dropped.most_common())
        text = f"{self.stage}: {c.rows_in:,} in, {c.rows_out:,} out, {sum(c.dropped.values()):,} dropped"
        text += f" ({reasons})" if reasons else ""
        if self.parts_done < self.parts:
            text += f", {self.parts_done} of {self.parts} parts"
        return f"{text}, {c.seconds:.1f} s, {self.where}"

    def details(self) -> str:
        """What the stage counted beside rows; "" where it counted nothing."""
        return ", ".join(f"{n:,} {name}" for name, n in sorted(self.counters.extra.items()))

    def text(self) -> str:
        """The closing line, with the details on a line before it."""
        details = self.details()
        return f"{self.stage}: {details}\n{self.line()}" if details else self.line()


class PartWriter:
    """Collects the rows of one part; `Stage.writing` commits them."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.counters = Counters()
        self._rows: dict[str, list[Row]] = {table.name: [] for table in tables}

    def rows(self, table: str, rows: Sequence[Row]) -> None:
        self._rows[table].extend(rows)

    def arrow(self, table: Table) -> pa.Table:
        return to_arrow(table, self._rows[table.name])


class Stage:
    """One stage of one run. `tables[0]` is the primary table: a part is done when its file there exists."""

    def __init__(self, config: StageConfig, name: str, tables: Sequence[Table], parts: int, plan: str) -> None:
        self.config, self.name, self.tables, self.parts, self.plan = config, name, list(tables), parts, plan
        self.home = home(config.run, name)
        self.shard, self.shards = parse_shard(config.shard)

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
    ) -> "Stage":
        """Pin the plan in the manifest, or check that the one there is the same.

        `command` is the one that writes the stage, where that is not the stage's own.

        Raises ConfigError when the stage was begun under another plan (unless `--overwrite`), naming what differs.
        """
        plan: JSON = {
            "stage": name,
            "opdkit": __version__,
            "schemas": {t.name: t.version for t in tables},
            "parts": parts,
            "config": config.plan(),
            "inputs": inputs or {},
            "upstream": {stage: manifest(config.run, stage)["fingerprint"] for stage in upstream},
        } | ({"command": command} if command else {})
        stage = cls(config, name, tables, parts, fingerprint(plan))
        _pin(stage, plan)
        stage._sweep_temporary_files()
        return stage

    # -- parts ------------------------------------------------------------------------------------------------------

    def path(self, table: str, part: int) -> Path:
        return part_path(self.config.run, table, part)

    def done(self, part: int) -> bool:
        return self.path(self.tables[0].name, part).exists()

    def todo(self) -> list[int]:
        """The parts of this shard that are not done yet."""
        return [k for k in range(self.parts) if k % self.shards == self.shard and not self.done(k)]

    @contextlib.contextmanager
    def writing(self, part: int) -> Iterator[PartWriter]:
        """Commit the part's tables when the block ends well; leave nothing behind when it does not.

        Where another process has committed the part in the meantime, its result stays. Raises stopping.Stopped when the
        process was asked to stop, since between two parts nothing is lost; OpdkitError, naming the path and what to do,
        when the disk is full or read-only, in the block or in the commit.
        """
        stopping.before_part()
        with explained(self.home), marked(self.home / ".tmp", self.tables[0].name, part):
            start = time.monotonic()
            writer = PartWriter(self.tables)
            yield writer
            if not self.done(part):
                self._commit_all(part, writer, start)
        stopping.after_part()

    def _commit_all(self, part: int, writer: PartWriter, start: float) -> None:
        arrows = {t.name: writer.arrow(t) for t in self.tables}
        writer.counters.rows_out = writer.counters.rows_out or arrows[self.tables[0].name].num_rows
        writer.counters.seconds = time.monotonic() - start
        for table in reversed(self.tables):  # the primary table last: its file says that the part is done
            counters = writer.counters if table is self.tables[0] else Counters(rows_out=arrows[table.name].num_rows)
            self._commit(table, part, arrows[table.name], counters)

    def _commit(self, table: Table, part: int, arrow: pa.Table, counters: Counters) -> None:
        primary = table is self.tables[0]
        arrow = arrow.replace_schema_metadata({
            VERSION_KEY: str(table.version), PLAN_KEY: self.plan, COUNTERS_KEY: counters.to_json(),
            PART_KEY: f"{table.name}/{part}", FILES_KEY: json.dumps(self._files_beside(table)),
        })  # fmt: skip
        final = self.path(table.name, part)
        temporary = self.home / ".tmp" / claim_name(table.name, part, ".parquet")
        marker = None
        try:
            with explained(final):
                final.parent.mkdir(parents=True, exist_ok=True)
                temporary.parent.mkdir(exist_ok=True)
                _write(temporary, arrow)
                marker = record(self.home, table.name, part, file_digest(temporary))
                if primary:
                    _move_first(temporary, final)
                else:  # what a killed process left without its primary table is replaced
                    temporary.replace(final)
                sync(final.parent)
        except BaseException:
            if marker is not None:
                marker.unlink(missing_ok=True)
            raise
        finally:
            temporary.unlink(missing_ok=True)

    def _files_beside(self, table: Table) -> JSON:
        """What pins the models that a stage of one part keeps beside its tables: folder -> file -> size and digest."""
        if self.parts > 1 or table is not self.tables[0]:
            return {}
        folders = (p for p in self.home.iterdir() if p.is_dir() and p.name not in TABLES and p.name[0] != ".")
        return {p.name: model_identity(str(p))["files"] for p in sorted(folders) if any(p.glob("*.safetensors"))}

    def _sweep_temporary_files(self) -> None:
        """Remove what killed processes of this host left half-written."""
        for path in (self.home / ".tmp").glob("*"):
            claim = read_claim(path)
            if claim is not None and claim.dead:
                with explained(path):
                    path.unlink(missing_ok=True)

    def summary(self) -> Summary:
        """A fold over the footers of all finished parts, whoever wrote them."""
        return summary_of(self.config.run, self.name, self.tables[0], self.parts)


def _write(path: Path, arrow: pa.Table) -> None:
    """One Parquet file, on the disk when this returns."""
    options = encodings(arrow.schema) | {"compression": "zstd", "write_page_checksum": True}
    with pq.ParquetWriter(path, arrow.schema, **options) as file:
        if arrow.num_rows:  # an empty row group is more than some readers can take
            file.write_table(arrow)
    sync(path)


def _move_first(temporary: Path, final: Path) -> bool:
    """Move a file into place unless one is there: of two processes that write it, the first one's stays."""
    try:
        os.link(temporary, final)  # fails where a rename would silently replace
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: the rename is whole too, but the last one wins
        temporary.replace(final)
    return True


# -- plans ----------------------------------------------------------------------------------------------------------


def fingerprint(plan: JSON) -> str:
    """A short digest of a plan's canonical JSON."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:16]


def manifest(run: Path, stage: str) -> JSON:
    """The manifest of a stage. Raises OpdkitError when the stage has not been started."""
    path = home(run, stage) / "manifest.json"
    try:
        found: JSON = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OpdkitError(f"{run} has no {stage} stage yet: run `opdkit {stage} {run} ...` first") from None
    except json.JSONDecodeError as error:
        raise OpdkitError(f"{path} is damaged ({error}); run `opdkit {stage}` again with --overwrite") from error
    return found


def command_of(run: Path, stage: str) -> str:
    """The command that writes a stage of a run: its own, unless the manifest names another."""
    path = home(run, stage) / "manifest.json"
    return str(manifest(run, stage)["plan"].get("command", stage)) if path.exists() else stage


def _pin(stage: Stage, plan: JSON) -> None:
    path = stage.home / "manifest.json"
    if stage.config.overwrite and stage.shards == 1 and stage.home.exists():
        with explained(stage.home):
            _discard(stage.home)
    # Whoever writes a part has written the manifest before: so look for parts first.
    if any(stage.home.glob("*/part-*.parquet")) and not path.exists():
        raise ConfigError(f"{stage.home} holds parts but no manifest, so nobody knows their plan; pass --overwrite")
    with explained(stage.home):
        stage.home.mkdir(parents=True, exist_ok=True)
    document = {"fingerprint": stage.plan, "plan": plan, "configuration": stage.config.effective()}
    if not path.exists() and _write_first(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n"):
        return
    old = manifest(stage.config.run, stage.name)
    if old["fingerprint"] == stage.plan:
        return
    changes = "\n".join(f"  {line}" for line in differences(old["plan"], plan))
    written = len(list(stage.home.glob("*/part-*.parquet")))
    raise ConfigError(
        f"{stage.home} was begun under another plan:\n{changes}\n"
        f"Choose another run directory, or pass --overwrite to throw away what {stage.name} has written "
        f"({written:,} files)."
        + (" (Not together with --shard: overwrite once, then start the shards.)" if stage.shards > 1 else "")
    )


def _discard(folder: Path) -> None:
    """Remove a stage at one blow: killed half-way, no part may outlive the manifest that says what it is."""
    trash = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    folder.replace(trash)
    shutil.rmtree(trash)


def _write_first(path: Path, text: str) -> bool:
    """Write a text file that is not there yet, whole; False when another process was faster."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with explained(path):
            temporary.write_text(text, encoding="utf-8")
            sync(temporary)
            return _move_first(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What differs between two plans, one line a field: "config.votes: 5 -> 7"."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for k in keys for d in differences(old.get(k), new.get(k), f"{where}.{k}" if where else k)]
    return [] if old == new else [f"{where}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def model_identity(name: str) -> JSON:
    """What pins a model in a plan: its name and, for a folder, sizes and digests of what decides its outputs.

    Weights are sampled (head and 64 blocks of 64 KiB a file), so that pinning a 100 GB model takes a moment; a
    training run changes every block. Raises OpdkitError for a path where no folder is.
    """
    refuse_missing_folder(name)
    folder = Path(name)
    if not folder.is_dir():
        return {"name": name}
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".json", ".jinja", ".model", ".txt"))
    return {"name": name, "files": {p.name: f"{p.stat().st_size}:{_sampled_digest(p)}" for p in files}}


def _sampled_digest(path: Path, blocks: int = 64, block: int = 1 << 16) -> str:
    size = path.stat().st_size
    if size <= blocks * block:
        return file_digest(path)[:16]
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        for i in range(blocks):
            handle.seek(i * (size - block) // (blocks - 1))
            digest.update(handle.read(block))
    return digest.hexdigest()[:16]


# -- reading --------------------------------------------------------------------------------------------------------


def part_count(run: Path, stage: str) -> int:
    """Number of parts that a stage has, done or not."""
    return int(manifest(run, stage)["plan"]["parts"])


def part_path(run: Path, table: str, part: int) -> Path:
    return home(run, TABLES[table].stage) / table / f"part-{part:05d}.parquet"


def read_part(run: Path, table: str, part: int) -> list[JSON]:
    """The rows of one part. Raises what `read_arrow` raises."""
    rows: list[JSON] = read_arrow(run, table, part).to_pylist()
    return rows


def read_arrow(run: Path, table: str, part: int, columns: Sequence[str] | None = None) -> pa.Table:
    """One part as Arrow, or some columns of it: a list of ten million numbers is no list of Python objects.

    Raises OpdkitError when it is missing, damaged, or of another schema version or plan.
    """
    spec, path = TABLES[table], part_path(run, table, part)
    again = f"run `opdkit {command_of(run, spec.stage)} {run} ...` again"
    try:
        arrow = pq.read_table(path, partitioning=None, columns=columns, page_checksum_verification=True)
    except FileNotFoundError:
        raise OpdkitError(f"{path} is not there: the {spec.stage} stage has not finished; {again}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise OpdkitError(
            f"{path} cannot be read ({error}): `opdkit check {run} --recompute` removes what is damaged; then {again}"
        ) from error
    metadata = arrow.schema.metadata or {}
    if metadata.get(VERSION_KEY) != str(spec.version).encode():
        raise OpdkitError(f"{path} was written by another version of opdkit; {again} with --overwrite")
    if metadata.get(PLAN_KEY, b"").decode() != manifest(run, spec.stage)["fingerprint"]:
        raise OpdkitError(f"{path} belongs to another plan than its manifest; {again} with --overwrite")
    return arrow


def read_all(run: Path, table: str) -> Iterator[JSON]:
    """The rows of all parts, in order."""
    for part in range(part_count(run, TABLES[table].stage)):
        yield from read_part(run, table, part)


def summary_of(run: Path, stage: str, primary: Table, parts: int) -> Summary:
    """A fold over the footers of a stage's finished parts."""
    total, done = Counters(), 0
    for path in (part_path(run, primary.name, k) for k in range(parts)):
        if path.exists():
            total.merge(read_counters(path))
            done += 1
    return Summary(stage, total, done, parts, home(run, stage) / primary.name)


def read_counters(path: Path) -> Counters:
    """The counters in a part's footer."""
    return Counters.from_json(pq.read_schema(path).metadata[COUNTERS_KEY])


def limited(run: Path, part: int, limit: int | None) -> int | None:
    """How many of the sessions of this part are within the first `limit` of the run; None is all of them."""
    if limit is None:
        return None
    before = sum(pq.read_metadata(part_path(run, "sessions", k)).num_rows for k in range(part))
    return max(0, limit - before)
