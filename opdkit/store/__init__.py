"""Run directories: plans pinned in manifests, parts committed by rename, resume, shards, counters in the footers.

    stage = Stage.open(config, "judge", [VERDICTS], parts=12, upstream=["extract"])
    for part in stage.todo():
        with stage.writing(part) as out:
            out.rows("verdicts", rows)
            out.counters.drop("no_quorum")
    return stage.summary()

A part that exists is complete: it was written beside its folder, synced and renamed into place. Its footer holds the
plan that it belongs to and its counters; the summary of a stage is the sum over its footers. Each page has a CRC, which
every reader here verifies, and digests.py records what `opdkit check` compares the file with.

tables.py     the columns of every table
plans.py      manifests
stage.py      writing parts
reading.py    reading parts
joined.py     turns with their sessions, verdicts, decisions and targets
footers.py    counters and closing lines
reviews.py    decisions of people
running.py    one stage from its options to its end: stopping.py, failures.py
atomic.py     files that are complete or absent
digests.py    digests of parts
marks.py      parts under way
"""

from opdkit.store.footers import Counters, Summary, check_rows_left, mostly_dropped, read_counters
from opdkit.store.plans import (
    check_upstream,
    command_of,
    differences,
    file_identity,
    find_outdated_upstream,
    fingerprint,
    manifest,
    model_identity,
)
from opdkit.store.reading import (
    part_count,
    part_path,
    parts_of_turns,
    read_all,
    read_arrow,
    read_part,
    sessions_within,
    summary_of,
)
from opdkit.store.stage import PartWriter, Stage

__all__ = [
    "Counters",
    "PartWriter",
    "Stage",
    "Summary",
    "check_rows_left",
    "check_upstream",
    "command_of",
    "differences",
    "file_identity",
    "find_outdated_upstream",
    "fingerprint",
    "manifest",
    "model_identity",
    "mostly_dropped",
    "part_count",
    "part_path",
    "parts_of_turns",
    "read_all",
    "read_arrow",
    "read_counters",
    "read_part",
    "sessions_within",
    "summary_of",
]
