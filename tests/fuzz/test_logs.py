"""Tests of the fuzzing itself: its bounds hold on a few hundred lines, and a reader that breaks a bound is found."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fuzz import logs
from fuzz.logs import Found, fuzz
from fuzz.mappings import MAPPINGS
from fuzz.mutations import BYTE_MUTATIONS, VALUE_MUTATIONS, mutated
from fuzz.pool import real_lines
from hypothesis import given
from hypothesis import strategies as st

from opdkit.extract.formats import READERS
from opdkit.store.reading import read_all

ROOT = Path(__file__).parents[2]
NAMES = [*READERS, *MAPPINGS]
REAL = {name: lines for name, lines in real_lines((ROOT / "sample_data" / "logs",)).items() if lines}


@pytest.mark.slow
def test_the_command_holds_its_bounds_and_says_so(capsys):
    """In every format, a line is read or rejected with a reason, within the bounds for its size."""
    assert logs.main(["--lines", str(30 * len(NAMES)), "--seed", "1"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("all bounds hold\n")
    assert said.count(": 30 lines") == len(NAMES)
    assert "not JSON" in said
    assert "NO REASON" not in said


@pytest.mark.parametrize("name", NAMES)
def test_a_line_goes_one_way(name):
    found = fuzz(name, 25, 7)
    assert found.read + found.rejected.total() == found.lines == 25


def _raises(read):
    def broken(unit):
        yield from read(unit)
        raise KeyError("role")

    return broken


def _loses(read):
    def broken(unit):
        yield from list(read(unit))[1:]

    return broken


def _hoards(read):
    def broken(unit):
        held = bytearray(10_000_000)
        yield from read(unit)
        held.clear()

    return broken


def _repeats(read):
    def broken(unit):
        until = time.process_time() + 2 * logs.SLOWEST / 1e3
        while time.process_time() < until:
            pass
        yield from read(unit)

    return broken


@pytest.mark.slow
@pytest.mark.parametrize(("what", "breaking"), [("crash", _raises), ("lost", _loses), ("large", _hoards),
                                                ("slow", _repeats)])  # fmt: skip
def test_a_reader_that_breaks_a_bound_is_found(what: str, breaking: Callable, monkeypatch, tmp_path, capsys):
    reader = READERS["openai"]
    monkeypatch.setattr(logs, "READERS", {"openai": reader})
    monkeypatch.setattr(logs, "MAPPINGS", {})
    monkeypatch.setitem(READERS, "openai", replace(reader, read=breaking(reader.read)))
    assert logs.main(["--lines", "4", "--keep", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("a bound is broken\n")
    assert list(tmp_path.glob(f"openai-{what}-*.jsonl"))


def test_found_bounds():
    assert Found().broken == {}
    assert Found(slowest=(49.0, b"x"), largest=(9.0, b"x")).broken == {}
    assert Found(slowest=(51.0, b"x"), largest=(11.0, b"y")).broken == {"slow": [b"x"], "large": [b"y"]}


@given(st.sampled_from(sorted(REAL)), st.integers(0, 20), st.randoms(use_true_random=False))
def test_mutations_stay_on_their_line(name, number, draw):
    line = REAL[name][number]
    assert b"\n" not in mutated(line, draw)


def test_every_mutation_changes_something():
    import random

    line = REAL["openai"][0]
    for mutation in (*BYTE_MUTATIONS, *VALUE_MUTATIONS):
        assert any(mutation(line, random.Random(seed)) != line for seed in range(20)), mutation


# -- through the real command, with its memory -------------------------------------------------------------------------

CHAT = json.dumps(
    {"messages": [{"role": r, "content": c} for r, c in (("user", "u"), ("assistant", "a"), ("user", "v"))]}
)
MEASURED = """
import atexit, re
from pathlib import Path
from opdkit.cli import main
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]))
main()
"""
HOSTILE = {
    # Over the limit of 64 MB. Never more of a line than the limit is held.
    "line too long": b'{"messages": "' + b"x" * 100_000_000 + b'"}',
    # The parser would recurse to 10,000 levels on its stack.
    "nested too deeply": b'{"messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    # 30 MB that would become 700 MB of Python objects.
    "too many values": b'{"messages": [' + b"[]," * 10_000_000 + b"1]}",
    "too many messages": b'{"messages": [' + b'{"role": "user", "content": "hello"},' * 200_000 + b'{"role": "user"}]}',
}


def peak_of_extract(run: Path, log: Path) -> float:
    """Run `opdkit extract` on a log and return its peak of resident memory in MB."""
    command = [sys.executable, "-c", MEASURED, "extract", str(run), str(log), "--format", "openai"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    return int(done.stdout) * 1024 / 1e6


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of the memory from /proc")
def test_lines_that_would_fill_the_memory_are_set_aside(tmp_path):
    """A 100 MB line, deep nesting, and text that grows when it is parsed are rejected within a bound on memory."""
    usual, hostile = tmp_path / "usual.jsonl", tmp_path / "hostile.jsonl"
    usual.write_text(f"{CHAT}\n" * 3)
    hostile.write_bytes(b"\n".join([CHAT.encode(), *HOSTILE.values(), *[CHAT.encode()] * 4]) + b"\n")
    before, peak = peak_of_extract(tmp_path / "0", usual), peak_of_extract(tmp_path / "1", hostile)
    rows = list(read_all(tmp_path / "1", "rejected"))
    assert [(row["line"], row["reason"]) for row in rows] == list(enumerate(HOSTILE, 2))
    assert [s["line"] for s in read_all(tmp_path / "1", "sessions")] == [1, 6, 7, 8, 9]
    # Room for a line, its copy while it is read, and the 200,000 messages as objects.
    assert peak - before < 2.5 * 64
