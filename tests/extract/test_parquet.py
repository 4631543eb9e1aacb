"""Tests of Parquet inputs, whose rows are treated as lines."""

import datetime
import decimal
import json
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_logs import chat, jsonl, run, tables

from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.inputs.archives import DAMAGED
from opdkit.extract.inputs.parquet import DAMAGED_ROWS, plan_row_chunks, read_rows
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all

ROOT = Path(__file__).parents[2]


def parquet(path: Path, records: list[dict], group: int = 7) -> Path:
    pq.write_table(pa.Table.from_pylist(records), path, row_group_size=group)
    return path


def talks(count: int) -> list[dict]:
    return [{"conversation_hash": f"h{k}", "model": "gpt-4", "language": "English", **as_conversation(k)}
            for k in range(count)]  # fmt: skip


def as_conversation(number: int) -> dict:
    return {"conversation": chat(f"u{number}", f"a{number}", f"v{number}")["messages"]}


@pytest.fixture
def log(tmp_path) -> Path:
    return parquet(tmp_path / "train-00000-of-00001.parquet", talks(40))


def part_mb(log: Path, rows: float) -> float:
    """Return the --part-mb that gives parts of `rows` rows."""
    metadata = pq.read_metadata(log)
    return rows * metadata.row_group(0).total_byte_size / metadata.row_group(0).num_rows / 1e6


def test_rows_are_the_records_of_the_same_jsonl(tmp_path, log):
    """For parts of any size, ids, lines and messages are those of the same log as text."""
    text = jsonl(tmp_path / "text" / "train-00000-of-00001.jsonl", *talks(40))
    run(tmp_path / "text-run", text)
    for rows in (3.5, 7.5, 100):
        folder = tmp_path / f"run-{rows}"
        summary = run(folder, log, part_mb=part_mb(log, rows))
        assert (summary.parts > 5) == (rows < 10)
        found = tables(folder)
        for row in found["sessions"]:
            row["source"] = str(text)
        assert found == tables(tmp_path / "text-run")
    pinned = manifest(tmp_path / "run-100", "extract")["plan"]["inputs"]["train-00000-of-00001"]
    assert (pinned["format"], pinned["bytes"]) == ("wildchat", log.stat().st_size)


@pytest.mark.slow
def test_a_call_has_no_arguments_of_other_tools(tmp_path):
    """All rows share one struct, with the fields of all of them; a row has null where another has a value."""
    arguments = [{"city": "Paris"}, {"expr": {"left": 2, "right": [2, None]}}]
    records = [
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": one}}]}
            ]
        }
        for one in arguments
    ]
    rows = [json.loads(line.data) for line in read_rows(parquet(tmp_path / "log.parquet", records), "log", 1 << 20)]
    found = [row["messages"][0]["tool_calls"][0]["function"]["arguments"] for row in rows]
    assert found == arguments


def test_shards_and_workers_give_the_rows_of_one_process(tmp_path, log):
    size = part_mb(log, 3.5)
    run(tmp_path / "one", log, part_mb=size)
    for shard in (2, 0, 1):
        summary = run(tmp_path / "three", log, part_mb=size, shard=f"{shard}/3", workers=1 + shard)
    assert summary.parts_done == summary.parts > 8
    assert tables(tmp_path / "three") == tables(tmp_path / "one")


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


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same(tmp_path, log):
    killed, size = tmp_path / "killed", part_mb(log, 3.5)
    process = subprocess.Popen([sys.executable, "-c", HELD_AT, str(killed), str(log), str(size), "12"], cwd=ROOT)
    while process.poll() is None and not list(killed.rglob("sessions/part-*.parquet")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert 0 < len(list(killed.rglob("sessions/part-*.parquet"))) < 10
    run(killed, log, part_mb=size)
    run(tmp_path / "whole", log, part_mb=size)
    assert tables(killed) == tables(tmp_path / "whole")


def test_limit_is_the_first_rows(tmp_path, log):
    summary = run(tmp_path / "run", log, limit=9, part_mb=part_mb(log, 3.5))
    assert summary.counters.rows_in == 9
    assert [s["line"] for s in read_all(tmp_path / "run", "sessions")] == list(range(1, 10))


def test_logs_with_sessions_over_many_rows_are_read_too(tmp_path):
    """OpenClaw-RL records are joined by their session id, wherever they are; a session of pi begins at its header."""
    first = {"messages": [{"role": "user", "content": "u"}], "response_text": "a", "prompt_text": "p"}
    second = {"messages": [*chat("u", "a", "v")["messages"]], "response_text": "b", "prompt_text": "p"}
    records = [{"session_id": s, **r} for r in (first, second) for s in ("x", "y")]
    log = parquet(tmp_path / "records.parquet", records, group=1)
    run(tmp_path / "run", log, part_mb=1e-6)
    found = tables(tmp_path / "run")
    assert [(s["session_id"], len(s["messages"])) for s in found["sessions"]] == [("records:x", 4), ("records:y", 4)]
    events = [{"type": "session", "id": "p", "timestamp": "t", "message": None},
              {"type": "message", "id": "1", "message": {"role": "user", "content": "u"}}]  # fmt: skip
    run(tmp_path / "pi", parquet(tmp_path / "pi.parquet", events * 2, group=1), log, part_mb=1e-6)
    assert [s["session_id"] for s in tables(tmp_path / "pi")["sessions"]][:2] == ["pi:p", "pi:p#2"]


def test_a_file_without_rows_is_empty(tmp_path, log, capsys):
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.Table.from_pylist([chat("u", "a")]).slice(0, 0), empty)
    with pytest.raises(OpdkitError, match="nothing to read") as caught:
        run(tmp_path / "run", empty)
    assert caught.value.exit_code == 1
    run(tmp_path / "run", empty, log)
    assert "empty.parquet: empty" in capsys.readouterr().err


