"""Tests of inputs (files, folders, standard input, data sets, compressed or not) and of their lines."""

import gzip
import io
import json
import os
import re
import sys
import threading
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import chat, jsonl, run, tables

from opdkit.errors import ConfigError
from opdkit.extract.inputs.files import expand, find_files, lines, open_plain, packing, until_damage

LOG = b'{"a": 1}\n{"a": 2}\n'


def names(inputs) -> list[str]:
    return [i.name for i in inputs]


def test_folders_are_searched_in_order(tmp_path):
    for name in ("b.jsonl", "a/z.jsonl.gz", "a/y.jsonl.zst", "notes.txt", "c.json", "d.json.gz"):
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LOG)
    (tmp_path / "logs" / "folder.jsonl").mkdir()
    inputs = expand([str(tmp_path / "logs")], tmp_path)
    assert names(inputs) == ["y", "z", "b", "c", "d"]
    assert not any(i.given for i in inputs)


def test_ended_sessions_of_openclaw_are_read_and_its_copies_are_not(tmp_path):
    copy = "a.checkpoint.0f0f0f0f-1111-2222-3333-444444444444.jsonl"
    ended = "a.jsonl.reset.2026-02-01T04-00-00.000Z"
    packed = f"b.jsonl.reset.2026-03-01T04-00-00.000Z.{'0f' * 16}.zst"
    for name in ("a.jsonl", ended, ended.replace("reset", "deleted"), packed, packed.replace("reset", "deleted"), copy):
        (tmp_path / name).write_text("{}\n")
    found = expand([str(tmp_path)], tmp_path)
    assert [(entry.name, entry.path.name) for entry in found] == [("a", "a.jsonl"), ("a-2", ended), ("b", packed)]
    by_age = find_files([str(tmp_path)], tmp_path, rotated=True)
    assert [path.name for _, path, _ in by_age] == [ended, "a.jsonl", packed]


def test_a_link_to_another_folder_is_named_and_not_followed(tmp_path, capsys):
    for name in ("logs/day1/a", "disk/b"):
        jsonl(tmp_path / f"{name}.jsonl", {"a": 1})
    (tmp_path / "logs" / "latest").symlink_to("day1")
    (tmp_path / "logs" / "day2").symlink_to("../disk")
    assert [entry.name for entry in expand([str(tmp_path / "logs")], tmp_path)] == ["a"]
    warned = capsys.readouterr().err
    assert str(tmp_path / "logs" / "day2") in warned
    assert "latest" not in warned


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch, capsys):
    for path in (tmp_path / "logs/a.jsonl", tmp_path / "logs/private/b.jsonl"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(LOG)
    closed = {"private"}  # simulated, because root may read every folder

    def guarded(really, folder):
        if Path(folder).name in closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return really(folder)

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, partial(guarded, getattr(os, name)))
    assert names(expand([str(tmp_path / "logs")], tmp_path)) == ["a"]
    assert "logs/private cannot be read" in capsys.readouterr().err.replace("\n", "")
    closed.add("logs")
    with pytest.raises(PermissionError):
        expand([str(tmp_path / "logs")], tmp_path)


