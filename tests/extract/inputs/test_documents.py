"""Tests of JSON that is not in lines: arrays, and objects over several lines, are read record by record."""

import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import chat, jsonl, run, tables

from opdkit.errors import ConfigError
from opdkit.extract.inputs import documents
from opdkit.extract.inputs.documents import MESSAGES, OBJECTS, DocumentReader
from opdkit.extract.inputs.files import find_documents
from opdkit.store.reading import count_parts, read_all, read_part

TEXT = st.text(st.sampled_from('ab"\\{}[],: \n\u00e9\ud7ff'), max_size=8)
VALUE = st.recursive(
    st.one_of(TEXT, st.integers(-9, 9), st.none()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(TEXT, VALUE, max_size=3), max_size=5)
CHATS = [chat(f"u{n}", f'a "{n}" {{[\\', "v", n=n) for n in range(6)]


TALK = [{"role": "user", "content": [{"type": "text", "text": "a ]\n"}]}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}]  # fmt: skip


def converted(data: bytes, block: int = 1 << 16, kind: str = OBJECTS) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_BLOCK", block)
        return (
            io.BufferedReader(DocumentReader(io.BufferedReader(io.BytesIO(data)), kind))
            .read()
            .splitlines(keepends=True)
        )


def lines_of(data: bytes, block: int = 1 << 16) -> list[bytes]:
    """Return the converted lines, split only at line feeds, as JSON lines are."""
    return [line for line in b"".join(converted(data, block)).split(b"\n") if line]


@settings(deadline=None)
@given(RECORDS, RECORDS, st.sampled_from([None, 0, 2]), st.booleans(), st.integers(1, 40))
def test_every_record_is_found_wherever_the_blocks_end(one, two, indent, ascii_only, block):
    """Records may be in one array, in two, or one after the other, with quotes, brackets and backslashes in texts."""

    def text(value) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ascii_only)

    for joined in (text(one + two), text(one) + "\n" + text(two), "".join(map(text, one + two))):
        assert [json.loads(line) for line in lines_of(joined.encode(), block)] == one + two


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
@pytest.mark.parametrize(("data", "expected"), [
    (b'\xef\xbb\xbf[{"a": 1},\r\n{"b": [{}]}]\n', [b'{"a": 1}', b'{"b": [{}]}']),
    (b'[null, "x, {", {"a": 1}, 2]', [b"null", b'"x, {"', b'{"a": 1}', b"2"]),
    (b'[{"a": 1}, "x\\", [", 3, {"a": 2}]', [b'{"a": 1}', b'"x\\", ["', b"3", b'{"a": 2}']),
    (b'[{"a" 1}, {"b": }, {"c": 3}]', [b'{"a" 1}', b'{"b": }', b'{"c": 3}']),
    (b'{"a": 1}}} {"b": 2}', [b'{"a": 1}', b"}}", b'{"b": 2}']),
    (b'[[{"a": 1}], [{"b": 2}]]', [b'{"a": 1}', b'{"b": 2}']),
    (b'[{"a": 1}, {"b": [1, "}', [b'{"a": 1}', b'{"b": [1, "}']),
    (b'[{"a": "\\\\"}, {"b": "\\\\\\""}]', [b'{"a": "\\\\"}', b'{"b": "\\\\\\""}']),
    (b"[]", []),
    (b"", []),
])  # fmt: skip
def test_what_is_malformed_costs_itself(data, expected, block):
    assert lines_of(data, block) == expected


def test_a_record_that_is_cut_short_has_no_line_end():
    assert converted(b'[{"a": 1}, {"b"') == [b'{"a": 1}\n', b'{"b"']


