"""The extract stage: what it makes of real logs, of hostile ones, in shards, killed and resumed."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from opdkit import extract
from opdkit.errors import ConfigError, OpdkitError
from opdkit.logs import units
from opdkit.stages import ExtractConfig
from opdkit.store import Summary, manifest, read_all, read_part

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
real_logs = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here")


def run(folder: Path, *logs: Path | str, **options) -> Summary:
    return extract.run(ExtractConfig(run=folder, logs=tuple(map(str, logs)), **options))


def tables(folder: Path) -> dict[str, list[dict]]:
    return {name: list(read_all(folder, name)) for name in ("sessions", "turns", "rejected")}


def chat(*texts: str, **more) -> dict:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)], **more}


def jsonl(path: Path, *records) -> Path:
    data = [r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(data))
    return path


@pytest.fixture
def log(tmp_path) -> Path:
    return jsonl(tmp_path / "log.jsonl", *(chat(f"u{i}", f"a{i}", f"v{i}", n=i) for i in range(20)))


# -- real logs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    if not DATA.is_dir():
        pytest.skip("../shared/data is not here")
    folder = tmp_path_factory.mktemp("real")
    run(folder, DATA, sessions_per_part=100)
    return folder


@pytest.mark.parametrize(("name", "sessions", "turns", "with_next_state"), [
    ("taubench_gpt4o_airline", 200, 2_454, 2_454),
    ("before-compaction", 1, 484, 484),
    ("glaive_toolcall_en", 300, 957, 657),
    ("glaive_toolcall_zh", 300, 940, 640),
    ("qwen3_4b_lora_record", 1, 1, 1),
    ("sweagent_demos", 22, 230, 213),
])  # fmt: skip
def test_real_logs_give_the_known_counts(real, name, sessions, turns, with_next_state):
    found = [t for t in read_all(real, "turns") if t["turn_id"].startswith(f"{name}:")]
    assert len({t["session_id"] for t in found}) == sessions
    assert len(found) == turns
    assert sum(t["next_count"] > 0 for t in found) == with_next_state


def test_real_sessions_end_as_they_do(real):
    ends = Counter(
        s["messages"][-1]["role"] for s in read_all(real, "sessions") if s["session_id"].startswith("taubench")
    )
    assert ends == Counter(user=149, tool=51)


def test_every_message_of_a_real_log_is_there(real):
    """Content null stays null, arguments stay verbatim, the reward is in the metadata."""
    told = {s["line"]: s for s in read_all(real, "sessions") if s["session_id"].startswith("taubench")}
    path = DATA / "taubench" / "taubench_gpt4o_airline.jsonl"
    for number, line in enumerate(path.open(encoding="utf-8"), 1):
        record, session = json.loads(line), told[number]
        assert [(m["role"], m["content"]) for m in session["messages"]] == [
            (m["role"], m["content"]) for m in record["traj"]
        ]  # fmt: skip
        calls = [c["function"]["arguments"] for m in record["traj"] for c in m.get("tool_calls") or []]
        assert [c["arguments"] for m in session["messages"] for c in m["tool_calls"]] == calls
        assert json.loads(session["metadata"])["reward"] == record["reward"]


def test_files_that_nobody_knows_are_one_rejected_row_each(real):
    rows = list(read_all(real, "rejected"))
    assert {r["line"] for r in rows} == {0}
    assert Counter(r["reason"] for r in rows) == Counter({"unknown format": 4, "judge votes, not a conversation": 1})
    assert all("claude_code" in r["source"] for r in rows if r["reason"] == "unknown format")


@real_logs
def test_a_real_log_of_no_known_format_is_an_error_when_it_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown format .*--format"):
        run(tmp_path, next((DATA / "claude_code").glob("*.jsonl")))


@real_logs
def test_the_judge_s_votes_alone_are_nothing_to_train_on(tmp_path):
    with pytest.raises(OpdkitError, match=r"nothing can be trained on.*judge votes"):
        run(tmp_path, DATA / "openclaw_rl" / "qwen3_4b_lora_record_prm.jsonl")


# -- one plan, any number of shards ----------------------------------------------------------------------------------


@real_logs
@pytest.mark.parametrize("packed", [False, True])
def test_three_shards_give_the_tables_of_one(tmp_path, real, packed):
    logs = DATA
    if packed:
        logs = tmp_path / "logs"
        for path in sorted(DATA.rglob("*.jsonl")):
            (logs / path.parent.name).mkdir(parents=True, exist_ok=True)
            (logs / path.parent.name / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    for shard in (2, 0, 1):
        summary = run(tmp_path / "run", logs, sessions_per_part=100, shard=f"{shard}/3")
    assert summary.parts_done == summary.parts == 9
    for name, rows in tables(tmp_path / "run").items():
        expected = list(read_all(real, name))
        for row in rows + expected:
            row.pop("source", None)
        assert rows == expected


def test_parts_that_are_done_are_skipped(tmp_path, log, monkeypatch):
    first = run(tmp_path / "run", log, sessions_per_part=6)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*.parquet")}
    (tmp_path / "run" / "extract" / "sessions" / "part-00002.parquet").unlink()
    read = []
    monkeypatch.setattr(units.Units, "read", _recording(units.Units.read, read))
    again = run(tmp_path / "run", log, sessions_per_part=6)
    assert read == [(12, 18)]
    assert again.counters.rows_in == first.counters.rows_in == 20
    assert again.counters.extra == first.counters.extra
    untouched = [p for p, mtime in before.items() if p.stat().st_mtime_ns == mtime]
    assert len(untouched) == len(before) - 3


def _recording(method, calls):
    def wrapped(self, start, stop):
        calls.append((start, stop))
        return method(self, start, stop)

    return wrapped


SLOWLY = """
import sys, time
from pathlib import Path
from opdkit import extract
from opdkit.stages import ExtractConfig
write = extract.write_unit
def slowly(unit, out):
    time.sleep(0.02)
    write(unit, out)