def test_what_lies_in_a_run_is_no_log(tmp_path):
    """The tables of a run, its model and its exports are not read as logs."""
    (tmp_path / "logs.jsonl").touch()
    for part in ("run/extract/sessions/part-00000.parquet", "run/export/openai.jsonl", "run/export/trl-kto.parquet",
                 "run/train/model/config.json", "run/.failed/judge-0-of-1.json"):  # fmt: skip
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    (tmp_path / "run" / "extract" / "manifest.json").write_text('{"fingerprint": "f", "plan": {')  # damaged
    (tmp_path / "run" / "of-the-run.json").touch()
    for name in ("export/of-the-shop.jsonl", "data/manifest.json", "data/log.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names(expand([str(tmp_path)], tmp_path)) == ["log", "manifest", "of-the-shop", "logs", "of-the-run"]


def test_the_manifest_of_another_program_hides_no_log(tmp_path):
    for name in ("set/manifest.json", "set/data/log.parquet", "extract/manifest.json", "export/log.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"files": []}')
    found = {i.source.removeprefix(f"{tmp_path}/") for i in expand([str(tmp_path)], tmp_path)}
    assert found >= {"set/data/log.parquet", "export/log.jsonl"}


def test_names_are_unique_and_free_of_colons(tmp_path):
    paths = [tmp_path / name for name in ("x/a.jsonl", "y/a.jsonl", "z/a-2.jsonl", "b:1 c.jsonl", ".jsonl")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(LOG)
    inputs = expand([str(p) for p in paths], tmp_path)
    assert names(inputs) == ["a", "a-2", "a-2-2", "b_1_c", "log"]
    assert all(i.given for i in inputs)


def test_a_file_named_twice_is_read_once(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LOG)
    assert len(expand([str(path), str(tmp_path)], tmp_path)) == 1
    assert "named twice" in capsys.readouterr().err


@pytest.mark.parametrize("log", ["missing.jsonl", "empty"])
def test_what_is_not_there(tmp_path, log):
    """A missing file and a directory without logs are refused, and the message names them."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=log):
        expand([str(tmp_path / log)], tmp_path)


def test_standard_input_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOG)))
    (entry,) = expand(["-"], tmp_path)
    assert (entry.name, entry.source, entry.path.read_bytes()) == ("stdin", "-", LOG)


@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_written_down(tmp_path, packed):
    """A pipe can be read only once and extract reads its inputs twice, so the pipe is copied to a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = json.dumps(chat("u", "a", "v")).encode() + b"\n"
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(data) if packed else data,))
    writer.start()
    run(tmp_path / "run", pipe)
    writer.join()
    (session,) = tables(tmp_path / "run")["sessions"]
    assert (session["session_id"], session["source"], len(session["messages"])) == ("pipe:1", str(pipe), 3)


def test_a_data_set_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{"id": i, "messages": [{"role": "user", "content": f"{split} {i}"}]} for i in range(3)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (train,) = expand([f"hf:{folder}"], tmp_path)
    (test,) = expand([f"hf:{folder}:test"], tmp_path)
    assert [json.loads(line)["id"] for line in train.path.open()] == [0, 1, 2]
    assert "test 2" in test.path.read_text()
    assert (train.name, train.source) == ("set", f"hf:{folder}")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        expand([f"hf:{folder}:nothing"], tmp_path)


def pack(kind: str | None, data: bytes) -> bytes:
    if kind == "gzip":
        return gzip.compress(data)
    return data if kind is None else pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize("kind", [None, "gzip", "zstd"])
def test_compression_is_known_by_content(tmp_path, kind):
    path = tmp_path / "a.jsonl"  # the name does not count
    path.write_bytes(pack(kind, LOG) + (pack(kind, LOG) if kind else b""))
    assert packing(path) == kind
    with open_plain(path) as handle:
        assert handle.read() == (LOG + LOG if kind else LOG)


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_an_archive_cut_short_is_read_up_to_there(tmp_path, kind):
    """A gzip or zstd file that was cut short is read almost up to the cut."""
    data = b"".join(b'{"a": "%d"}\n' % (i * 7919) for i in range(200_000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(pack(kind, data)[:-2_000])
    got: list[bytes] = []
    with open_plain(path) as handle, until_damage() as damage:
        got.extend(line.data for _, line in lines(handle, "a", 100))
    assert re.search("Truncated|ended before", str(damage[0]))
    assert data.startswith(b"".join(got))
    lost = len(data) - len(b"".join(got))
    assert lost < {"gzip": 10_000, "zstd": 200_000}[kind]


def test_a_failing_disk_is_no_damage():
    for error in (OSError(5, "Input/output error"), KeyError()):
        with pytest.raises(type(error)), until_damage():
            raise error


def test_blank_lines_marks_and_line_ends():
    """Despite a byte-order mark, CRLF and blank lines, line numbers and offsets are those of the file."""
    data = b'\xef\xbb\xbf{"a": 1}\r\n\r\n \t\n{"b": 2}\n{"c"'
    found = list(lines(io.BytesIO(data), "log", 100))
    assert [(line.number, line.data) for _, line in found] == [(1, b'{"a": 1}\r\n'), (4, b'{"b": 2}\n'), (5, b'{"c"')]
    assert [data[offset:][:1] for offset, _ in found] == [b"\xef", b"{", b"{"]
    assert list(lines(io.BytesIO(b""), "log", 100)) == []


def test_a_line_that_is_too_long_is_never_held_whole():
    """A line over the limit is read in blocks, and only its beginning and its length are kept."""

    class Endless(io.BytesIO):
        largest = 0

        def readline(self, size=-1):
            assert 0 < size <= 1 << 20
            return super().readline(size)

    handle = Endless(b"a\n" + b"x" * 5_000_000 + b"\n" + b"b\n" + b"y" * 200)
    found = list(lines(handle, "log", 100))
    assert [(line.number, line.problem.reason if line.problem else None) for _, line in found] == [
        (1, None), (2, "line too long"), (3, None), (4, "line too long")
    ]  # fmt: skip
    assert found[1][1].problem.detail == "5,000,001 bytes"
    assert len(found[1][1].data) <= 101
    assert [offset for offset, _ in found] == [0, 2, 5_000_003, 5_000_005]


@given(st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b" ")), max_size=8), st.integers(1, 10))
def test_every_line_is_found_again_by_its_offset(rows, limit):
    data = b"\n".join(rows)
    found = list(lines(io.BytesIO(data), "log", limit))
    numbers = [i for i, row in enumerate(rows, 1) if row and not row.isspace()]
    if not data.startswith(b"\xef\xbb\xbf"):
        assert [line.number for _, line in found] == numbers
    for offset, line in found:
        handle = io.BytesIO(data)
        handle.seek(offset)
        again = next(lines(handle, "log", limit, number=line.number, offset=offset))[1]
        assert (again.number, again.data) == (line.number, line.data)
        assert (again.problem is None) == (line.problem is None)
