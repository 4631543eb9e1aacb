"""Tests of held-out prompts: what a row may hold, what is wrong with it and where, and which replies pass."""

import json
from pathlib import Path
from typing import Any

import pytest

from opdkit.errors import ConfigError
from opdkit.evaluate.checks import Criterion, Patterns, read_prompts
from opdkit.judge.votes import choose_reward

GOOD = {"id": "a", "domain": "dates", "prompt": "When?", "check": {"match": [r"\d{4}"]}}


def prompts_file(tmp_path: Path, *rows: Any) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows), "utf-8")
    return path


def test_prompts_and_messages_become_messages_of_the_tables(tmp_path) -> None:
    chat = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    tools, check = [{"type": "function"}], {"judge": "Short."}
    other = {"id": "b", "domain": "tone", "messages": chat, "tools": tools, "check": check, "note": "left alone"}
    one, two = read_prompts(prompts_file(tmp_path, "\ufeff" + json.dumps(GOOD), "", other))
    assert [m["content"] for m in one.messages] == ["When?"]
    assert [(m["role"], m["content"]) for m in two.messages] == [("system", "Be short."), ("user", "Hi")]
    assert json.loads(two.tools) == [{"type": "function"}]
    assert isinstance(one.check, Patterns)
    assert two.check == Criterion("Short.")
    assert [p.id for p in read_prompts(prompts_file(tmp_path, GOOD, other), limit=1)] == ["a"]


def test_a_line_separator_inside_a_text_is_no_new_line(tmp_path) -> None:
    """A text in JSON may hold U+2028 unescaped."""
    (prompt,) = read_prompts(prompts_file(tmp_path, GOOD | {"prompt": "one\u2028two"}))
    assert prompt.messages[0]["content"] == "one\u2028two"


def test_an_array_is_read_as_lines_are(tmp_path) -> None:
    """The array may be indented or in one line; an error names the record."""
    rows = [GOOD, GOOD | {"id": "b"}]
    lines = read_prompts(prompts_file(tmp_path, *rows))
    for indent in (None, 1):
        assert read_prompts(prompts_file(tmp_path, json.dumps(rows, indent=indent))) == lines
    for text, words in (('[{"prompt": ""}]', "record 1"), (json.dumps(rows)[:-2], "JSON array"), ("[]", "no prompts")):
        with pytest.raises(ConfigError, match=words):
            read_prompts(prompts_file(tmp_path, text))


def test_id_and_domain_may_be_left_out(tmp_path) -> None:
    """A row of the README has only a prompt and a check."""
    bare = {key: GOOD[key] for key in GOOD if key not in ("id", "domain")}
    found = read_prompts(prompts_file(tmp_path, bare, bare))
    assert [(p.id, p.domain) for p in found] == [("line-1", "prompts"), ("line-2", "prompts")]


def test_what_the_logs_correct_may_be_said(tmp_path) -> None:
    rows = [GOOD, GOOD | {"id": "b", "corrected": True}, GOOD | {"id": "c", "corrected": False}]
    found = read_prompts(prompts_file(tmp_path, *rows))
    assert [p.corrected for p in found] == [None, True, False]
    assert [p.domains() for p in found] == [
        ("all", "dates"), ("all", "corrected", "dates"), ("all", "uncorrected", "dates"),
    ]  # fmt: skip


def test_prompts_may_name_their_session(tmp_path) -> None:
    found = read_prompts(prompts_file(tmp_path, GOOD, GOOD | {"id": "b", "session": "log:7"}))
    assert [p.session for p in found] == [None, "log:7"]


def test_a_field_that_looks_misspelt_is_named_once(tmp_path, capsys) -> None:
    """Such a field would be ignored, and the conclusion depends on `corrected`."""
    path = prompts_file(tmp_path, GOOD, *(GOOD | {"id": i, "Correted": True, "user": "ann"} for i in "bc"))
    read_prompts(path)
    read_prompts(path)  # as the steps of a night do
    (warning,) = " ".join(capsys.readouterr().err.split()).split("warning: ")[1:]
    assert all(word in warning for word in ("prompts.jsonl, line 2", "'Correted'", "'corrected'"))


def test_fields_of_ones_own_are_left_alone(tmp_path, capsys) -> None:
    row = GOOD | {"session": "s", "session_id": 7, "turns": 2, "hint": "Short.", "logged": "Hi", "tool": "find"}
    read_prompts(prompts_file(tmp_path, row | {"tools": []}))
    assert capsys.readouterr().err == ""


def test_everything_that_a_reply_may_take_up_from_a_prompt_is_its_text(tmp_path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"q": "a hint"}'}}
    chat = [
        {"role": "system", "content": "Be short."},
        {"role": "assistant", "content": None, "reasoning": "A thought.", "tool_calls": [call]},
        {"role": "tool", "content": "Found.", "tool_call_id": "1"},
    ]
    row = {"messages": chat, "tools": [{"type": "function", "description": "Finds."}], "check": GOOD["check"]}
    (prompt,) = read_prompts(prompts_file(tmp_path, row))
    for said in ("Be short.", "A thought.", '{"q": "a hint"}', "Found.", "Finds."):
        assert said in prompt.text()