def test_memory_grows_neither_with_the_file_nor_with_a_record():
    """Less than 4 MB is held while 10 MB of small records and then one record of 10 MB are read."""
    small = json.dumps([{"text": "x" * 500}] * 20_000)[:-1]
    handle = io.BufferedReader(io.BytesIO((small + ', {"text": "' + "\\n" * 5_000_000 + '"}]').encode()))
    reader, size = DocumentReader(handle), 0
    tracemalloc.start()
    while block := reader.read(1 << 16):
        size += len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 20_000_000
    assert peak < 4_000_000


@pytest.mark.parametrize(("data", "expected"), [
    (b'{"a": 1}\n{"a": 2}\n', False),
    (b'\n \n{"a": 1}\n', False),
    (b'[{"a": 1}, {"a": 2}]', True),
    (b'[\n{"a": 1},\n{"a": 2}\n]\n', True),
    (b'[\n{"a": 1}\n]\n', True),
    (b'[{"a" 1}, {"a": 2}]', True),
    (b'{\n  "a": 1\n}\n{\n  "a": 2\n}\n', True),
    (b'{ "a": [\n  {"b": 1}\n]}\n', True),
    (b'{"a": 1,\n"b": 1}{"a": 2}\n', True),
    (b"[]\n", True),
    (b"[\n]\n", True),
    (b'[{"a": 1},\n{"a": 2}]\n', True),
    (b'{"a": [\n{"b": 1},\n{"b": 2}\n]}\n{"a": [\n{"b": 1}\n]}\n', True),
    (b'{"a": 1}{"a": 2}\n{"a": 3}{"a": 4}\n', True),
    (b'{"a": 1} {"a": 2}', True),
    # JSON lines whose first line is damaged or not a record
    (b'{\n{"a": 1}\n{"a": 2}\n', False),
    (b'[\n{"a": 1}\n{"a": 2}\n', False),
    (b'[{"a": 1}]\n{"a": 2}\n', False),
    (b'[{"a": 1}]\n[{"a": 2}]\n', False),
    (b'[[], []]\n{broken\n', False),
    (b'{"a": 1}{"a": 2}\n{"a": 3}\n', False),
    (b'[{"a": [\n{broken}\n', False),
    (b'{"a": "cut of\n{"a": 2}\n', False),
    (b'{"a": [{"b": "cut of\n{"a": 2}\n{"a": "}}"}\n', False),
    (b'{broken}\n{"a": 2}\n', False),
    (b'[1]\n{"a": 2}\n', False),
    (b'[INFO] 12:00 "started"\n{"a": 2}\n', False),
    (b'# comment\n{"a": 2}\n', False),
    (b"a,b\n1,2\n", False),
    (b"", False),
])  # fmt: skip
def test_json_lines_are_told_from_documents_by_their_first_record(tmp_path, data, expected):
    for name, content in (("log", data), ("log.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(content)
        assert find_documents(tmp_path / name, 1_000) == (OBJECTS if expected else "")


def test_a_line_that_is_too_long_does_not_hide_an_array(tmp_path):
    (tmp_path / "array.json").write_text(json.dumps(CHATS * 50))
    assert find_documents(tmp_path / "array.json", 1_000)


@pytest.mark.parametrize(("array", "expected"), [
    (TALK, MESSAGES), ([{"role": "user", "parts": [], "id": "1"}], MESSAGES), ([{"role": "user", "ts": 1}], MESSAGES),
    ([*TALK, {"type": "reasoning", "summary": [], "encrypted_content": "x"}], MESSAGES),
    ([{"role": "user"}], OBJECTS), ([TALK, TALK], OBJECTS),
    ([message | {"session": "s"} for message in TALK], OBJECTS),  # --map reads these
    ([TALK[0], {"type": "message", "role": "assistant", "content": []}], OBJECTS),
])  # fmt: skip
def test_an_array_of_messages_is_told_from_one_of_records(tmp_path, array, expected):
    for indent in (None, 1):
        (tmp_path / "log").write_text(json.dumps(array, indent=indent))
        assert find_documents(tmp_path / "log", 1_000) == expected


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
def test_an_array_of_messages_is_a_record(block):
    data = json.dumps(TALK, indent=1).encode()
    assert [json.loads(line) for line in b"".join(converted(data * 2, block, MESSAGES)).split(b"\n") if line] == [
        {"messages": TALK}
    ] * 2
    assert converted(data[:-9], block, MESSAGES)[-1:] != [b"}\n"]


# -- through the whole stage ----------------------------------------------------------------------------------------


def as_array(records) -> str:
    return json.dumps(records)


def as_pretty_array(records) -> str:
    return json.dumps(records, indent=2, ensure_ascii=False)


def as_record_per_line(records) -> str:
    return "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n"


def as_pretty_documents(records) -> str:
    return "\n".join(json.dumps(record, indent=4) for record in records)


WRITE = [as_array, as_pretty_array, as_record_per_line, as_pretty_documents]


def rows_of(folder: Path) -> dict:
    """Return the tables, with the same name for every input."""
    found = tables(folder)
    return json.loads(
        json.dumps(found).replace("log.json.gz", "log").replace("log.jsonl", "log").replace("log.json", "log")
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("write", WRITE)
def test_records_give_the_rows_of_json_lines(tmp_path, write, packed):
    """This holds for a compressed file, for any number of parts, and if shards compute the parts."""
    run(tmp_path / "expected", jsonl(tmp_path / "log.jsonl", *CHATS))
    data = write(CHATS).encode()
    log = tmp_path / ("log.json.gz" if packed else "log.json")
    log.write_bytes(gzip.compress(data) if packed else data)
    run(tmp_path / "whole", log)
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "expected")
    for shard in ("1/2", "0/2"):
        run(tmp_path / "parts", log, part_mb=200e-6, shard=shard)
    assert count_parts(tmp_path / "parts", "extract") >= 3
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "expected")
    run(tmp_path / "limited", log, limit=2)
    assert [s["line"] for s in read_all(tmp_path / "limited", "sessions")] == [1, 2]


USER = [{"role": "user", "content": "u"}]
BY_ID = {
    "openclaw_rl": [{"session_id": f"s{n % 2}", "turn": n, "messages": [{"role": "user", "content": f"u{n}"}],
                     "response_text": f"a{n}", "next_state": {"role": "user", "content": "v"}} for n in range(4)],
    "pi": [{"type": "session", "id": "s", "timestamp": "t"}, *(
        {"type": "message", "message": {"role": role, "content": text}}
        for role, text in (("user", "u"), ("assistant", "a"), ("user", "v")))],
    "langfuse": [{"id": f"o{n}", "traceId": f"t{n}", "sessionId": f"s{n}", "type": "GENERATION", "input": USER,
                  "output": {"role": "assistant", "content": f"a{n}"}} for n in range(3)],
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", BY_ID)
def test_sessions_of_several_records_are_assembled(tmp_path, name, packed):
    run(tmp_path / "expected", jsonl(tmp_path / "log.jsonl", *BY_ID[name]))
    data = as_pretty_array(BY_ID[name]).encode()
    log = tmp_path / ("log.json.gz" if packed else "log.json")
    log.write_bytes(gzip.compress(data) if packed else data)
    for folder, options in (("auto", {}), ("named", {"format": name})):
        run(tmp_path / folder, log, **options)
        assert rows_of(tmp_path / folder) == rows_of(tmp_path / "expected")


@pytest.mark.parametrize("write", [as_array, as_pretty_array, as_record_per_line])
def test_an_array_of_messages_is_one_conversation(tmp_path, write):
    jsonl(tmp_path / "log.jsonl", {"messages": TALK})
    (tmp_path / "log.json").write_text(write(TALK))
    for name in ("log.jsonl", "log.json"):
        run(tmp_path / name[4:], tmp_path / name)
    assert rows_of(tmp_path / "json") == rows_of(tmp_path / "jsonl")
    assert [t["trainable"] for t in tables(tmp_path / "json")["turns"]] == [True]


def test_a_malformed_record_is_rejected_with_its_number(tmp_path):
    texts = [json.dumps(record, indent=1) for record in CHATS]
    texts[2] = texts[2].replace(":", " ", 1)
    texts.insert(4, "null")
    (tmp_path / "log.json").write_text("[" + ",\n".join(texts) + "]")
    run(tmp_path / "run", tmp_path / "log.json")
    found = tables(tmp_path / "run")
    assert [s["line"] for s in found["sessions"]] == [1, 2, 4, 6, 7]
    assert [(r["line"], r["reason"]) for r in found["rejected"]] == [(3, "not JSON"), (5, "not a JSON object")]


def test_an_array_that_is_cut_off_is_read_up_to_there(tmp_path):
    (tmp_path / "log.json").write_text(as_array(CHATS)[:-40])
    run(tmp_path / "run", tmp_path / "log.json")
    found = tables(tmp_path / "run")
    assert [s["line"] for s in found["sessions"]] == [1, 2, 3, 4, 5]
    assert [(r["line"], r["reason"]) for r in found["rejected"]] == [(6, "last line cut short")]


def test_folders_mix_lines_arrays_and_single_documents(tmp_path, capsys):
    """Many exports have one file per conversation; a file that is not a log is set aside and counted."""
    logs = tmp_path / "logs"
    jsonl(logs / "a.jsonl", *CHATS[:2])
    (logs / "b.json").write_text(as_array(CHATS[2:4]))
    (logs / "c.json").write_text(json.dumps(CHATS[4], indent=2))
    (logs / "d.json.gz").write_bytes(gzip.compress(json.dumps(CHATS[5]).encode()))
    (logs / "empty.json").write_text("[]")
    (logs / "other.json").write_text(json.dumps([{"title": "t", "pages": {}}], indent=1))
    summary = run(tmp_path / "run", logs)
    ids = [s["session_id"] for s in read_all(tmp_path / "run", "sessions")]
    assert ids == ["a:1", "a:2", "b:1", "b:2", "c:1", "d:1"]
    (rejected,) = read_all(tmp_path / "run", "rejected")
    assert (Path(rejected["source"]).name, rejected["line"], rejected["reason"]) == (
        "other.json",
        0,
        "unknown format",
    )
    assert summary.counters.dropped == {"unknown format": 1}
    said = capsys.readouterr().err
    assert "other.json: set aside: unknown format" in said
    assert "empty.json: empty" in said


@pytest.mark.parametrize("write", [as_array, as_pretty_array])
def test_an_array_of_unknown_records_names_their_keys(tmp_path, write):
    (tmp_path / "chats.json").write_text(write([{"id": "1", "user_id": "2", "title": "t", "chat": {}}] * 3))
    with pytest.raises(ConfigError, match=r"chats\.json: unknown format .*chat, id, title, user_id.*--map"):
        run(tmp_path / "run", tmp_path / "chats.json")


def test_a_dry_run_shows_records(tmp_path, capsys):
    (tmp_path / "log.json").write_text(as_pretty_array(CHATS * 200))
    run(tmp_path / "run", tmp_path / "log.json", dry_run=True)
    said = capsys.readouterr().out
    assert "log.json: openai, the first 1,000 lines" in said
    assert "sessions  1,000" in said


def test_parts_of_many_small_documents_are_filled(tmp_path):
    """A part holds several small files, until their sizes add up to the size of a part."""
    for n in range(20):
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "logs" / f"{n:02}.json").write_text(json.dumps(CHATS[0], indent=2))
    size = len(json.dumps(CHATS[0]))
    run(tmp_path / "run", tmp_path / "logs", part_mb=6 * size / 1e6)
    counts = [len(read_part(tmp_path / "run", "sessions", k)) for k in range(count_parts(tmp_path / "run", "extract"))]
    assert sum(counts) == 20
    assert 2 <= max(counts) <= 6
