"""Reading parts that stages have written."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store.counters import PLAN_KEY, VERSION_KEY, Counters, Summary, read_counters
from opdkit.store.plans import find_command, has_stage, manifest, stage_dir
from opdkit.store.tables import PRIMARY, TABLES, Table


def count_parts(run: Path, stage: str) -> int:
    """Return the number of parts of a stage, done or not."""
    return int(manifest(run, stage)["plan"]["parts"])


def part_path(run: Path, table: str, part: int) -> Path:
    return stage_dir(run, TABLES[table].stage) / table / f"part-{part:05d}.parquet"


def is_written(run: Path, table: str, part: int) -> bool:
    """Return True if a stage that has been started has written this part."""
    return has_stage(run, TABLES[table].stage) and part_path(run, table, part).exists()


def read_part(run: Path, table: str, part: int) -> list[JSON]:
    """Read the rows of one part. Raises what `read_arrow` raises."""
    rows: list[JSON] = read_arrow(run, table, part).to_pylist()
    return rows


def read_arrow(run: Path, table: str, part: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one part as Arrow, or some columns of it. "reward_votes.score" is a field of a list of structs.

    Raises OpdkitError if the part is missing, damaged, or of another schema version or plan.
    """
    spec, path = TABLES[table], part_path(run, table, part)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=True) as file:
            paths = None if columns is None else [column.replace(".", ".list.element.") for column in columns]
            arrow = file.read(paths)
        if columns is not None:  # they were read in the order of the file
            arrow = arrow.select(list(dict.fromkeys(column.partition(".")[0] for column in columns)))
    except FileNotFoundError:
        if has_stage(run, spec.stage) and table not in manifest(run, spec.stage)["plan"]["schemas"]:
            raise OpdkitError(f"{run} has no table {table}: {spec.option or 'a later opdkit'} writes it") from None
        raise _explain_missing(run, spec.stage, path) from None
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _explain_unreadable(run, spec.stage, path, error) from error
    metadata = arrow.schema.metadata or {}
    if metadata.get(VERSION_KEY) != str(spec.version).encode():
        problem = "was written by another version of opdkit"
    elif metadata.get(PLAN_KEY, b"").decode() != manifest(run, spec.stage)["fingerprint"]:
        problem = "belongs to another plan than its manifest"
    else:
        return arrow
    raise OpdkitError(f"{path} {problem}; {_again(run, spec.stage, path)} with --overwrite")


def count_rows(run: Path, table: str, part: int) -> int:
    """Return the number of rows of a part, from its footer. Raises OpdkitError if the part is missing or damaged."""
    return int(_read_footer(run, table, part).num_rows)


def _read_footer(run: Path, table: str, part: int) -> pq.FileMetaData:
    path, stage = part_path(run, table, part), TABLES[table].stage
    try:
        return pq.read_metadata(path)
    except FileNotFoundError:
        raise _explain_missing(run, stage, path) from None
    except (pa.ArrowException, OSError) as error:
        raise _explain_unreadable(run, stage, path, error) from error


def _again(run: Path, stage: str, path: Path) -> str:
    return f"run `opdkit {find_command(run, stage)} {quote(path.parents[2])} ...` again"


def _explain_unreadable(run: Path, stage: str, path: Path, error: Exception) -> OpdkitError:
    """Return the error for a part that is damaged."""
    return OpdkitError(
        f"{path} cannot be read ({error}): `opdkit check {quote(run)} --recompute` removes what is damaged; then "
        + _again(run, stage, path)
    )


def check_parts_exist(run: Path, stages: Sequence[str]) -> None:
    """Raise OpdkitError if a part of one of these stages is not done yet, or is gone."""
    for table in TABLES.values():
        known = table.stage in stages and table.name in manifest(run, table.stage)["plan"]["schemas"]
        for part in range(count_parts(run, table.stage) if known else 0):
            if not (path := part_path(run, table.name, part)).exists():
                raise _explain_missing(run, table.stage, path)


def _explain_missing(run: Path, stage: str, path: Path) -> OpdkitError:
    return OpdkitError(
        f"{path} does not exist: the {stage} stage has not finished: {_again(run, stage, path)}; if it had, `opdkit "
        f"check {quote(run)} --recompute` removes what was computed from it, and says what to run"
    )


def read_all(run: Path, table: str, columns: Sequence[str] | None = None) -> Iterator[JSON]:
    """Yield the rows of all parts, in order, with all columns or only `columns`."""
    for part in range(count_parts(run, TABLES[table].stage)):
        yield from read_arrow(run, table, part, columns).to_pylist()


def find_parts(run: Path, turn_ids: Collection[str]) -> dict[str, int]:
    """Return turn_id -> the part that holds the turn, for those of `turn_ids` that the run has.

    Reads only one column, and only of parts that may hold one of the turns, according to their statistics.
    """
    part_of: dict[str, int] = {}
    missing = set(turn_ids)
    for part in range(count_parts(run, "extract")) if missing else ():
        if not part_path(run, "turns", part).exists():
            continue
        ranges, footer = [], _read_footer(run, "turns", part)
        for group in (footer.row_group(n) for n in range(footer.num_row_groups)):
            (column,) = [n for n in range(group.num_columns) if group.column(n).path_in_schema == "turn_id"]
            statistics = group.column(column).statistics
            known = statistics is not None and statistics.has_min_max
            ranges.append((statistics.min, statistics.max) if known else ("", "\U0010ffff"))
        # Statistics compare UTF-8 byte by byte, which is the order of Python's strings.
        possible = sorted(name for name in missing if any(low <= name <= high for low, high in ranges))
        if possible:
            ids = read_arrow(run, "turns", part, ["turn_id"])["turn_id"]
            names = ids.filter(pc.is_in(ids, pa.array(possible, pa.string()))).to_pylist()
            part_of |= dict.fromkeys(names, part)
            missing.difference_update(names)
    return part_of


def summary_of(run: Path, stage: str, primary: Table | None = None) -> Summary:
    """Sum the counters of a stage's finished parts, from the footers of its primary table."""
    total, parts, table = Counters(), count_parts(run, stage), (primary or PRIMARY[stage]).name
    paths = [path for k in range(parts) if (path := part_path(run, table, k)).exists()]
    for path in paths:
        total.merge(read_counters(path))
    return Summary(stage, total, len(paths), parts, stage_dir(run, stage) / table)


def count_sessions_within(run: Path, part: int, limit: int | None) -> int | None:
    """Return how many sessions of this part are among the first `limit` of the run. None means all of them."""
    if limit is None:
        return None
    before = sum(count_rows(run, "sessions", k) for k in range(part))
    return max(0, limit - before)


def is_complete(run: Path, stage: str) -> bool:
    """Return True if all parts of a stage are done."""
    return has_stage(run, stage) and (summary := summary_of(run, stage)).parts_done == summary.parts