@pytest.mark.parametrize(("row", "message"), [
    ('{"id": ', "line 2: "), ("[1]", "JSON object"), ({}, "'prompt'"), (GOOD | {"id": ""}, "'id'"), (GOOD, "twice"),
    (GOOD | {"id": "b", "domain": "all"}, "'all' means"),
    (GOOD | {"id": "b", "domain": "corrected"}, "'corrected' means"),
    (GOOD | {"id": "b", "domain": "uncorrected"}, "'uncorrected' means"),
    (GOOD | {"id": "b", "corrected": 1}, "'corrected' must be true or false"),
    (GOOD | {"id": "b", "corrected": "true"}, "'corrected' must be true or false"),
    (GOOD | {"id": "b", "corrected": None}, "'corrected' must be true or false"),
    (GOOD | {"id": "b", "messages": []}, "exactly one of 'prompt'"),
    ({k: v for k, v in GOOD.items() if k != "prompt"} | {"id": "b"}, "exactly one of 'prompt'"),
    (GOOD | {"id": "b", "prompt": " "}, "not empty"), (GOOD | {"id": "b", "prompt": [{}]}, "into 'messages'"),
    ({"id": "b", "domain": "d", "messages": [{"role": "assistant", "content": "x"}], "check": GOOD["check"]},
     "assistant"),
    ({"id": "b", "domain": "d", "messages": [{"role": "alien"}], "check": GOOD["check"]}, "unknown role"),
    (GOOD | {"id": "b", "check": {}}, "'check' is needed"),
    (GOOD | {"id": "b", "check": {"matches": ["x"]}}, "did you mean 'match'"),
    (GOOD | {"id": "b", "check": {"match": ["("]}}, "regular expression"),
    (GOOD | {"id": "b", "check": {"match": ["a{99999999999999999999}"]}}, "regular expression"),
    (GOOD | {"id": "b", "check": {"match": ["(" * 5000 + ")" * 5000]}}, "regular expression"),
    ("# a comment", "line 2: comment line$"), ("[" * 2000 + "]" * 2000, "line 2: nested too deeply$"),
    (GOOD | {"id": "b", "session": 7}, "'session' must be a text"), (GOOD | {"id": "b", "session": ""}, "'session'"),
    (GOOD | {"id": "b", "check": {"match": "x"}}, "list"),
    (GOOD | {"id": "b", "check": {"match": []}}, "every reply would pass"),
    (GOOD | {"id": "b", "check": {"judge": "x", "match": ["y"]}}, "one criterion"),
    (GOOD | {"id": "b", "check": {"judge": "x", "hint": 1}}, "one criterion"),
    (GOOD | {"id": "b", "check": {"praised": "x"}}, "one criterion"),
    (GOOD | {"id": "b", "check": {"match": ["x"], "ignore_case": 1}}, "true or false"),
])  # fmt: skip
def test_a_bad_row_is_named_with_its_line(tmp_path, row, message) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read_prompts(prompts_file(tmp_path, GOOD, row))
    assert "prompts.jsonl, line 2: " in str(error.value)


def test_half_of_an_emoji_becomes_the_replacement_character(tmp_path) -> None:
    """As in logs, programs cut texts in the middle of an emoji, which no tokenizer accepts."""
    (prompt,) = read_prompts(prompts_file(tmp_path, json.dumps(GOOD).replace(GOOD["prompt"], r"hi \ud83d")))
    assert prompt.messages[0]["content"] == "hi \ufffd"


def test_the_rows_of_the_guide_are_rows(tmp_path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    path = tmp_path / "prompts.jsonl"
    path.write_text(guide.split("```json\n")[1].split("```")[0], encoding="utf-8")
    first, second = read_prompts(path)
    assert isinstance(first.check, Patterns)
    assert first.check.passes("At 09:30.")
    assert not first.check.passes("At 9 am.")
    assert second.check == Criterion("It asks for the date.")


def test_a_missing_empty_or_binary_file_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="no prompts"):
        read_prompts(prompts_file(tmp_path, "", " "))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_prompts(tmp_path / "binary")


@pytest.mark.parametrize(("check", "reply", "passes"), [
    ({"match": ["yes", r"\d"]}, "yes 1", True), ({"match": ["yes", r"\d"]}, "yes", False),
    ({"match": ["YES"]}, "yes", False), ({"match": ["YES"], "ignore_case": True}, "yes", True),
    ({"absent": ["- "]}, "plain", True), ({"absent": ["- "]}, "- item", False),
    ({"match": ["^b"]}, "a\nb", False), ({"match": ["(?m)^b"]}, "a\nb", True),
    ({"absent": ["x"]}, "", False), ({"match": [".*"]}, "  ", False),  # an empty reply passes no check
])  # fmt: skip
def test_patterns(tmp_path, check, reply, passes) -> None:
    (prompt,) = read_prompts(prompts_file(tmp_path, GOOD | {"check": check}))
    assert prompt.check.passes(reply) is passes


def test_votes_add_up_or_say_nothing() -> None:
    assert choose_reward([1, 1, -1]).is_met is True
    assert choose_reward([-1, -1, 1]).is_met is False
    assert choose_reward([1, -1]).is_met is None
    assert choose_reward([0, 0, 1]).is_met is None
    assert choose_reward([None, None, 1]).is_met is None