def test_values_that_json_does_not_have(tmp_path):
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    record = chat("u", "a", "v") | {"at": at, "cost": decimal.Decimal("0.10"), "nan": float("nan"),
                                    "image": b"\x89PNG" * 100, "key": b"\x89PNG"}  # fmt: skip
    run(tmp_path / "run", parquet(tmp_path / "log.parquet", [record]), filter=("metadata.at>=2026-01-02",))
    (session,) = read_all(tmp_path / "run", "sessions")
    assert json.loads(session["metadata"]) == {"at": "2026-01-02T03:04:05+00:00", "cost": "0.10", "image": "[bytes]",
                                               "key": "89504e47", "nan": None}  # fmt: skip


def test_texts_and_ids_that_a_writer_stored_as_bytes(tmp_path):
    """Impala writes texts without their type. MySQL and BigQuery write UUIDs as 16 bytes, which name a session."""
    rows = [{"chat": bytes([0] * 15 + [n]), "role": role, "content": text}
            for n in (1, 2) for role, text in (("user", f"u{n}"), ("assistant", "a"), ("user", "v"))]  # fmt: skip
    texts = pa.schema([("chat", pa.binary(16)), ("role", pa.binary()), ("content", pa.binary())])
    pq.write_table(pa.Table.from_pylist(rows, schema=texts), tmp_path / "log.parquet")
    (tmp_path / "map.toml").write_text('session = "chat"')
    run(tmp_path / "run", tmp_path / "log.parquet", map=tmp_path / "map.toml")
    found = {s["session_id"]: [m["content"] for m in s["messages"]] for s in tables(tmp_path / "run")["sessions"]}
    assert found == {f"log:{'00' * 15}0{n}": [f"u{n}", "a", "v"] for n in (1, 2)}


def test_maps_are_objects(tmp_path):
    """Spark writes messages as lists of maps. ClickHouse and Trino write attributes as maps."""
    said = [[*message.items()] for message in chat("u", "a", "v")["messages"]]
    by_name, by_number = (pa.map_(keys, pa.string()) for keys in (pa.string(), pa.int64()))
    table = pa.table({"messages": pa.array([said], pa.list_(by_name)), "ids": pa.array([[(7, "x")]], by_number),
                      "tags": pa.array([[("shop", "s"), ("user", None)]], by_name)})  # fmt: skip
    pq.write_table(table, tmp_path / "log.parquet")
    run(tmp_path / "run", tmp_path / "log.parquet", filter=("metadata.tags.shop=s",))
    (session,) = tables(tmp_path / "run")["sessions"]
    assert [m["content"] for m in session["messages"]] == ["u", "a", "v"]
    assert json.loads(session["metadata"]) == {"ids": {"7": "x"}, "tags": {"shop": "s"}}


