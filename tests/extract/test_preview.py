"""Tests of `opdkit extract --dry-run`."""

import gzip
import io
import re
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_logs import chat, jsonl, run

from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.preview import LINES


def shown(capsys, folder: Path, *logs, **options) -> str:
    summary = run(folder, *logs, dry_run=True, **options)
    assert summary.line().startswith("extract --dry-run: ")
    assert not folder.exists()
    return capsys.readouterr().out


def zipped(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, '{"level": "info"}\n')
    return file.getvalue()


def test_everything_that_was_found_is_said(tmp_path, capsys):
    rows = [chat("u", "a", "thanks", model="m1", language="en", timestamp="2026-01-02T03:04:05Z", task="x"),
            chat("hello \x1b[31m", "b", model="m2", timestamp="2026-03-04"), {"x": 1}, b"{damaged\n"]  # fmt: skip
    assert shown(capsys, tmp_path / "run", jsonl(tmp_path / "log.jsonl", *rows)) == (
        f"{tmp_path}/log.jsonl: openai, all of it\n"
        "  sessions  2\n"
        "  turns     2, of which 1 trainable; skipped: no next state 1\n"
        "  rejected  no messages 1 (line 3, none of messages, traj, history, conversation, conversations, "
        'trajectory in the record: {"x": 1})\n'
        "            not JSON 1 (line 4, character 1: unexpected character, expected a string key: {damaged)\n"
        "  models    m1 1, m2 1\n"
        "  roles     user 3, assistant 2\n"
        "  languages (none) 1, en 1\n"
        "  times     2026-01-02 03:04 to 2026-03-04 00:00 UTC\n"
        "  metadata  timestamp 2, language 1, task 1\n"
        "  sample    log:1:1\n"
        "    prompt  user: u\n"
        "    reply   assistant: a\n"
        "    next    user: thanks\n"
    )


def test_only_the_first_lines_are_read_and_their_numbers_stay(tmp_path, capsys):
    log = jsonl(tmp_path / "log.jsonl", b"\n", *[chat("u", f"a{n}", "v") for n in range(LINES + 500)])
    said = shown(capsys, tmp_path / "run", log)
    assert f"the first {LINES:,} lines\n  sessions  {LINES - 1:,}\n" in said
    assert "log:2:1" in said
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert f"sessions  {LINES - 1:,}\n" in shown(capsys, tmp_path / "run", packed)


def test_an_archive_that_breaks_off_is_named(tmp_path, capsys):
    log = jsonl(tmp_path / "log.jsonl", *[chat(f"u{n * 7919}", f"a{n * 7907}", "v") for n in range(300)])
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(log.read_bytes())[:-1_000])
    assert "openai, what lies before the damage" in shown(capsys, tmp_path / "run", packed)
    capsys.readouterr()
    run(tmp_path / "run", packed)
    assert "log.jsonl.gz: openai, up to where it breaks off: damaged archive" in capsys.readouterr().err


def test_inputs_of_several_formats_and_of_none(tmp_path, capsys):
    folder = tmp_path / "logs"
    jsonl(folder / "a.jsonl", {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]})
    jsonl(folder / "b.jsonl", {"level": "info"})
    pq.write_table(pa.Table.from_pylist([chat(f"u{n}", "a", "v") for n in range(5)]), folder / "c.parquet")
    said = shown(capsys, tmp_path / "run", folder)
    assert "a.jsonl: sharegpt" in said
    assert "b.jsonl: unknown format (no reader knows records with the keys level)" in said
    assert "c.parquet: openai, all of it\n  sessions  5\n" in said
    said = shown(capsys, tmp_path / "run", folder, limit=3)
    assert "a.jsonl: sharegpt, within the first 3 sessions of all inputs (--limit)\n  sessions  1\n" in said
    assert "c.parquet: openai, within the first 3 sessions of all inputs (--limit)\n  sessions  2\n" in said
    assert "all of it" not in said