extract.write_unit = slowly
extract.run(ExtractConfig(run=Path(sys.argv[1]), logs=(sys.argv[2],), sessions_per_part=2))
"""


def test_killed_and_resumed_gives_the_same(tmp_path, log):
    """pitfalls 25 and 26: nothing half-written at a final path, and the summary covers both runs."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-c", SLOWLY, str(killed), str(log)], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not list(killed.rglob("sessions/part-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(killed.rglob("sessions/part-*.parquet")))
    assert 0 < done < 10
    resumed, once = run(killed, log, sessions_per_part=2), run(whole, log, sessions_per_part=2)
    assert tables(killed) == tables(whole)
    assert (resumed.counters.rows_in, resumed.counters.extra) == (once.counters.rows_in, once.counters.extra)


def test_another_plan_is_refused_by_name(tmp_path, log):
    run(tmp_path / "run", log)
    with pytest.raises(ConfigError, match=r"config\.sessions_per_part: 256 -> 3"):
        run(tmp_path / "run", log, sessions_per_part=3)
    with log.open("a") as handle:
        handle.write(json.dumps(chat("u", "a", "v")) + "\n")
    with pytest.raises(ConfigError, match=r"inputs\.log\.bytes(.|\n)*inputs\.log\.sha256"):
        run(tmp_path / "run", log)
    assert run(tmp_path / "run", log, overwrite=True).counters.rows_in == 21


def test_the_manifest_pins_what_was_read(tmp_path, log):
    other = jsonl(tmp_path / "more" / "log.jsonl", {"conversations": [{"from": "human", "value": "x"}]})
    run(tmp_path / "run", log, other)
    pinned = manifest(tmp_path / "run", "extract")["plan"]["inputs"]
    assert pinned["log"]["bytes"] == log.stat().st_size
    assert len(pinned["log"]["sha256"]) == 64
    assert (pinned["log"]["format"], pinned["log-2"]["format"]) == ("openai", "sharegpt")


def test_rows_keep_the_order_of_the_inputs(tmp_path, log):
    other = jsonl(tmp_path / "a.jsonl", *(chat("u", "a", "v") for _ in range(3)))
    run(tmp_path / "run", log, other, sessions_per_part=7)
    ids = [s["session_id"] for s in read_all(tmp_path / "run", "sessions")]
    assert ids == [f"log:{i}" for i in range(1, 21)] + ["a:1", "a:2", "a:3"]
    assert [t["turn_id"] for t in read_all(tmp_path / "run", "turns")] == [f"{i}:1" for i in ids]
    assert len(read_part(tmp_path / "run", "sessions", 2)) == 7


def test_limit_is_the_first_sessions_and_nothing_else(tmp_path, log):
    jsonl(tmp_path / "logs" / "0-unknown.jsonl", {"level": "info"})
    jsonl(tmp_path / "logs" / "1-log.jsonl", *log.read_bytes().splitlines(keepends=True))
    summary = run(tmp_path / "run", tmp_path / "logs", limit=5, sessions_per_part=2)
    assert (summary.parts, summary.counters.extra["turns"]) == (3, 5)
    everything = tmp_path / "all"
    run(everything, tmp_path / "logs", sessions_per_part=2)
    assert list(read_all(tmp_path / "run", "sessions")) == list(read_all(everything, "sessions"))[:5]


def test_ids_do_not_depend_on_the_parts(tmp_path, log):
    ids = []
    for size in (1, 7, 256):
        run(tmp_path / str(size), log, sessions_per_part=size)
        ids.append([t["turn_id"] for t in read_all(tmp_path / str(size), "turns")])
    assert ids[0] == ids[1] == ids[2]


def test_logged_ids_become_unique_ones(tmp_path):
    """pitfall 20: one id for several sessions, also where the id itself looks like our numbering."""

    def record(session, text):
        return {"session_id": session, "turn": 1, "messages": [{"role": "user", "content": text}], "response_text": "a",
                "prompt_text": "", "tool_calls": None, "next_state": {"role": "user", "content": "ok"}}  # fmt: skip

    one = jsonl(tmp_path / "one.jsonl", record("s", "x"), record("s#2", "y"), record("s", "z"), record("s%232", "q"))
    two = jsonl(tmp_path / "two.jsonl", record("s", "w"), record(None, "v"), record("x" * 5_000, "u"))
    header = {"type": "session", "id": "p", "timestamp": "t"}
    events = [{"type": "message", "message": {"role": r, "content": "x"}} for r in ("user", "assistant", "user")]
    pi = jsonl(tmp_path / "pi.jsonl", header, *events, header, *events, header | {"id": None}, *events)
    run(tmp_path / "run", one, two, pi, sessions_per_part=2)
    ids = [s["session_id"] for s in read_all(tmp_path / "run", "sessions")]
    assert ids[:6] == ["one:s", "one:s#2", "one:s#3", "one:s%232", "one:s%25232", "two:unknown"]
    assert ids[7:] == ["pi:p", "pi:p#2", "pi:line9"]
    assert len(set(ids)) == len(ids)
    assert len(ids[6]) < 300


def test_records_of_one_session_may_lie_in_several_files(tmp_path):
    user = [{"role": "user", "content": f"u{i}"} for i in range(3)]
    first = {"session_id": "s", "turn": 1, "messages": [user[0]], "response_text": "a0", "next_state": user[1]}
    reply = {"role": "assistant", "content": "a0"}
    second = {"session_id": "s", "turn": 2, "messages": [user[0], reply, user[1]], "response_text": "a1",
              "next_state": user[2]}  # fmt: skip
    logs = jsonl(tmp_path / "b.jsonl", second), jsonl(tmp_path / "a.jsonl", first)
    run(tmp_path / "run", *logs)
    (session,) = read_all(tmp_path / "run", "sessions")
    assert [m["content"] for m in session["messages"]] == ["u0", "a0", "u1", "a1", "u2"]
    assert (session["session_id"], session["source"]) == ("b:s", str(logs[1]))


# -- bad input -------------------------------------------------------------------------------------------------------


def test_bad_lines_are_set_aside_and_counted(tmp_path, capsys):
    """pitfall 22: each bad line costs itself, with a reason, and nothing else."""
    good = [chat(f"u{i}", f"a{i}", f"v{i}") for i in range(9)]
    deep = b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}\n"
    bad = {
        b"# comment\n": "comment line",
        b'{"messages": [{"role": "user", "content": "\xff"}]}\n': "not UTF-8",
        b'{"messages": [{"role": "narrator"}]}\n': "unknown role",
        b"{broken\n": "not JSON",
        deep: "nested too deeply",
        b"[1]\n": "not a JSON object",
        b'{"x": "' + b"y" * 1_000_100 + b'"}\n': "line too long",
        b'{"messages": [{"role": "user", "con': "last line cut short",
    }
    log = jsonl(
        tmp_path / "log.jsonl", b"\xef\xbb\xbf" + json.dumps(good[0]).encode() + b"\r\n", b"\n", *good[1:], *bad
    )
    summary = run(tmp_path / "run", log, max_line_mb=1)
    found = tables(tmp_path / "run")
    assert [(r["line"], r["reason"]) for r in found["rejected"]] == list(enumerate(bad.values(), 11))
    assert [s["line"] for s in found["sessions"]] == [1, *range(3, 11)]
    assert all(len(r["raw"]) <= 2_000 and r["source"] == str(log) for r in found["rejected"])
    assert found["rejected"][1]["raw"] == '{"messages": [{"role": "user", "content": "\ufffd"}]}'
    assert summary.counters.dropped == Counter(bad.values())
    assert summary.counters.rows_in == 17
    assert "8 dropped" in summary.line()
    assert f"{log}: openai" in capsys.readouterr().err


def test_values_that_parquet_cannot_hold_do_not_stop_it(tmp_path):
    """pitfall 22: NaN, lone surrogates, duplicate keys, deep metadata."""
    deep = "[" * 400 + "]" * 400
    log = jsonl(
        tmp_path / "log.jsonl",
        b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "a"}, '
        b'{"role": "user", "content": "b"}], "reward": NaN, "x": 1, "x": 2}\n',
        f'{{"messages": [{{"role": "user", "content": "u"}}], "deep": {deep}}}\n'.encode(),
    )
    run(tmp_path / "run", log)
    first, second = read_all(tmp_path / "run", "sessions")
    assert first["messages"][0]["content"] == "\ufffd\ufffd\ufffd"
    assert json.loads(first["metadata"]) == {"reward": None, "x": 2}
    assert second["metadata"] == f'{{"deep":{deep}}}'


