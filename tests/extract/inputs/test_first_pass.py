"""Tests of where parts begin: every unit is in one part, and each part can be read by itself."""

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import chat, jsonl

from opdkit.extract.inputs import first_pass as first_pass
from opdkit.extract.inputs import index
from opdkit.extract.inputs.files import expand
from opdkit.extract.inputs.first_pass import SharedSurvey, Survey, SurveyedInput, make_survey
from opdkit.extract.inputs.second_pass import Unit, Units


def surveyed(folder: Path, *logs: Path, part_bytes: int, log_format="openai", limit=None, shared=None) -> Survey:
    scratch = Path(tempfile.mkdtemp(dir=folder))
    return make_survey(expand(list(map(str, logs)), scratch), log_format, part_bytes, 1_000, limit, scratch, shared)


def told(unit: Unit) -> tuple:
    """Return the contents of a unit, without its place in the input."""
    return unit.surveyed.number, unit.name, [(line.number, line.data) for line in unit.lines], unit.problem is None


def parts(found: Survey, order=None) -> list[list[tuple]]:
    """Return the units of every part; the parts are read one by one in `order`."""
    units = Units(found)
    read = {part: [told(unit) for unit in units.read(part)] for part in order or range(found.parts)}
    units.close()
    return [read[part] for part in range(found.parts)]


def pinned(log: SurveyedInput) -> tuple:
    """Return what the plan says about an input."""
    return log.number, log.input.source, log.stat, log.digest, log.format


LINES = st.lists(st.sampled_from([b"", b" ", b"{}", b'{"a": 1}', b"x" * 30, b"y" * 1_200]), max_size=12)


@settings(max_examples=40)
@given(LINES, LINES, st.integers(1, 90), st.booleans(), st.integers(1, 30), st.booleans(), st.randoms())
def test_every_line_is_in_one_part_whatever_its_size(one, two, part_bytes, newline, limit, packed, rng):
    """No line is lost, doubled or cut at a border, and `--limit` takes the first lines, compressed or not."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, name) for name in ("one", "two")]
        for path, rows in zip(logs, (one, two), strict=True):
            data = b"\n".join(rows) + b"\n" * newline
            path.write_bytes(gzip.compress(data) if packed else data)
        whole = surveyed(Path(folder), *logs, part_bytes=1 << 40)
        expected = [unit for part in parts(whole) for unit in part]
        numbers = [(k, n) for k, rows in enumerate((one, two)) for n, row in enumerate(rows, 1) if row.strip()]
        assert [(k, read[0][0]) for k, _, read, _ in expected] == numbers
        found = surveyed(Path(folder), *logs, part_bytes=part_bytes)
        order = list(range(found.parts))
        rng.shuffle(order)
        assert [unit for part in parts(found, order) for unit in part] == expected
        first = surveyed(Path(folder), *logs, part_bytes=part_bytes, limit=limit)
        assert [unit for part in parts(first) for unit in part] == expected[:limit]


def test_a_part_is_about_as_large_as_asked(tmp_path):
    log = jsonl(tmp_path / "log.jsonl", *(chat("u" * 100, "a") for _ in range(1_000)))
    size = len(log.read_bytes())
    found = surveyed(tmp_path, log, part_bytes=size // 10)
    assert 9 <= found.parts <= 10
    assert max(map(len, parts(found))) <= 102


def test_small_inputs_share_a_part(tmp_path):
    logs = [jsonl(tmp_path / f"{i}.jsonl", chat("u", "a")) for i in range(9)]
    size = len(logs[0].read_bytes())
    assert [len(part) for part in parts(surveyed(tmp_path, *logs, part_bytes=4 * size))] == [4, 4, 1]


def test_a_border_in_a_large_block_needs_no_parsing(tmp_path, monkeypatch):
    """Lines may be longer than a block, and parts may begin in the middle of a block."""
    monkeypatch.setattr(index, "BLOCK", 7)
    rows = [b'{"n": %d}' % n for n in range(50)]
    log = jsonl(tmp_path / "log.jsonl", b"\n".join(rows))
    found = surveyed(tmp_path, log, part_bytes=24)
    assert [line for part in parts(found) for *_, read, _ in part for line in read] == [
        (n, row + b"\n" * (n < 50)) for n, row in enumerate(rows, 1)
    ]


@pytest.mark.parametrize("limit", [None, 1, 5])
def test_sessions_that_lie_all_over_the_log_are_spread_over_the_parts(tmp_path, limit):
    """The size of a part counts all lines of its sessions; otherwise the first part would have all sessions."""

    def record(session: int, turn: int) -> dict:
        return {"session_id": f"s{session}", "messages": [], "turn": turn, "response_text": "a" * 100}

    rows = [record(session, turn) for turn in range(10) for session in range(8)]
    log = jsonl(tmp_path / "log.jsonl", *rows)
    size = len(json.dumps(rows[0])) + 1
    found = surveyed(tmp_path, log, part_bytes=20 * size, log_format="openclaw_rl", limit=limit)
    sessions = [f"s{n}" for n in range(limit or 8)]
    assert [name for part in parts(found) for _, name, _, _ in part] == sessions
    assert [len(part) for part in parts(found)] == [2] * (len(sessions) // 2) + [1] * (len(sessions) % 2)
    assert all(len(read) == 10 for part in parts(found) for _, _, read, _ in part)


def test_ids_of_an_archive_that_breaks_off_are_read_up_to_there(tmp_path):
    """Records are copied while they are indexed; no record before the damage or of the next input may be lost."""
    messages = [{"role": "user", "content": "x"}]
    rows = [
        {"id": f"o{n}", "traceId": f"t{n}", "sessionId": f"s{n}", "type": "GENERATION", "input": messages,
         "output": {"role": "assistant", "content": str(n * 7919 % 10007)}}
        for n in range(4_000)
    ]  # fmt: skip
    jsonl(tmp_path / "b.jsonl", *rows[:3])
    data = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    (tmp_path / "a.jsonl.gz").write_bytes(data[: len(data) // 2])
    found = surveyed(tmp_path, tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl", part_bytes=1 << 40, log_format="langfuse")
    (units,) = parts(found)
    names = [name for _, name, _, whole in units if whole]
    assert names == [f"s{n}" for n in range(len(names))]
    assert 100 < len(names) < 4_000
    assert [len(read) for _, _, read, _ in units[:4]] == [2, 2, 2, 1]
    assert units[-1] == (0, None, [], False)


# -- shards ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Return a list that collects the names of the inputs that are digested."""
    names, digest = [], first_pass.digest_file
    monkeypatch.setattr(first_pass, "digest_file", lambda path: names.append(path.name) or digest(path))
    return names


