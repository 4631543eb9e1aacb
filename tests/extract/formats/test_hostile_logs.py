"""Tests that extract never crashes and accounts for every line, on random logs of every format, valid or hostile."""

import json
import tempfile
from pathlib import Path

import pytest
from fuzz.logs import LINKED, SEVERAL
from fuzz.mappings import MAPPINGS, options, reader
from fuzz.mutations import mutated
from fuzz.pool import real_lines
from fuzz.strategies import JUNK, RECORDS
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from opdkit.chat.conversation import LEFT_OUT
from opdkit.config.extract import ExtractConfig
from opdkit.errors import OpdkitError
from opdkit.extract import stage as extract
from opdkit.extract.formats import READERS
from opdkit.extract.inputs.files import find_documents
from opdkit.store.counters import Counters, read_counters
from opdkit.store.reading import read_all

ROOT = Path(__file__).parents[3]
REAL = real_lines((ROOT / "sample_data" / "logs",))


def damaged(name: str) -> st.SearchStrategy[bytes]:
    """Return damaged lines of a format: real lines, or generated lines if sample_data has none of the format."""
    lines = st.sampled_from(REAL[name]) if REAL.get(name) else RECORDS[name].map(as_line)
    return st.builds(mutated, lines, st.randoms(use_true_random=False))


def as_line(record) -> bytes:
    return json.dumps(record).encode()


@pytest.mark.parametrize("name", [*READERS, *MAPPINGS])
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_never_a_crash_and_every_line_accounted_for(name, data):
    """Every line of a random log is in a session, in the rejected table, or counted as left out."""
    rows = data.draw(st.lists(RECORDS[name].map(as_line) | JUNK | damaged(name), min_size=1, max_size=8))
    size = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as folder:
        log, run = Path(folder, "log.jsonl"), Path(folder, "run")
        log.write_bytes(b"\n".join(rows))
        assume(not find_documents(log, 1 << 26))  # by chance one document: no lines to account for
        try:
            extract.run(ExtractConfig(run=run, logs=(str(log),), part_mb=size * 1e-4, **options(name, folder)))
        except OpdkitError as error:  # too little readable, or nothing trainable: raised after the parts are written
            if "nothing to read" in str(error):
                return
        found = {table: list(read_all(run, table)) for table in ("sessions", "turns", "rejected")}
        read = reader(name, folder)
        total = Counters()
        for path in sorted((run / "extract" / "sessions").iterdir()):
            total.merge(read_counters(path))
    numbers = {i for i, row in enumerate(rows, 1) if (row.removeprefix(b"\xef\xbb\xbf") if i == 1 else row).strip()}
    sessions, aside = found["sessions"], [r["line"] for r in found["rejected"]]
    assert len({s["session_id"] for s in sessions}) == len(sessions)
    left_out = sum(n for why, n in total.dropped.items() if why.startswith(LEFT_OUT))
    assert sum(total.dropped.values()) - left_out == len(aside)
    if name in SEVERAL and read.grouping == "line":
        assert {s["line"] for s in sessions} | set(aside) == numbers
    elif read.grouping == "line":
        assert sorted([s["line"] for s in sessions] + aside) == sorted(numbers)
    elif name in LINKED:
        recorded = {r["line"] for s in sessions for r in json.loads(s["metadata"])["records"]}
        assert recorded | set(aside) <= numbers
        assert len(numbers - recorded - set(aside)) <= left_out
        assert read.unfold is not None or not recorded & set(aside)
    assert set(aside) <= numbers
    replies = sum(m["role"] == "assistant" for s in sessions for m in s["messages"])
    assert len(found["turns"]) == replies == total.total("turns")
    assert total.rows_in >= total.total("log sessions unread")
    for turn in found["turns"]:
        assert turn["trainable"] == (turn["skip_reason"] is None)