def test_a_field_that_first_appears_in_row_two_is_kept(tmp_path):
    """pitfall 23"""
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"), chat("u", "a", "v", reward=1.0, model="m"))
    run(tmp_path / "run", log)
    rows = list(read_all(tmp_path / "run", "sessions"))
    assert [(r["metadata"], r["model"]) for r in rows] == [(None, None), ('{"reward":1.0}', "m")]


@pytest.mark.parametrize("log_format", ["openai", "pi", "openclaw_rl"])
def test_an_archive_cut_short_keeps_what_came_before(tmp_path, log_format):
    """pitfall 22: gzip cut short."""
    user = [{"role": "user", "content": f"u{i * 7919}"} for i in range(4_000)]
    reply = {"role": "assistant", "content": "a"}
    records = {
        "openai": [{"messages": [u, reply, u | {"content": "ok"}]} for u in user],
        "pi": [e for i, u in enumerate(user) for e in (
            {"type": "session", "id": i, "timestamp": "t"}, {"type": "message", "message": u},
            {"type": "message", "message": reply}, {"type": "message", "message": {"role": "user", "content": "ok"}})],
        "openclaw_rl": [{"session_id": f"s{i}", "messages": [u], "response_text": "a", "next_state": {
            "role": "user", "content": "ok"}} for i, u in enumerate(user)],
    }[log_format]  # fmt: skip
    path = jsonl(tmp_path / "log.jsonl", *records)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes())[:-1_000])
    summary = run(tmp_path / "run", packed, sessions_per_part=500)
    found = tables(tmp_path / "run")
    whole = [r for r in found["rejected"] if r["line"] == 0]
    assert [r["reason"] for r in whole] == ["damaged archive"]
    assert 1_000 < len(found["sessions"]) < 4_000
    assert summary.counters.rows_in == len(found["sessions"]) + summary.counters.extra["log sessions unread"] + 1
    assert not any(m["content"] is None for s in found["sessions"] for m in s["messages"])


