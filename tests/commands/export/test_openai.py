"""Tests of OpenAI's fine-tuning file: the client library's types accept it, and only turns to learn have weight 1."""

import json
from pathlib import Path
from typing import Any

import pytest
from judged_runs import message, session, turn, verdict, write_run
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import TypeAdapter

from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import TurnToExport
from opdkit.commands.export.targets import link_tool_calls
from opdkit.config.export import ExportConfig

MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])
TOOLS = TypeAdapter(list[ChatCompletionToolParam])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_weighted_replies_are_the_good_ones_and_no_others(
    run: Path, judged: dict[str, TurnToExport], tmp_path: Path
) -> None:
    summary = export(ExportConfig(run=run, to="openai", out=tmp_path / "ft.jsonl"))
    rows = lines(summary.where)
    good = [t for t in judged.values() if t.verdict["reward"] == 1]
    weighted = [m for row in rows for m in row["messages"] if m.get("weight")]
    assert len(weighted) == len(good) == summary.counters.rows_out
    assert [m.get("content") for m in weighted] == [t.session["messages"][t.index]["content"] for t in good]
    assert len(rows) == len({t.session["session_id"] for t in good}) == summary.counters.total("conversations")


def test_the_client_library_knows_every_message_and_tool(run: Path, tmp_path: Path) -> None:
    """The library's request types accept every message, apart from `weight`, which only fine-tuning files have."""
    rows = lines(export(ExportConfig(run=run, to="openai", out=tmp_path / "ft.jsonl")).where)
    calls = 0
    for row in rows:
        assert row["messages"][-1]["weight"] == 1, "nothing is uploaded after the last reply to learn"
        for m in row["messages"]:
            assert ("weight" in m) == (m["role"] == "assistant")
            for call in m.get("tool_calls", []):
                assert isinstance(call["function"]["arguments"], str), "here a call's arguments are text"
                calls += 1
        MESSAGES.validate_python([{k: v for k, v in m.items() if k != "weight"} for m in row["messages"]])
        TOOLS.validate_python(row.get("tools", []))
    assert calls > 5


CALL = {"id": "c1", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([message("assistant", None, tool_calls=[CALL]), message("tool", "x", tool_call_id="c2")],
         "a tool result without its call"),
        ([message("tool", "x", tool_call_id="c1")], "a tool result without its call"),
        ([message("assistant", None, tool_calls=[CALL]), message("user", "x")], "a tool call without its result"),
        ([message("assistant", None, tool_calls=[CALL | {"id": ""}]), message("tool", "x")], None),
        ([message("assistant", None, tool_calls=[CALL, CALL]), message("tool", "x", tool_call_id="c1")],
         "tool calls that share an id"),
        ([message("assistant", None, tool_calls=[CALL]), message("tool", "x", tool_call_id="c1")], None),
    ],
)  # fmt: skip
def test_calls_that_openai_would_refuse(messages: list[dict[str, Any]], reason: str | None, tmp_path: Path) -> None:
    good = session("good", message("user", "hi"), message("assistant", "ho"))
    talk = session("a", message("user", "go"), *messages, message("assistant", "done"))
    last = f"a:{len(messages) + 1}"
    written = write_run(tmp_path / "run", [([good, talk], [turn("good:1"), turn(last)],
                                            [verdict("good:1", None, 1), verdict(last, None, 1)])])  # fmt: skip
    counters = export(ExportConfig(run=written, to="openai")).counters
    assert dict(counters.dropped) == ({reason: 1} if reason else {})


def test_calls_without_ids_are_linked_in_their_order() -> None:
    """ShareGPT logs have no ids, but OpenAI requires an id on every call and result."""
    nameless = [CALL | {"id": "", "name": name} for name in "fg"]
    talk = [message("user", "go"), message("assistant", None, tool_calls=nameless), message("tool", "of f"),
            message("tool", "of g"), message("assistant", None, tool_calls=[nameless[0]])]  # fmt: skip
    found, broken = link_tool_calls(talk)
    assert broken == ""
    assert [c["id"] for m in found for c in m["tool_calls"]] == ["call_0", "call_1", "call_2"]
    assert [m["tool_call_id"] for m in found if m["role"] == "tool"] == ["call_0", "call_1"]
    assert link_tool_calls([*talk, message("tool", "of f"), message("tool", "of none")]) == (
        link_tool_calls([*talk, message("tool", "of f")])[0], "a tool result without its call"
    )  # fmt: skip


def test_thinking_has_no_place_in_the_file_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies = [
        message("assistant", "ho", reasoning="Greet back."),
        message("assistant", "Greet back.</think>\n\nho"),
        message("assistant", "<think>Greet back.</think>ho"),
        message("assistant", "<think>Greet back."),
    ]
    said = [one for reply in replies for one in (message("user", "<think>hi</think>"), reply)]
    ids = [f"a:{n}" for n in (1, 3, 5, 7)]
    written = write_run(tmp_path / "run", [([session("a", *said)], [turn(i) for i in ids],
                                            [verdict(i, None, 1) for i in ids])])  # fmt: skip
    summary = export(ExportConfig(run=written, to="openai"))
    assert "3 replies without the thinking" in summary.text()
    assert dict(summary.counters.dropped) == {"nothing but thinking": 1}
    (line,) = lines(summary.where)
    assert [m["content"] for m in line["messages"]] == ["<think>hi</think>", "ho"] * 3
    assert "10" in capsys.readouterr().err


def test_names_that_openai_takes_are_kept(tmp_path: Path) -> None:
    said = [message("user", "hi", name="ann"), message("assistant", "ho", name="helper-2"),
            message("user", "hi", name="Ann Smith"), message("assistant", "ho")]  # fmt: skip
    talk = ([session("a", *said)], [turn("a:3")], [verdict("a:3", None, 1)])
    (line,) = lines(export(ExportConfig(run=write_run(tmp_path / "run", [talk]), to="openai")).where)
    assert [m.get("name") for m in line["messages"]] == ["ann", "helper-2", None, None]
