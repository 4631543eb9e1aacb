"""Benchmark of extract, on a log of a few hundred kilobytes."""

import json
from pathlib import Path
from subprocess import CalledProcessError

import pyarrow.parquet as pq
import pytest
from benchmarks import extract as benchmark

from opdkit.store.reading import read_all


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return benchmark.build(tmp_path / "log.jsonl", 0.3)


def test_the_log_is_as_large_as_asked_and_repeats_no_session(log: Path) -> None:
    ids = [json.loads(line)["task_id"] for line in log.open(encoding="utf-8")]
    assert log.stat().st_size >= 300_000
    assert len(set(ids)) == len(ids) > 1


def test_both_ways_write_the_same_sessions_and_replies(log: Path, tmp_path: Path) -> None:
    benchmark.with_datasets(log, tmp_path / "datasets")
    benchmark.ours(log, tmp_path / "run")
    theirs, ours = pq.read_table(tmp_path / "datasets" / "sessions.parquet").to_pylist(), [
        *read_all(tmp_path / "run", "sessions")]  # fmt: skip
    for session, row in zip(ours, theirs, strict=True):
        # Newer versions of datasets store objects of mixed types as JSON.
        row["messages"] = [json.loads(m) if isinstance(m, str) else m for m in row["messages"]]
        assert [{k: m[k] for k in ("role", "content", "name")} for m in session["messages"]] == [
            {k: m[k] for k in ("role", "content", "name")} for m in row["messages"]
        ]
        assert [len(m["tool_calls"]) for m in session["messages"]] == [len(m["tool_calls"]) for m in row["messages"]]
    replies = pq.read_table(tmp_path / "datasets" / "turns.parquet").to_pylist()
    assert [(r["message_index"], len(r["prompt"]), len(r["next_state"])) for r in replies] == [
        (t["message_index"], t["message_index"], t["next_count"]) for t in read_all(tmp_path / "run", "turns")
    ]


def test_two_workers_and_their_memory(log: Path, tmp_path: Path) -> None:
    """The command gets the number of workers: it refuses 0 of them."""
    peak = benchmark.peak_memory(log, tmp_path / "run", 2)
    assert 30_000_000 < peak < 2_000_000_000
    assert list(read_all(tmp_path / "run", "sessions"))
    with pytest.raises(CalledProcessError):
        benchmark.peak_memory(log, tmp_path / "none", 0)