@pytest.mark.parametrize(("data", "message"), [
    (b"", "nothing to read"),
    (b"\n \n", "no JSON lines"),
    (b"[\n{},\n{}\n]\n", r"jq -c '\.\[\]'"),
    (b"time,level\n", "no JSON lines"),
])  # fmt: skip
def test_a_named_file_that_is_no_log_is_an_error(tmp_path, data, message):
    """pitfall 22: an empty file, one JSON array."""
    (tmp_path / "log.jsonl").write_bytes(data)
    with pytest.raises(OpdkitError, match=message):
        run(tmp_path / "run", tmp_path / "log.jsonl")
    assert not (tmp_path / "run").exists()


def test_a_file_in_a_folder_that_is_no_log_is_one_rejected_row(tmp_path, capsys):
    jsonl(tmp_path / "logs" / "good.jsonl", chat("u", "a", "v"))
    jsonl(tmp_path / "logs" / "array.jsonl", b'[{"messages": []}]\n')
    jsonl(tmp_path / "logs" / "empty.jsonl")
    (tmp_path / "logs" / "packed.jsonl.gz").write_bytes(gzip.compress(b"x" * 100)[:20])
    summary = run(tmp_path / "run", tmp_path / "logs")
    rows = {Path(r["source"]).name: (r["line"], r["reason"]) for r in read_all(tmp_path / "run", "rejected")}
    assert rows == {"array.jsonl": (0, "one JSON array, not JSON lines"), "packed.jsonl.gz": (0, "damaged archive")}
    assert sum(summary.counters.dropped.values()) == 2
    said = capsys.readouterr().err
    assert "good.jsonl: openai" in said
    assert "array.jsonl: set aside" in said
    assert "empty.jsonl: empty" in said


