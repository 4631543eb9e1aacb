"""Tests of zip archives: members are read like files, even if another member is damaged."""

import json
import struct
import zipfile
from pathlib import Path

import pytest
from small_logs import chat, jsonl, run, tables

from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.inputs import archives

LINE = json.dumps(chat("u", "a", "v")).encode() + b"\n"


def pack(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as out:
        for name, data in members.items():
            out.writestr(name, data)
    return path


def aside(found: dict[str, list[dict]]) -> dict[str, str]:
    """Return the reasons of members that were set aside as a whole, by name ("" for the archive)."""
    return {r["source"].partition(".zip")[2].lstrip("/"): r["reason"] for r in found["rejected"] if not r["line"]}


def test_members_are_read_as_the_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    jsonl(folder / "a.jsonl", chat("u", "a", "v"))
    jsonl(folder / "deep" / "a.jsonl", chat("u2", "a2", "v2"))
    (folder / "array.json").write_text(json.dumps([chat("u3", "a3", "v3")]))
    (folder / "notes.txt").write_text("no log")
    (folder / "other.json").write_text('{"a": 1}')
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    archive = pack(tmp_path / "logs.zip", files)
    for name, log in (
        ("files", folder),
        ("zip", archive),
        ("folder", pack(tmp_path / "in" / "logs.zip", files).parent),
    ):
        run(tmp_path / name, log)
    want = tables(tmp_path / "files")
    assert len(want["sessions"]) == 3
    for name in ("zip", "folder"):
        found = tables(tmp_path / name)
        assert [s["session_id"] for s in found["sessions"]] == [s["session_id"] for s in want["sessions"]]
        assert [s["messages"] for s in found["sessions"]] == [s["messages"] for s in want["sessions"]]
        assert aside(found) == {"other.json": "unknown format"}
    assert found["sessions"][0]["source"] == f"{tmp_path}/in/logs.zip/a.jsonl"


def test_an_archive_is_read_once_however_often_it_is_named(tmp_path: Path) -> None:
    archive = pack(tmp_path / "logs.zip", {"a.jsonl": LINE})
    run(tmp_path / "run", archive, archive, tmp_path)
    assert len(tables(tmp_path / "run")["sessions"]) == 1


def test_the_same_command_resumes_and_a_dry_run_reads_the_same(tmp_path: Path, capsys) -> None:
    archive = pack(tmp_path / "logs.zip", {"a.jsonl": LINE, "../b.jsonl": LINE})
    run(tmp_path / "run", archive, dry_run=True)
    assert "/a.jsonl: openai, all of it" in capsys.readouterr().out
    run(tmp_path / "run", archive)
    run(tmp_path / "run", archive)
    assert len(tables(tmp_path / "run")["sessions"]) == 1


@pytest.mark.parametrize("name", ["../out.jsonl", "a/../../out.jsonl", "/out.jsonl", "C:/out.jsonl", "..\\out.jsonl"])
def test_a_member_that_leaves_the_archive_is_set_aside(name: str, tmp_path: Path) -> None:
    run(tmp_path / "run", pack(tmp_path / "in" / "logs.zip", {name: LINE, "a.jsonl": LINE}))
    found = tables(tmp_path / "run")
    assert list(aside(found).values()) == ["path leaves the archive"]
    assert [s["session_id"] for s in found["sessions"]] == ["a:1"]
    assert not list(tmp_path.rglob("out.jsonl"))


def test_a_bomb_is_set_aside_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_SMALL", 1_000_000)
    archive = pack(tmp_path / "logs.zip", {"a.jsonl": LINE, "b.jsonl": LINE * 500_000})
    assert archive.stat().st_size * 100 < len(LINE) * 500_000
    run(tmp_path / "run", archive)
    assert aside(tables(tmp_path / "run")) == {"b.jsonl": "zip bomb"}


def test_many_members_are_a_bomb_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member alone is small enough, but the members together exceed the limit of an archive."""
    monkeypatch.setattr(archives, "_SMALL", len(LINE) * 50)
    monkeypatch.setattr(archives, "_LARGEST_RATIO", 1)
    archive = pack(tmp_path / "logs.zip", {f"{n:02}.jsonl": LINE * 20 for n in range(20)})
    run(tmp_path / "run", archive)
    found = tables(tmp_path / "run")
    most = archive.stat().st_size + len(LINE) * 50
    assert 0 < len(found["sessions"]) * len(LINE) <= most
    assert set(aside(found).values()) == {"zip bomb"}
    assert len(found["sessions"]) + 20 * len(aside(found)) == 400


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_is_set_aside_and_the_others_are_read(method: int, tmp_path: Path) -> None:
    data = b"".join(json.dumps(chat(f"u{n}", "a", "v")).encode() + b"\n" for n in range(2_000))
    archive = pack(tmp_path / "logs.zip", {"a.jsonl": data, "b.jsonl": LINE}, method)
    damaged = bytearray(archive.read_bytes())
    damaged[100:140] = bytes(40)
    archive.write_bytes(damaged)
    run(tmp_path / "run", archive)
    found = tables(tmp_path / "run")
    assert aside(found) == {"a.jsonl": "damaged archive"}
    assert [s["session_id"] for s in found["sessions"]] == ["b:1"]


def test_members_at_places_before_the_archive_are_set_aside(tmp_path: Path) -> None:
    """zipfile seeks to a negative position, and the system's error for that must not end the run."""
    archive = pack(tmp_path / "in" / "logs.zip", {"a.jsonl": LINE})
    jsonl(tmp_path / "in" / "b.jsonl", chat("u", "a", "v"))
    data = bytearray(archive.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = b"\xf0\xff\xff\xff"  # where the central directory begins
    archive.write_bytes(data)
    run(tmp_path / "run", archive.parent)
    found = tables(tmp_path / "run")
    assert aside(found) == {"a.jsonl": "damaged archive"}
    assert [s["session_id"] for s in found["sessions"]] == ["b:1"]


def test_members_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    archive = pack(tmp_path / "logs.zip", {"a.jsonl": LINE, "locked.jsonl": LINE, "odd.jsonl": LINE, "in.zip": b"PK"})
    data = bytearray(archive.read_bytes())
    for name, offset, value in ((b"locked.jsonl", 8, 1), (b"odd.jsonl", 10, 99)):  # flags; method
        entry = data.rindex(name) - 46  # in the central directory
        data[entry + offset : entry + offset + 2] = struct.pack("<H", value)
    archive.write_bytes(data)
    run(tmp_path / "run", archive)
    found = tables(tmp_path / "run")
    assert aside(found) == {
        "locked.jsonl": "encrypted",
        "odd.jsonl": "unknown compression",
        "in.zip": "archive in an archive",
    }
    assert len(found["sessions"]) == 1


def test_an_archive_that_is_cut_off_is_set_aside(tmp_path: Path) -> None:
    whole = pack(tmp_path / "whole.zip", {"a.jsonl": LINE * 20}).read_bytes()
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    for size in range(4, len(whole), 50):
        (tmp_path / "cut.zip").write_bytes(whole[:size])
        run(tmp_path / f"run-{size}", log, tmp_path / "cut.zip")
        found = tables(tmp_path / f"run-{size}")
        assert aside(found) == {"": "damaged archive"}
        assert len(found["sessions"]) == 1
    with pytest.raises(ConfigError, match="damaged archive"):
        run(tmp_path / "alone", tmp_path / "cut.zip")


@pytest.mark.parametrize("members", [{}, {"readme.txt": b"hi"}])
def test_an_archive_without_logs_says_so(members: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match="nothing to read"):
        run(tmp_path / "run", pack(tmp_path / "logs.zip", members))
