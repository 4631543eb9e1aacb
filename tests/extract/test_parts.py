"""Tests that one plan gives the same rows in any number of parts, shards and processes, also after a kill."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash
from small_logs import chat, jsonl, lines_mb, run, tables

from opdkit.config.extract import ExtractConfig
from opdkit.errors import ConfigError
from opdkit.extract import stage as extract
from opdkit.extract.inputs import second_pass
from opdkit.extract.inputs.files import expand
from opdkit.store import stopping
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all, read_part

ROOT = Path(__file__).parents[2]


def test_parts_that_are_done_are_skipped(tmp_path, log, monkeypatch):
    first = run(tmp_path / "run", log, part_mb=lines_mb(log, 6))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*.parquet")}
    (tmp_path / "run" / "extract" / "sessions" / "part-00002.parquet").unlink()
    read = []
    monkeypatch.setattr(second_pass.Units, "read", _recording(second_pass.Units.read, read))
    again = run(tmp_path / "run", log, part_mb=lines_mb(log, 6))
    assert read == [2]
    assert again.counters.rows_in == first.counters.rows_in == 20
    assert again.counters.counts == first.counters.counts
    untouched = [p for p, mtime in before.items() if p.stat().st_mtime_ns == mtime]
    assert len(untouched) == len(before) - 3


def _recording(method, calls):
    def wrapped(self, part):
        calls.append(part)
        return method(self, part)

    return wrapped


HELD_AT = """
import itertools, sys, time
from pathlib import Path
from opdkit.extract import stage as extract
from opdkit.config.extract import ExtractConfig
write, number = extract.write_unit, itertools.count()
def held(*arguments):
    if next(number) == int(sys.argv[4]):
        time.sleep(3600)  # until it is killed
    write(*arguments)