def test_two_possible_formats_are_not_guessed(tmp_path):
    both = chat("u", "a", "v") | {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"},
                                                    {"from": "human", "value": "z"}]}  # fmt: skip
    log = jsonl(tmp_path / "log.jsonl", both)
    with pytest.raises(ConfigError, match="openai or sharegpt: say which with --format"):
        run(tmp_path / "run", log)
    run(tmp_path / "run", log, format="sharegpt")
    assert next(read_all(tmp_path / "run", "sessions"))["messages"][0]["content"] == "x"


def test_mostly_unreadable_is_a_failure_with_the_commonest_reasons(tmp_path):
    lines = [chat("u", "a", "v"), b"{\n", b"{\n", {"text": "x"}]
    log = jsonl(tmp_path / "log.jsonl", *lines)
    with pytest.raises(OpdkitError, match=r"3 of 4 log sessions could not be read: not JSON \(2\), no messages \(1\)"):
        run(tmp_path / "run", log)
    assert len(tables(tmp_path / "run")["rejected"]) == 3
    run(tmp_path / "half", jsonl(tmp_path / "half.jsonl", *lines[:2], *lines[:1], b"{\n"))


def test_damage_inside_a_session_is_no_lost_session(tmp_path):
    said = [("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b")]
    events = [{"type": "message", "message": {"role": role, "content": text}} for role, text in said]
    header = {"type": "session", "id": "p", "timestamp": "t"}
    summary = run(tmp_path / "run", jsonl(tmp_path / "pi.jsonl", header, *events, *[b"{\n"] * 20))
    assert summary.counters.dropped == Counter({"not JSON": 20})
    assert "log sessions unread" not in summary.counters.extra


