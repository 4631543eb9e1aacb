"""Tests of how a file's format is detected from its first lines."""

import json

import pytest
from fuzz.strategies import ANYTHING, RECORDS
from hypothesis import given
from hypothesis import strategies as st

from opdkit.chat.conversation import Unreadable
from opdkit.config.extract import FORMATS
from opdkit.extract.formats import READERS
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.reader import Line

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SHARE = {"conversations": [{"from": "human", "value": "hi"}]}
RECORD = {"session_id": "s", "messages": CHAT["messages"], "response_text": "a", "prompt_text": "p"}
SESSION = {"type": "session", "id": "s", "timestamp": "t"}
VOTES = {"session_id": "s", "turn": 1, "votes": []}


def of(*records) -> str:
    data = [r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records]
    return detect((Line("the.log", i, d) for i, d in enumerate(data, 1)))


def refused(*records) -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        of(*records)
    return caught.value


def test_every_format_of_the_command_line_has_a_reader():
    assert set(FORMATS) == {"auto", *READERS}
    assert all(READERS[name].name == name for name in READERS)


@pytest.mark.parametrize(("record", "name"), [
    (CHAT, "openai"), ({"traj": CHAT["messages"]}, "openai"), ({"conversations": CHAT["messages"]}, "openai"),
    (SHARE, "sharegpt"), (RECORD, "openclaw_rl"), (SESSION, "pi"),
    ({"type": "message", "message": {"role": "user", "content": []}}, "pi"),
])  # fmt: skip
def test_formats(record, name):
    assert of(record) == name
    assert of(b"// comment\n", b"{broken\n", record) == name
    assert [n for n, reader in READERS.items() if reader.recognises(record)] == [name]


def test_the_judge_s_votes_are_recognised_and_are_no_log():
    assert refused(VOTES, VOTES).reason == "judge votes, not a conversation"
    assert of(VOTES, RECORD) == "openclaw_rl"


@pytest.mark.parametrize("records", [(CHAT, SHARE), ({**CHAT, **SHARE},), (SESSION, CHAT)])
def test_two_formats_are_none(records):
    why = refused(*records)
    assert why.reason == "several formats"
    assert "--format" in why.detail


def test_a_field_that_first_appears_in_row_two_decides_too():
    """The first line alone does not say what a file is."""
    assert of({"id": 1}, CHAT) == "openai"


@pytest.mark.parametrize(("lines", "reason", "remedy"), [
    ([b"\xff\xfe{\x00}\x00\n"], "not UTF-8", "iconv"),
    ([b"a.jsonl" + bytes(250) + b"ustar" + bytes(250) + b"{}\n", CHAT], "no JSON lines", "tar file: unpack it"),
    ([b"\xfd7zXZ\0\x80\n"], "no JSON lines", "xz file: unpack it"),
    ([b"SQLite format 3\0\n"], "no JSON lines", "export its tables"),
    ([b"time,level\n", b"1,INFO\n"], "CSV, not JSON lines", "pandas.read_csv('FILE').to_parquet('NEW.parquet')"),
    ([b'"id"\t"a reply"\n'], "CSV, not JSON lines", r"read_csv('FILE', sep='\t')"),
    ([b"time level\n", b"1 INFO\n"], "no JSON lines", "line 1: not JSON"),
    ([b"{broken, here\n"], "no JSON lines", "line 1: not JSON"),
    (['{"messages": []}\n'.encode("utf-16-le")], "not UTF-8", "iconv -f UTF-16LE -t UTF-8"),
    (['{"messages": []}\n'.encode("utf-16-be")], "not UTF-8", "iconv -f UTF-16BE -t UTF-8"),
    (['{"text": "Grüße"}\n'.encode("cp1252")], "no JSON lines", "iconv -f WINDOWS-1252 -t UTF-8"),
    ([b"# only\n", b"# comments\n"], "no JSON lines", "comment"),
    ([], "no JSON lines", "blank"),
    ([{"level": "info", "message": "started"}], "unknown format", "keys level, message"),
])  # fmt: skip
def test_what_nobody_knows_says_what_to_do(lines, reason, remedy):
    why = refused(*lines)
    assert why.reason == reason
    assert remedy in why.detail


def test_only_the_beginning_is_read():
    def endless():
        number = 0
        while True:
            number += 1
            assert number <= 1_000
            yield Line("the.log", number, b"{broken\n" if number < 900 else json.dumps(CHAT).encode())

    assert detect(endless()) == "openai"


@given(st.one_of(*RECORDS.values()), st.data())
def test_no_record_breaks_a_reader_that_looks_at_it(record, data):
    """Every reader answers True or False to whether a record has its format, even if fields hold odd values."""
    if not isinstance(record, dict):
        return
    odd = data.draw(st.dictionaries(st.sampled_from([*record, "type", "span_id", "traceId"]), ANYTHING, max_size=3))
    for reader in READERS.values():
        assert reader.recognises(record | odd) in (True, False)


def test_qwen_code_s_records_are_not_taken_for_claude_code_s():
    record = {"uuid": "1", "parentUuid": None, "sessionId": "s", "type": "user"}
    assert of(record | {"message": {"role": "user", "content": "hi"}}) == "claude_code"
    assert refused(record | {"message": {"role": "user", "parts": [{"text": "hi"}]}}).reason == "unknown format"
