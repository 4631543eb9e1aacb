"""Tests of `opdkit extract` on the command line, and of its tables in other tools."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_logs import chat, jsonl, lines_mb, run

from opdkit.store.reading import read_all
from opdkit.store.reviews import Review, append

ROOT = Path(__file__).parents[2]


@pytest.fixture
def with_an_empty_part(tmp_path) -> Path:
    lines = [chat("u", "a", "v"), chat("u", "a", "v"), {"text": "x"}, {"text": "x"}]
    log = jsonl(tmp_path / "log.jsonl", *lines)
    run(tmp_path / "run", log, part_mb=(log.read_bytes().index(b"\n") + 2) / 1e6)  # two lines, and the rest
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


def command(*args: str, stdin: bytes = b"", cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", "opdkit", "extract", *args], input=stdin, cwd=cwd, env=environment,
                          capture_output=True, check=False)  # fmt: skip


def test_standard_input_is_extracted_and_resumed(tmp_path, log):
    data, parts = log.read_bytes(), ("--part-mb", str(lines_mb(log, 7)))
    first = command("run", "-", *parts, stdin=data, cwd=tmp_path)
    assert (first.returncode, first.stdout) == (0, b"")
    assert b"extract: 20 log sessions in, 20 sessions out, 0 dropped" in first.stderr
    (tmp_path / "run" / "extract" / "sessions" / "part-00001.parquet").unlink()
    again = command("run", "-", *parts, stdin=data, cwd=tmp_path)
    assert again.returncode == 0
    assert [s["session_id"] for s in read_all(tmp_path / "run", "sessions")] == [f"stdin:{i}" for i in range(1, 21)]
    other = command("run", "-", *parts, stdin=data[:-1], cwd=tmp_path)
    assert other.returncode == 2
    assert b"inputs.stdin.bytes" in other.stderr


def test_a_data_set_is_extracted(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    jsonl(tmp_path / "set" / "train.jsonl", chat("u", "a", "v"), chat("u", "a", "v", reward=1.0))
    run(tmp_path / "run", f"hf:{tmp_path / 'set'}")
    assert [s["session_id"] for s in read_all(tmp_path / "run", "sessions")] == ["set:1", "set:2"]


def test_exit_codes(tmp_path, log):
    assert command("run", "nowhere.jsonl", cwd=tmp_path).returncode == 2
    assert command("run", str(jsonl(tmp_path / "a.jsonl", chat("u"))), cwd=tmp_path).returncode == 1


@pytest.mark.parametrize("is_same", [True, False])
def test_decisions_on_turns_of_other_logs_are_named(tmp_path, capsys, is_same: bool) -> None:
    """Decisions know their turns by ids, and a line of another log may have the same id."""
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    run(tmp_path / "run", log)
    append(tmp_path / "run", [Review("log:1:1", reward_decided=True, reward=-1)])
    jsonl(log, chat(*("u", "a", "v") if is_same else ("x", "y", "z")))
    run(tmp_path / "run", log, overwrite=True)
    assert ("1 decision of people stay" in " ".join(capsys.readouterr().err.split())) != is_same
