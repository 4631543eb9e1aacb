"""Tests that bad input is set aside with a reason and counted, and that too much of it is an error."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from small_logs import chat, jsonl, lines_mb, run, tables

from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract import stage as extract
from opdkit.store.reading import read_all


def test_bad_lines_are_set_aside_and_counted(tmp_path, capsys):
    """Each bad line is rejected with a reason, and all other lines are read."""
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
    assert "8 lines or sessions dropped" in summary.line()
    assert f"{log}: openai" in capsys.readouterr().err


def test_values_that_parquet_cannot_hold_do_not_stop_it(tmp_path):
    """NaN, lone surrogates, duplicate keys and deep metadata are converted, and their lines are kept."""
    deep = "[" * 200 + "]" * 200
    log = jsonl(
        tmp_path / "log.jsonl",
        b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "a"}, '
        b'{"role": "user", "content": "b"}], "reward": NaN, "x": 1, "x": 2}\n',
        f'{{"messages": [{{"role": "user", "content": "u"}}], "deep": {deep}}}\n'.encode(),
    )
    run(tmp_path / "run", log)
    first, second = read_all(tmp_path / "run", "sessions")
    assert first["messages"][0]["content"] == "\ufffd"
    assert json.loads(first["metadata"]) == {"reward": None, "x": 2}
    assert second["metadata"] == f'{{"deep":{deep}}}'


def test_a_field_that_first_appears_in_row_two_is_kept(tmp_path):
    """A field that first appears in a later row is kept."""
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"), chat("u", "a", "v", reward=1.0, model="m"))
    run(tmp_path / "run", log)
    rows = list(read_all(tmp_path / "run", "sessions"))
    assert [(r["metadata"], r["model"]) for r in rows] == [(None, None), ('{"reward":1.0}', "m")]


@pytest.mark.parametrize("log_format", ["openai", "pi", "openclaw_rl"])
def test_an_archive_cut_short_keeps_what_came_before(tmp_path, log_format):
    """The sessions before the damage are kept, and the damage itself is one rejected row."""
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
    summary = run(tmp_path / "run", packed, part_mb=lines_mb(path, 500))
    found = tables(tmp_path / "run")
    whole = [r for r in found["rejected"] if r["line"] == 0]
    assert [r["reason"] for r in whole] == ["damaged archive"]
    assert 1_000 < len(found["sessions"]) < 4_000
    assert summary.counters.rows_in == len(found["sessions"]) + summary.counters.total("log sessions unread") + 1
    assert not any(m["content"] is None for s in found["sessions"] for m in s["messages"])


@pytest.mark.parametrize(("data", "message"), [
    (b"", "nothing to read"),
    (b"\n \n", "nothing to read"),
    (b"[\n{},\n{}\n]\n", "unknown format"),
    (b"[1, 2]\n", "no JSON lines"),
    (b"[]\n", "nothing to read"),
    (gzip.compress(b"", mtime=0), "nothing to read"),
    (gzip.compress(b"x" * 100, mtime=0)[:20], "damaged archive"),
    (b"time,level\n", "CSV, not JSON lines"),
    (b'{"level": "info"}\n', r"pass --format if the format is one.*--map.*docs/logs\.md"),
])  # fmt: skip
def test_a_named_file_that_is_no_log_is_an_error(tmp_path, data, message):
    """The error names the problem, and no run directory is made."""
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
    assert rows == {"array.jsonl": (0, "unknown format"), "packed.jsonl.gz": (0, "damaged archive")}
    assert sum(summary.counters.dropped.values()) == 2
    said = capsys.readouterr().err
    assert "good.jsonl: openai" in said
    assert "array.jsonl: set aside" in said
    assert "empty.jsonl: empty" in said


PACKED = gzip.compress(b"".join(json.dumps(chat(f"u{n}", f"a{n}", "v")).encode() + b"\n" for n in range(50)), mtime=0)
CRC, LENGTH = bytes([PACKED[-8] ^ 1]), PACKED[-7:]


@pytest.mark.parametrize("log_format", ["auto", "openai"])
@pytest.mark.parametrize(("data", "whole"), [
    (b"", 0), (PACKED[:1], 0), (PACKED[:2], 0), (PACKED[:5], 0), (PACKED[:10], 0), (PACKED[:14], 0),
    (PACKED[:200], 5), (PACKED[:-9], 49), (PACKED[:-8], 50), (PACKED[:-1], 50), (PACKED[:-8] + CRC + LENGTH, 50),
    (PACKED + b"rubbish", 50), (PACKED + PACKED[:12], 50),
])  # fmt: skip
def test_an_archive_cut_anywhere_is_one_input_that_is_set_aside(tmp_path, data, whole, log_format):
    """The archive is counted and named; its lines before the damage and the other inputs are read."""
    packed = tmp_path / "logs" / "cut.jsonl.gz"
    good = jsonl(tmp_path / "good.jsonl", chat("u", "a", "v"), chat("u", "b", "v"))
    packed.parent.mkdir()
    packed.write_bytes(data)
    for name, logs in (("named", [packed, good]), ("found", [packed.parent, good])):
        summary = run(tmp_path / name, *logs, format=log_format)
        found = tables(tmp_path / name)
        rejected = [r for r in found["rejected"] if r["source"] == str(packed)]
        sessions = [s["session_id"] for s in found["sessions"] if s["source"] == str(packed)]
        assert [(r["line"], r["reason"]) for r in rejected] == [(0, "damaged archive")]
        assert summary.counters.dropped["damaged archive"] == 1
        assert len(sessions) >= whole
        assert sessions == [f"cut:{n}" for n in range(1, len(sessions) + 1)]
        assert [s["session_id"] for s in found["sessions"] if s["source"] == str(good)] == ["good:1", "good:2"]


def test_two_possible_formats_are_not_guessed(tmp_path):
    both = chat("u", "a", "v") | {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"},
                                                    {"from": "human", "value": "z"}]}  # fmt: skip
    log = jsonl(tmp_path / "log.jsonl", both)
    with pytest.raises(ConfigError, match="openai or sharegpt: say which with --format"):
        run(tmp_path / "run", log)
    run(tmp_path / "run", log, format="sharegpt")
    assert next(read_all(tmp_path / "run", "sessions"))["messages"][0]["content"] == "x"


def test_a_file_of_two_formats_in_a_folder_is_set_aside(tmp_path, capsys):
    jsonl(tmp_path / "logs" / "good.jsonl", chat("u", "a", "v"))
    event = {"type": "message", "message": {"role": "user", "content": "u"}}
    bad = jsonl(tmp_path / "logs" / "bad.jsonl", chat("u", "a", "v"), event)
    run(tmp_path / "run", tmp_path / "logs")
    (row,) = read_all(tmp_path / "run", "rejected")
    assert (row["source"], row["line"], row["reason"]) == (str(bad), 0, "several formats")
    assert "openai or pi" in row["detail"]
    assert "bad.jsonl: set aside: several formats" in capsys.readouterr().err


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
    assert "log sessions unread" not in summary.counters.counts


@pytest.mark.parametrize(("record", "words"), [
    (chat("u", "a", "v", turn_type="side"), r"none of 2 turns\. Every turn is marked as side; --side"),
    (chat("u"), "no turns at all"),
])  # fmt: skip
def test_nothing_to_train_on_is_said_in_words(tmp_path, record, words):
    """A log of side turns alone or without turns is an error that says why, and the tables are still written."""
    log = jsonl(tmp_path / "log.jsonl", record, record)
    for _ in range(2):  # also when every part is already done
        with pytest.raises(OpdkitError, match=f"nothing can be trained on.*{words}"):
            run(tmp_path / "run", log)
    assert len(tables(tmp_path / "run")["sessions"]) == 2


def test_replies_that_nobody_reacted_to_can_still_have_outcomes(tmp_path, capsys):
    """Extract only warns about such replies; the judge knows the outcomes and reports if there are none."""
    log = jsonl(tmp_path / "log.jsonl", *[chat("u", "a") | {"stars": 5}] * 2)
    assert run(tmp_path / "run", log).counters.total("turns") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no turn has a reaction to learn from: no next state (2)" in said
    assert "`opdkit judge --good ... --bad ...`" in said


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, log, monkeypatch):
    """The parts would not be those of the file in the manifest, so no part is written."""
    write = extract.write_unit

    def meddle(*arguments):
        write(*arguments)
        with log.open("a") as handle:
            handle.write("\n")

    monkeypatch.setattr(extract, "write_unit", meddle)
    with pytest.raises(OpdkitError, match=r"log\.jsonl changed while it was read .*bytes before.*extract the copy"):
        run(tmp_path / "run", log)
    assert not list((tmp_path / "run").rglob("*.parquet"))