def test_a_mapping_and_a_filter_can_be_tried(tmp_path, capsys):
    fields = tmp_path / "fields.toml"
    fields.write_text('messages = "talk"\nmodel = "by"')
    rows = [{"talk": chat("u", "a", "v")["messages"], "by": f"m{n % 2}"} for n in range(4)]
    log = jsonl(tmp_path / "log.jsonl", *rows)
    said = shown(capsys, tmp_path / "run", log, map=str(fields), filter=("model=m1",))
    assert "log.jsonl: mapped" in said
    assert "left out  filtered: model=m1 2\n" in said
    assert "models    m1 2\n" in said


def test_a_log_shows_itself_redacted_and_short(tmp_path, capsys):
    log = jsonl(tmp_path / "log.jsonl", chat("ask ann@example.org " + "x" * 900, "a\nb", "[bold]v[/]"))
    said = shown(capsys, tmp_path / "run", log, redact=True)
    assert "ann@" not in said
    assert "[email] xxx" in said
    assert "next    user: [bold]v[/]\n" in said
    assert max(map(len, said.splitlines())) < 250


def test_what_is_wrong_with_the_command_is_still_an_error(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        run(tmp_path / "run", tmp_path / "none.jsonl", dry_run=True)


LOGS = {
    "unknown": (b'{"level": "info"}\n', r"unknown format.*describe its fields with --map.*docs/logs\.md"),
    "votes": (b'{"votes": [], "session_id": "s"}\n', "judge votes"),
    "empty": (b"", "nothing to read"),
    "blank": (b"\n", "nothing to read"),
    "no messages": (b'{"messages": 1}\n', "1 of 1 log session could not be read"),
    "cut": (gzip.compress(b'{"level": "info"}\n')[:14], "damaged archive"),
    "cut late": (gzip.compress(b'{"level": "info"}\n')[:-4], "unknown format"),
    "no zip": (b"PK\x03\x04 no archive", "damaged archive"),
    "zip of notes": (zipped("notes.txt"), "nothing to read"),
    "zip of a log": (zipped("a.jsonl"), "unknown format"),
}


def ending(folder: Path, *logs: Path, **options) -> tuple[int, str]:
    try:
        run(folder, *logs, **options)
    except OpdkitError as error:
        return error.exit_code, str(error)
    return 0, ""


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", LOGS)
def test_a_log_that_cannot_be_read_ends_as_the_extraction_would(tmp_path, name, beside):
    """The dry run ends with the exit code of the extraction, for the log alone and beside another log."""
    data, words = LOGS[name]
    (tmp_path / "log.jsonl").write_bytes(data)
    logs = [tmp_path / "log.jsonl", *([jsonl(tmp_path / "good.jsonl", chat("u", "a", "v"))] if beside else [])]
    options = {"format": "openai"} if name == "no messages" else {}
    code, text = ending(tmp_path / "run", *logs, dry_run=True, **options)
    assert code == ending(tmp_path / "run", *logs, **options)[0]
    assert beside or (code and re.search(words, text))


def test_rows_of_parquet_keep_their_problems(tmp_path, capsys):
    rows = [chat("u", "x" * n, "v") for n in (1, 2_000_000, 1)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    said = shown(capsys, tmp_path / "run", tmp_path / "log.parquet", max_line_mb=1)
    assert "sessions  2\n" in said
    assert "rejected  line too long 1 (line 2, " in said


def test_a_session_that_is_spread_over_lines(tmp_path, capsys):
    said = (("user", "u"), ("assistant", "a"), ("user", "v"))
    events = [{"type": "message", "message": {"role": role, "content": text}} for role, text in said]
    header = {"type": "session", "id": "s", "timestamp": "2026-01-01"}
    shows = shown(capsys, tmp_path / "run", jsonl(tmp_path / "log.jsonl", header, *events))
    assert "pi, all of it\n  sessions  1\n  turns     1, of which 1 trainable\n" in shows
