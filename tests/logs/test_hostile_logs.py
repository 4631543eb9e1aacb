"""Random logs of every format, valid, almost valid and hostile: never a crash, and every line is accounted for."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdkit import extract
from opdkit.errors import OpdkitError
from opdkit.logs import READERS
from opdkit.stages import ExtractConfig
from opdkit.store import Counters, read_all, read_counters

TEXT = st.sampled_from(
    ["", " ", "hi", "no, the other", "<think>hm</think>ok", "<tool_call>{", "\x00", "é\u2028", "\ud800"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


def mostly(good):
    """A value of the right shape nineteen times out of twenty, anything at all otherwise."""
    return st.integers(0, 19).flatmap(lambda n: ANYTHING if n == 19 else good)


def some(**fields):
    """An object with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def whole(**fields):
    return st.fixed_dictionaries(fields)


BLOCK = some(type=st.sampled_from(["text", "image_url", "tool_result", "tool_use", "thinking", "toolCall", "odd"]),
             text=mostly(TEXT), thinking=mostly(TEXT), id=mostly(TEXT), name=mostly(TEXT), content=mostly(TEXT),
             arguments=mostly(st.just({"a": 1})), input=ANYTHING)  # fmt: skip
CONTENT = mostly(TEXT | st.none() | st.lists(BLOCK | TEXT, max_size=3))
CALL = some(id=mostly(TEXT), function=mostly(whole(name=mostly(TEXT), arguments=mostly(TEXT))), name=mostly(TEXT))
ROLE = mostly(st.sampled_from(["user", "assistant", "system", "tool", "developer", "function"]))
MESSAGE = mostly(st.builds(dict.__or__, whole(role=ROLE, content=CONTENT), some(
    tool_calls=mostly(st.lists(CALL, max_size=2)), name=mostly(TEXT), tool_call_id=mostly(TEXT),
    reasoning_content=mostly(TEXT), function_call=mostly(CALL), finish_reason=mostly(st.just("length")),
    logprobs=mostly(st.lists(st.floats(max_value=0), max_size=2)),
    token_ids=mostly(st.lists(st.integers(0, 9), max_size=2)))))  # fmt: skip
MESSAGES = mostly(st.lists(MESSAGE, max_size=5))
OPENAI = st.builds(dict.__or__, whole(messages=MESSAGES), some(
    model=mostly(TEXT), tools=ANYTHING, reward=ANYTHING, turn_type=mostly(st.just("side")), choices=mostly(
        st.lists(mostly(some(message=MESSAGE, finish_reason=ANYTHING, logprobs=ANYTHING)), max_size=1))))  # fmt: skip
SHAREGPT = st.builds(dict.__or__, whole(conversations=mostly(st.lists(mostly(some(
    **{"from": mostly(st.sampled_from(["human", "gpt", "system", "function_call", "observation"]))}, value=CONTENT)),
    max_size=5))), some(tools=ANYTHING, system=mostly(TEXT), id=ANYTHING))  # fmt: skip
RECORD = st.builds(dict.__or__, whole(session_id=mostly(TEXT), messages=MESSAGES, response_text=mostly(TEXT)), some(
    turn=mostly(st.integers(1, 3)), prompt_text=mostly(TEXT), tool_calls=mostly(st.none() | st.lists(CALL, max_size=2)),
    next_state=mostly(MESSAGE), votes=ANYTHING))  # fmt: skip
IDENT = st.sampled_from(["a", "b", "c", "d"])
KIND = st.sampled_from(["message", "message", "session", "compaction", "custom_message", "branch_summary", "label"])
PI_ROLE = st.sampled_from(["user", "assistant", "toolResult", "bashExecution", "custom"])
EVENT = st.builds(dict.__or__, whole(type=mostly(KIND)), some(
    id=mostly(IDENT), parentId=mostly(IDENT | st.none()), timestamp=TEXT, modelId=mostly(TEXT), summary=mostly(TEXT),
    content=CONTENT, message=mostly(whole(role=mostly(PI_ROLE), content=CONTENT))))  # fmt: skip
RECORDS = {"openai": OPENAI, "sharegpt": SHAREGPT, "openclaw_rl": RECORD, "pi": EVENT}
BOM = b"\xef\xbb\xbf"
JUNK = st.sampled_from([b"# comment", b"", b" \t", b"{", b"[]", b"null", b'{"a": NaN}', b"\xff\xfe", b"{}{}", BOM,
                        b'{"messages":' + b"[" * 2_000, b'{"a":1,"a":2}'])  # fmt: skip


def as_line(record) -> bytes:
    return json.dumps(record).encode()


@pytest.mark.parametrize("name", list(READERS))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_never_a_crash_and_every_line_accounted_for(name, data):
    """pitfall 22, over random logs: what is not in one table is in the other."""
    rows = data.draw(st.lists(RECORDS[name].map(as_line) | JUNK, min_size=1, max_size=8))
    size = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as folder:
        log, run = Path(folder, "log.jsonl"), Path(folder, "run")
        log.write_bytes(b"\n".join(rows))
        try:
            extract.run(ExtractConfig(run=run, logs=(str(log),), format=name, part_mb=size * 1e-4))
        except OpdkitError as error:  # little was readable, or nothing trainable: said after the parts are written
            if "nothing to read" in str(error):
                return
        found = {table: list(read_all(run, table)) for table in ("sessions", "turns", "rejected")}
        total = Counters()
        for path in sorted((run / "extract" / "sessions").iterdir()):
            total.merge(read_counters(path))
    numbers = {
        i for i, row in enumerate(rows, 1) if (row.removeprefix(b"\xef\xbb\xbf") if i == 1 else row).strip(b" \t\r")
    }
    told, aside = found["sessions"], [r["line"] for r in found["rejected"]]
    assert len({s["session_id"] for s in told}) == len(told)
    assert sum(total.dropped.values()) == len(aside)
    if READERS[name].grouping == "line":
        assert sorted([s["line"] for s in told] + aside) == sorted(numbers)
    elif name == "openclaw_rl":
        recorded = {r["line"] for s in told for r in json.loads(s["metadata"])["records"]}
        assert recorded | set(aside) == numbers
        assert not recorded & set(aside)
    assert set(aside) <= numbers
    replies = sum(m["role"] == "assistant" for s in told for m in s["messages"])
    assert len(found["turns"]) == replies == total.extra["turns"]
    assert total.rows_in >= total.extra["log sessions unread"]
    for turn in found["turns"]:
        assert turn["trainable"] == (turn["skip_reason"] is None)