def test_a_data_set_has_the_rows_of_its_parquet_file(tmp_path, monkeypatch):
    """Its structs, too, have the fields of all rows: the arguments of all other tools."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    calls = [{"id": "c", "name": name, "arguments": given} for name, given in (("f", {"a": 1}), ("g", {"b": 2}))]
    (tmp_path / "set").mkdir()
    rows = [chat("u", "a", "v", stars=decimal.Decimal("4.5"), spent=datetime.timedelta(seconds=2)) for _ in calls]
    for row, call in zip(rows, calls, strict=True):
        row["messages"][1]["tool_calls"] = [call]
    log = parquet(tmp_path / "set" / "train.parquet", rows)
    for name, source in (("file", log), ("set", f"hf:{tmp_path / 'set'}")):
        run(tmp_path / name, source)
    of_file, of_set = ([(s["messages"], s["metadata"]) for s in read_all(tmp_path / name, "sessions")]
                       for name in ("file", "set"))  # fmt: skip
    assert of_file == of_set
    assert [messages[1]["tool_calls"][0]["arguments"] for messages, _ in of_set] == ['{"a":1}', '{"b":2}']


def test_sound_and_pictures_of_a_data_set_are_not_decoded(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    talk = chat("u", "a", "v", sound={"bytes": b"\xff" * 100, "path": "a.wav"}, picture={"bytes": b"\xff" * 100})
    columns = {"messages": [dict.fromkeys(("role", "content"), datasets.Value("string"))],
               "sound": datasets.Audio(), "picture": datasets.Image()}  # fmt: skip
    (tmp_path / "set").mkdir()
    table = pa.Table.from_pylist([talk], schema=datasets.Features(columns).arrow_schema)
    pq.write_table(table, tmp_path / "set" / "train.parquet")
    run(tmp_path / "run", f"hf:{tmp_path / 'set'}")
    (session,) = tables(tmp_path / "run")["sessions"]
    assert json.loads(session["metadata"]) == {"sound": {"bytes": "[bytes]", "path": "a.wav"},
                                               "picture": {"bytes": "[bytes]"}}  # fmt: skip


def test_rows_that_cannot_be_read_are_set_aside_one_by_one(tmp_path):
    """A row that is too long or not UTF-8 is rejected with its number; the other rows are read."""
    notes = pa.array([b"x", b"\xff", b"y" * 1_100_000, b"z"], pa.binary()).view(pa.string())
    table = pa.table({"messages": pa.array([chat("u", "a", "v")["messages"]] * 4), "note": notes})
    pq.write_table(table, tmp_path / "log.parquet")
    run(tmp_path / "run", tmp_path / "log.parquet", max_line_mb=1)
    assert [(r["line"], r["reason"]) for r in read_all(tmp_path / "run", "rejected")] == [
        (2, "not UTF-8"), (3, "line too long")]  # fmt: skip
    assert [s["line"] for s in read_all(tmp_path / "run", "sessions")] == [1, 4]


def test_rows_with_a_time_that_python_does_not_have_are_set_aside(tmp_path):
    """Microseconds that were stored as milliseconds are such times. The other rows are read."""
    times = pa.array([0, 2**52, 10**12], pa.timestamp("ms"))
    table = pa.table({"messages": pa.array([chat("u", "a", "v")["messages"]] * 3), "at": times})
    pq.write_table(table, tmp_path / "log.parquet")
    run(tmp_path / "run", tmp_path / "log.parquet")
    assert [(r["line"], r["reason"]) for r in read_all(tmp_path / "run", "rejected")] == [(2, DAMAGED_ROWS)]
    assert [s["line"] for s in read_all(tmp_path / "run", "sessions")] == [1, 3]


@pytest.mark.parametrize("options", [{}, {"format": "openai"}])
def test_a_damaged_name_of_a_column_is_damage(tmp_path, log, options):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(log.read_bytes().replace(b"language", b"langu\xffge"))
    with pytest.raises(OpdkitError, match=DAMAGED):
        run(tmp_path / "run", broken, **options)


def test_files_in_the_working_directory_are_found(tmp_path, log, monkeypatch):
    """Paths without a folder are read as logs, unless the working directory belongs to a run."""
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "run", ".")
    assert len(list(read_all(tmp_path / "run", "sessions"))) == 40
    monkeypatch.chdir(tmp_path / "run" / "extract" / "sessions")
    with pytest.raises(ConfigError, match="holds no"):  # tables of a run are no logs
        run(tmp_path / "another", ".")


def test_a_damaged_file_is_set_aside_and_an_error_where_it_is_named(tmp_path, log):
    cut = tmp_path / "logs" / "cut.parquet"
    cut.parent.mkdir()
    cut.write_bytes(log.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="damaged archive"):
        run(tmp_path / "run", cut)
    jsonl(tmp_path / "logs" / "fine.jsonl", *(chat("u", "a", "v") for _ in range(3)))
    run(tmp_path / "run", tmp_path / "logs")
    assert [r["reason"] for r in read_all(tmp_path / "run", "rejected")] == ["damaged archive"]


def test_damaged_pages_lose_their_rows_and_no_others(tmp_path, log):
    data = bytearray(log.read_bytes())
    group = pq.read_metadata(log).row_group(1)
    columns = [group.column(c) for c in range(group.num_columns)]
    start, size = min(c.data_page_offset for c in columns), sum(c.total_compressed_size for c in columns) // 2
    data[start : start + size] = b"\xff" * size
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(data)
    run(tmp_path / "run", broken, part_mb=part_mb(log, 3.5))
    told = [s["line"] for s in read_all(tmp_path / "run", "sessions")]
    aside = [r["line"] for r in read_all(tmp_path / "run", "rejected")]
    assert sorted(told + aside) == list(range(1, 41))
    assert aside == list(range(8, 15))


def test_tables_of_a_run_in_a_folder_of_logs_are_no_logs(tmp_path, log):
    run(tmp_path / "logs" / "runs" / "old", log)
    jsonl(tmp_path / "logs" / "a.jsonl", chat("u", "a", "v"))
    run(tmp_path / "run", tmp_path / "logs")
    assert [s["session_id"] for s in read_all(tmp_path / "run", "sessions")] == ["a:1"]
    with pytest.raises(ConfigError, match="those of a run"):
        run(tmp_path / "other", tmp_path / "logs/runs")


def test_reading_starts_at_any_row_and_goes_on(log):
    rows = read_rows(log, "log", 10**6, start=12)
    assert [line.number for line in islice(rows, 3)] == [13, 14, 15]
    assert [line.number for line in islice(rows, 15)] == list(range(16, 31))
    assert len(list(rows)) == 10
    total, chunks = plan_row_chunks(log, 1)
    assert (total, [row for row, _ in chunks]) == (40, list(range(40)))