def test_shards_share_the_inputs_between_them(tmp_path, read):
    """Each shard begins at a different input, and only looks up the inputs that another shard has read."""
    logs = [jsonl(tmp_path / f"{k}.jsonl", *(chat("u", f"a {k}", "v") for _ in range(5))) for k in range(4)]
    logs.append(jsonl(tmp_path / "unknown.jsonl", {"neither": "nor"}))
    alone = surveyed(tmp_path, *logs[:4], part_bytes=300)
    shards = [SharedSurvey(tmp_path / "shared", k, 3) for k in range(3)]
    for k in range(3):  # no other shard has read anything yet
        read.clear()
        surveyed(tmp_path, *logs[:4], part_bytes=300, shared=SharedSurvey(tmp_path / f"unread-{k}", k, 3))
        assert read == [f"{n % 4}.jsonl" for n in range(k, k + 4)]
    read.clear()
    found = [surveyed(tmp_path, *logs[:4], part_bytes=300, shared=shard) for shard in shards]
    assert read == ["0.jsonl", "1.jsonl", "2.jsonl", "3.jsonl"]
    for one in found:
        assert one.borders == alone.borders
        assert list(map(pinned, one.inputs)) == list(map(pinned, alone.inputs))
        assert parts(one) == parts(alone)


def test_what_changed_is_read_again(tmp_path, read):
    log = jsonl(tmp_path / "log.jsonl", chat("u", "a", "v"))
    shared = SharedSurvey(tmp_path / "shared", 0, 2)
    for expected in (1, 1):
        surveyed(tmp_path, log, part_bytes=90, shared=shared)
        assert len(read) == expected
    surveyed(tmp_path, log, part_bytes=91, shared=shared)
    with log.open("a") as handle:
        handle.write(json.dumps(chat("u", "b", "v")) + "\n")
    surveyed(tmp_path, log, part_bytes=90, shared=shared)
    assert len(read) == 3
    for path in shared.folder.iterdir():
        path.write_text("{")  # damaged
    assert surveyed(tmp_path, log, part_bytes=90, shared=shared).parts
    assert len(read) == 4


@pytest.mark.parametrize("log_format", ["auto", "pi"])
def test_what_is_set_aside_or_indexed_is_the_same_in_every_shard(tmp_path, log_format):
    (tmp_path / "logs").mkdir()
    jsonl(tmp_path / "logs" / "a.jsonl", chat("u", "a", "v"))
    jsonl(tmp_path / "logs" / "b.jsonl", {"type": "session", "id": "s"}, {"type": "message"}, {"type": "session"})
    (tmp_path / "logs" / "c.jsonl").write_text("no log\n")
    (tmp_path / "logs" / "empty.jsonl").touch()
    found = [
        surveyed(tmp_path, tmp_path / "logs", part_bytes=50, log_format=log_format, shared=shared)
        for shared in (None, *(SharedSurvey(tmp_path / "shared", k, 2) for k in range(2)))
    ]
    for one in found[1:]:
        assert one.borders == found[0].borders
        assert list(map(pinned, one.inputs)) == list(map(pinned, found[0].inputs))
        assert [str(i.problem) for i in one.inputs] == [str(i.problem) for i in found[0].inputs]
        assert parts(one) == parts(found[0])
