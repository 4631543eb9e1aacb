"""Tests of opdkit/extract/formats/json_lines.py, which reads one line of JSON, clean or damaged."""

import contextlib
import json
import math
import traceback

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.chat.conversation import Unreadable
from opdkit.chat.messages import dump
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import Line, Rejected


def read(data: bytes) -> dict:
    return parse(Line("log", 1, data))


def reason(data: bytes) -> str:
    with pytest.raises(Unreadable) as caught:
        read(data)
    return caught.value.reason


@pytest.mark.parametrize(("data", "value"), [
    (b'{"a": 1}\n', {"a": 1}),
    (b'{"a": 1}\r\n', {"a": 1}),
    (b'  {"a": 1}', {"a": 1}),
    (b'\xef\xbb\xbf{"a": 1}\n', {"a": 1}),
    (b'{"a": 1, "a": 2}', {"a": 2}),
    (b'{"a": [Infinity, -Infinity, NaN], "NaN": "-Infinity"}', {"a": [None] * 3, "NaN": "-Infinity"}),
    (b'{"a": "\\ud800x"}', {"a": "\ufffdx"}),
    (b'{"\\udc00": "\\ud83d\\ude00"}', {"\ufffd": "\U0001f600"}),
    (b'{"a": "\\uD83D\\ud83d\\uDE00\\ude00"}', {"a": "\ufffd\U0001f600\ufffd"}),
    (b'{"a": "\\\\ud800\\\\\\ud800"}', {"a": "\\ud800\\\ufffd"}),
])  # fmt: skip
def test_what_logs_contain_all_the_same(data, value):
    """CRLF, a byte-order mark, duplicate keys (the last counts), Infinity and lone surrogates are accepted."""
    read_value = read(data)
    assert read_value == value
    json.dumps(read_value, ensure_ascii=False).encode()  # no surrogate is left for the Parquet writer


def test_nan_is_null():
    """JSON has no NaN and no infinity, so both become null when read and when written."""
    assert read(b'{"a": NaN}') == {"a": None}
    assert dump({"a": [math.nan, math.inf, 1.5]}) == '{"a":[null,null,1.5]}'


@pytest.mark.parametrize(("data", "why"), [
    (b"# a comment\n", "comment line"),
    (b"  // a comment\n", "comment line"),
    (b'{"a": "\xff"}\n', "not UTF-8"),
    (b'{"a": "\xed\xa0\x80"}\n', "not UTF-8"),
    (b"[1, 2]\n", "not a JSON object"),
    (b'"text"\n', "not a JSON object"),
    (b"null\n", "not a JSON object"),
    (b"{'a': 1}\n", "not JSON"),
    (b'{"a": 1} {"b": 2}\n', "not JSON"),
    (b'{"a": \n', "not JSON"),
    (b'{"a": ', "last line cut short"),
    (b'{"a": ' + b"1" * 5_000 + b"}x\n", "not JSON"),
    (b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}\n", "nested too deeply"),
    (b'{"a": ' * 10_000 + b"1" + b"}" * 10_000 + b"\n", "nested too deeply"),
])  # fmt: skip
def test_what_cannot_be_read_has_a_constant_reason(data, why):
    """Comment lines, invalid UTF-8, a truncated last line and 10,000 levels of nesting are refused with a reason."""
    assert reason(data) == why


def test_deep_values_are_refused_where_they_are_written():
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(Unreadable, match="nested too deeply"):
        dump(deep)


def test_a_problem_of_the_line_is_its_problem():
    with pytest.raises(Unreadable, match="line too long"):
        parse(Line("log", 1, b"{}", Unreadable("line too long")))


def test_a_problem_that_many_lines_share_does_not_hold_them_in_memory():
    """All rows of a damaged Parquet page share one exception, which keeps every frame that it was raised through."""
    problem = Unreadable("damaged rows")
    for number in range(10):
        with contextlib.suppress(Unreadable):
            parse(Line("log", number, b"", problem))
    frames = list(traceback.walk_tb(problem.__traceback__))
    assert len(frames) <= 2


def test_a_rejected_row_holds_at_most_two_thousand_characters():
    row = Line("log", 4, "é".encode() * 3_000 + b"\xff\n").reject(Unreadable("not JSON", "d" * 9_000)).row()
    assert row == {"source": "log", "line": 4, "reason": "not JSON", "detail": "d" * 2_000, "raw": "é" * 2_000}
    assert Rejected("log", 1, "r", "\ud800", b"a\xff\r\n").row()["raw"] == "a\ufffd"
    assert Rejected("log", 1, "r", "\ud800").row()["detail"] == "?"


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans())
def test_whatever_json_a_logger_writes_is_read(value, ascii_only):
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        data.decode()
    except UnicodeDecodeError:  # a lone surrogate, which is not valid UTF-8
        assert reason(data) == "not UTF-8"
    else:
        orjson.loads(dump(read(data)))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    known = {"not JSON", "not UTF-8", "not a JSON object", "last line cut short", "comment line"}
    try:
        outcome = {type(read(data))}
    except Unreadable as why:
        outcome = {why.reason}
    assert outcome <= known | {dict}


def test_a_line_with_more_values_than_text_is_refused_and_text_full_of_commas_is_not():
    """30 MB of "[],[],[]" would become 900 MB of objects; a table in a tool's output is one string value."""
    assert reason(b'{"a": [' + b"[]," * 600_000 + b"1]}") == "too many values"
    assert reason(b'{"a": [' + b'{"b":1},' * 300_000 + b"1]}") == "too many values"
    table = '1,2,[3],{4},\\"5\\",\n' * 200_000
    assert len(read(orjson.dumps({"a": table}))["a"]) == len(table)
    ids = list(range(100_000, 500_000))
    assert read(orjson.dumps({"response_token_ids": ids}))["response_token_ids"] == ids
    top = {"token": " the", "logprob": -0.123456, "bytes": [32, 116, 104, 101]}
    assert len(read(json.dumps({"logprobs": [top] * 120_000}).encode())["logprobs"]) == 120_000


def test_depth_is_refused_at_the_same_level_wherever_the_stack_stands():
    """A line must not be readable in one process and too deep in another."""
    fits, deeper = ("[" * n + "NaN" + "]" * n for n in (250, 260))

    def under(frames: int, text: str) -> str | None:
        if frames:
            return under(frames - 1, text)
        try:
            dump(read(f'{{"a": {text}}}'.encode()))
        except Unreadable as why:
            return why.reason
        return None

    assert [under(frames, fits) for frames in (0, 200)] == [None, None]
    assert [under(frames, deeper) for frames in (0, 200)] == ["nested too deeply"] * 2