@pytest.mark.parametrize(("record", "words"), [
    (chat("u", "a", "v", turn_type="side"), r"none of 2 turns\. Every turn is marked as side"),
    (chat("u", "a"), r"Reasons: no next state \(2\)"),
    (chat("u"), "no turns at all"),
])  # fmt: skip
def test_nothing_to_train_on_is_said_in_words(tmp_path, record, words):
    """pitfall 24: everything classified as side and nothing trained, without a word."""
    log = jsonl(tmp_path / "log.jsonl", record, record)
    for _ in range(2):  # also when every part is already done
        with pytest.raises(OpdkitError, match=f"nothing can be trained on.*{words}"):
            run(tmp_path / "run", log)
    assert len(tables(tmp_path / "run")["sessions"]) == 2


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, log, monkeypatch):
    """pitfall 22: a file that changes while it is read."""
    write = extract.write_unit

    def meddle(unit, out):
        write(unit, out)
        with log.open("a") as handle:
            handle.write("\n")

    monkeypatch.setattr(extract, "write_unit", meddle)
    with pytest.raises(OpdkitError, match=r"log\.jsonl changed while it was read .*bytes before.*extract the copy"):
        run(tmp_path / "run", log)
    assert not list((tmp_path / "run").rglob("*.parquet"))


# -- the tables for everybody else -----------------------------------------------------------------------------------


@pytest.fixture
def with_an_empty_part(tmp_path) -> Path:
    lines = [chat("u", "a", "v"), chat("u", "a", "v"), {"text": "x"}, {"text": "x"}]
    run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", *lines), sessions_per_part=2)
    return tmp_path / "run" / "extract"


@pytest.mark.parametrize("name", ["sessions", "turns", "rejected"])
def test_other_tools_open_every_table(with_an_empty_part, tmp_path, monkeypatch, name):
    import datasets
    import pandas as pd
    import pyarrow.dataset as ds

    folder = with_an_empty_part / name
    assert len(list(folder.iterdir())) == 2
    assert len(pd.read_parquet(folder)) == 2
    assert ds.dataset(folder).count_rows() == 2
    rows = datasets.load_dataset("parquet", data_dir=str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) == 2


# -- from the command line -------------------------------------------------------------------------------------------


def command(*args: str, stdin: bytes = b"", cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", "opdkit", "extract", *args], input=stdin, cwd=cwd, env=environment,
                          capture_output=True, check=False)  # fmt: skip


def test_standard_input_is_extracted_and_resumed(tmp_path, log):
    data = log.read_bytes()
    first = command("run", "-", "--sessions-per-part", "7", stdin=data, cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, b"")
    assert b"extract: 20 in, 20 out, 0 dropped" in first.stderr
    (tmp_path / "run" / "extract" / "sessions" / "part-00001.parquet").unlink()
    again = command("run", "-", "--sessions-per-part", "7", stdin=data, cwd=tmp_path)
    assert again.returncode == 0
    assert [s["session_id"] for s in read_all(tmp_path / "run", "sessions")] == [f"stdin:{i}" for i in range(1, 21)]
    other = command("run", "-", "--sessions-per-part", "7", stdin=data[:-1], cwd=tmp_path)
    assert other.returncode == 2
    assert b"inputs.stdin.bytes" in other.stderr


def test_a_data_set_is_extracted(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    jsonl(tmp_path / "set" / "train.jsonl", chat("u", "a", "v"), chat("u", "a", "v", reward=1.0))
    run(tmp_path / "run", f"hf:{tmp_path / 'set'}")
    assert [s["session_id"] for s in read_all(tmp_path / "run", "sessions")] == ["set:1", "set:2"]


def test_exit_codes(tmp_path, log):
    assert command("run", "nowhere.jsonl", cwd=tmp_path).returncode == 2
    assert command("run", str(jsonl(tmp_path / "a.jsonl", chat("u", "a"))), cwd=tmp_path).returncode == 1