extract.write_unit = held
extract.run(ExtractConfig(run=Path(sys.argv[1]), logs=(sys.argv[2],), part_mb=float(sys.argv[3])))
"""


def test_killed_and_resumed_gives_the_same(tmp_path, log):
    """No part is half-written after a kill, and the tables and the summary of the resumed run are complete."""
    killed, whole, part_mb = tmp_path / "killed", tmp_path / "whole", lines_mb(log, 2)
    process = subprocess.Popen([sys.executable, "-c", HELD_AT, str(killed), str(log), str(part_mb), "7"], cwd=ROOT)
    while process.poll() is None and len(list(killed.rglob("sessions/part-*.parquet"))) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(list(killed.rglob("sessions/part-*.parquet"))) == 3
    resumed, once = run(killed, log, part_mb=part_mb), run(whole, log, part_mb=part_mb)
    assert tables(killed) == tables(whole)
    assert (resumed.counters.rows_in, resumed.counters.counts) == (once.counters.rows_in, once.counters.counts)


@pytest.mark.slow
def test_workers_shards_and_a_resume_give_the_rows_of_one_process(tmp_path, log):
    """Two processes of one shard and three of the other finish what one process began, with the same rows."""
    part_mb = lines_mb(log, 2)
    run(tmp_path / "one", log, part_mb=part_mb)
    run(tmp_path / "two", log, part_mb=part_mb)
    for name in ("part-00000.parquet", "part-00003.parquet", "part-00006.parquet", "part-00009.parquet"):
        (tmp_path / "two" / "extract" / "sessions" / name).unlink()
    first = run(tmp_path / "two", log, part_mb=part_mb, shard="0/2", workers=2)
    assert (first.parts_done, first.parts) == (8, 10)
    second = run(tmp_path / "two", log, part_mb=part_mb, shard="1/2", workers=3)
    assert (second.parts_done, second.counters.rows_in) == (10, 20)
    assert tables(tmp_path / "two") == tables(tmp_path / "one")


@pytest.mark.slow
def test_what_goes_wrong_in_a_worker_is_the_command_s_error(tmp_path, log):
    """The command fails and leaves no temporary files, and it works once the cause of the error is gone."""
    part_mb, run_dir = lines_mb(log, 2), tmp_path / "run"
    (run_dir / "extract").mkdir(parents=True)
    (run_dir / "extract" / "turns").touch()  # where the folder of a table should be
    command = [sys.executable, "-m", "opdkit", "extract", str(run_dir), str(log), "--part-mb", str(part_mb)]
    failed = subprocess.run([*command, "--workers", "2"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "File exists" in failed.stderr
    (run_dir / "extract" / "turns").unlink()
    assert not list(run_dir.rglob(".tmp/*"))
    assert run(run_dir, log, part_mb=part_mb, workers=2).counters.rows_in == 20


@pytest.mark.slow
def test_workers_that_are_asked_to_stop_finish_their_parts(tmp_path):
    log = jsonl(tmp_path / "log.jsonl", *(chat("u", f"answer {k}", "v") for k in range(120)))
    part_mb, stopped = lines_mb(log, 1), tmp_path / "stopped"
    command = [sys.executable, "-m", "opdkit", "extract", str(stopped), str(log), "--part-mb", str(part_mb)]
    process = subprocess.Popen([*command, "--workers", "2"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(stopped.rglob("sessions/part-*.parquet")):
        time.sleep(0.005)
    process.send_signal(signal.SIGUSR1)
    assert "stopped as asked" in process.communicate(timeout=600)[1]
    assert process.returncode == stopping.TRY_AGAIN
    assert 0 < len(list(stopped.rglob("rejected/part-*.parquet"))) < 120  # the table of a part that is written last
    assert not list(stopped.rglob(".tmp/*"))
    run(stopped, log, part_mb=part_mb)
    run(tmp_path / "whole", log, part_mb=part_mb)
    assert tables(stopped) == tables(tmp_path / "whole")


def test_another_plan_is_refused_by_name(tmp_path, log):
    run(tmp_path / "run", log)
    with pytest.raises(ConfigError, match=r"config\.part_mb: null -> 3\.0"):
        run(tmp_path / "run", log, part_mb=3.0)
    with log.open("a") as handle:
        handle.write(json.dumps(chat("u", "a", "v")) + "\n")
    with pytest.raises(ConfigError, match=r"inputs\.log\.bytes(.|\n)*inputs\.log\.xxh3_128"):
        run(tmp_path / "run", log)
    assert run(tmp_path / "run", log, overwrite=True).counters.rows_in == 21


def test_the_manifest_pins_what_was_read(tmp_path, log):
    other = jsonl(tmp_path / "more" / "log.jsonl", {"conversations": [{"from": "human", "value": "x"}]})
    run(tmp_path / "run", log, other)
    pinned = manifest(tmp_path / "run", "extract")["plan"]["inputs"]
    assert pinned["log"]["bytes"] == log.stat().st_size
    assert pinned["log"]["xxh3_128"] == xxhash.xxh3_128(log.read_bytes()).hexdigest()
    assert (pinned["log"]["format"], pinned["log-2"]["format"]) == ("openai", "sharegpt")


def test_rows_keep_the_order_of_the_inputs(tmp_path, log):
    other = jsonl(tmp_path / "a.jsonl", *(chat("u", "a", "v") for _ in range(3)))
    run(tmp_path / "run", log, other, part_mb=lines_mb(log, 7))
    ids = [s["session_id"] for s in read_all(tmp_path / "run", "sessions")]
    assert ids == [f"log:{i}" for i in range(1, 21)] + ["a:1", "a:2", "a:3"]
    assert [t["turn_id"] for t in read_all(tmp_path / "run", "turns")] == [f"{i}:1" for i in ids]
    assert [len(read_part(tmp_path / "run", "sessions", k)) for k in range(4)] == [7, 7, 6, 3]


def test_limit_is_the_first_sessions_and_nothing_else(tmp_path, log):
    jsonl(tmp_path / "logs" / "0-unknown.jsonl", {"level": "info"})
    jsonl(tmp_path / "logs" / "1-log.jsonl", *log.read_bytes().splitlines(keepends=True))
    summary = run(tmp_path / "run", tmp_path / "logs", limit=5, part_mb=lines_mb(log, 2))
    assert (summary.parts, summary.counters.total("turns")) == (3, 5)
    everything = tmp_path / "all"
    run(everything, tmp_path / "logs", part_mb=lines_mb(log, 2))
    assert list(read_all(tmp_path / "run", "sessions")) == list(read_all(everything, "sessions"))[:5]


def test_ids_do_not_depend_on_the_parts(tmp_path, log):
    ids = []
    for size in (1, 7, 256):
        run(tmp_path / str(size), log, part_mb=lines_mb(log, size))
        ids.append([t["turn_id"] for t in read_all(tmp_path / str(size), "turns")])
    assert ids[0] == ids[1] == ids[2]


@pytest.mark.parametrize(("name", "megabytes", "expected"), [
    ("small.jsonl", 1, 250_000), ("large.jsonl", 64, 1_000_000), ("huge.jsonl", 5_000, 8_000_000),
    ("packed.jsonl.gz", 64, 5_000_000), ("rows.parquet", 64, 5_000_000),
])  # fmt: skip
def test_a_log_of_any_size_is_some_parts(tmp_path, name, megabytes, expected):
    """Parts are what a kill loses and what processes share, so a log of any size has parts of moderate size."""
    with (tmp_path / name).open("wb") as log:
        log.truncate(megabytes * 1_000_000)  # a sparse file, which takes no disk space
    config = ExtractConfig(run=tmp_path / "run", logs=(str(tmp_path / name),))
    assert extract.part_bytes(config, expand(config.logs, tmp_path)) == expected


def test_a_small_log_is_more_than_one_part(tmp_path):
    text = "word " * 2_000
    log = jsonl(tmp_path / "log.jsonl", *(chat(f"{i} {text}", "yes", "no") for i in range(60)))
    assert run(tmp_path / "run", log).parts == 3
