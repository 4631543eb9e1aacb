"""Tests of the signs in the log itself that a turn went wrong: errors, truncation, repeated calls and loops."""

from pathlib import Path

import pytest
from runs import in_context, message, talk, write_extract
from work import passes

from opdkit.config.judge import JudgeConfig
from opdkit.judge import flags
from opdkit.judge import stage as judge
from opdkit.judge.flags import find_flags, find_repeated_calls, loops, reports_failure

FAILED = [
    "Error: payment amount does not add up",
    "  error: no such option\n",
    "ERROR 404: nothing here",
    "TypeError: unsupported operand",
    "java.lang.NullPointerException: null",
    "Error executing tool: boom",
    "Error (exit 1) in step 2",
    "Error parsing the input: boom",
    "Error occurred on start: boom",
    "Exception in thread main: null",
    "ValidationError for the input: boom",
    "Failed: 3, passed: 12",
    "failed: no such host",
    "fatal: not a git repository",
    "Failed: timeout",
    "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'",
    "Could not find the exact text in /a/b.ts.",
    "Unable to reach the host",
    "No such tool: serach",
    "Permission denied",
    "Unknown function: book",
    "Missing required parameter 'city'",
    "Command aborted",
    "Request timed out.",
    "Command timed out after 120 seconds",
    "MCP error -32602: Invalid arguments",
    "File not found: /a.py",
    "File does not exist.",
    "Tool serach not found",
    "ENOENT: no such file or directory, access '/a.ts'",
    "HTTP 404: Not Found",
    "EXECUTION TIMED OUT\n(Open file: n/a)",
    "404 Not Found",
    "HTTP status 503 Service Unavailable",
    "<tool_use_error>File has not been read</tool_use_error>",
    "some output\nmore output\n\nCommand exited with code 1",
    "building ...\nexit code: 2",
    "make returned exit code 2",
    "Exit code 1\nsrc/a.ts(3,5): TS2345\nFound 3 of them",
    "Chunk ID: ab\nWall time: 0.1 seconds\nProcess exited with code 1\nOriginal token count: 9\nOutput:\nFAIL\ndone",
    '{"output": "Output: (empty)\\nExit Code: 1\\nProcess Group PGID: 21293"}',
    "Output: x\nError: (none)\nExit Code: 2\nSignal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 7",
    "2 failed\n[The command completed with exit code 1.]\n[Python interpreter: p]\n[Command finished with exit code 1]",
    "<returncode>1</returncode>\n<output>\n2 failed\n</output>",
    '{"output": "boom", "metadata": {"exit_code": 1, "duration_seconds": 0.1}}',
    "the call returned -1",
    "bash: line 1: foo: command not found",
    "ls: cannot access 'x': No such file or directory",
    '{"error": "not found"}',
    '{"status": "error", "message": "x"}',
    '{"status_code": 500}',
    '{"status": null, "statusCode": 500}',
    '{"status": "done", "status_code": 404}',
    '{"success": false}',
    '{"isError": true, "content": []}',
    '{"stdout": "", "exit_code": 1}',
    "{'seat': 12}\nKeyError: 'row'",  # not JSON, so its words are searched
]
FINE = [
    "",
    "ok",
    "[]",
    "null",
    "0 errors, 0 warnings",
    "The query returned 3",
    "rows returned: 5",
    "no errors found",
    "Error handling is described in chapter 3.",
    "Errors are values.",
    "Error handling in Python: use try and except.",
    "Exception handling: see chapter 3.",
    "error budget policy: 99.9%",
    "Error rate (last hour)",
    "Failed: 0, passed: 12",
    "failed: 0",
    "File not found errors in nginx, and how to avoid them",
    "The request never timed out after the change",
    "EXAMPLE: use it",
    "Failure: none",
    "\tthis.showError(`Bash command failed: ${message}`);\n\t}\n",
    "raise ValueError('x')\nprint('done')",
    "All 12 tests passed",
    "Command exited with code 0",
    "ok\n[The command completed with exit code 0.]\n[Command finished with exit code 0]",
    "Chunk ID: ab\nProcess exited with code 0\nOutput:\nsrc/a.py:\nValueError: as the docs say",
    "Exit code: 0\nWall time: 1 seconds\nOutput:\nold.log:\nbuild exited with code 1",
    "Command: ls\nError: (none)\nExit Code: 0\nSignal: (none)\nBackground PIDs: (none)",
    "<returncode>0</returncode>\n<output>\nKeyError: 'a'\n</output>",
    '{"output": "ok", "metadata": {"exit_code": 0}}',
    '{"output": "x = 1"}',
    "1\techo Exit code 1\n2\texit 0\nfi",
    '{"error": null, "data": 1}',
    '{"errors": [], "ok": true}',
    '{"status": "ok"}',
    '{"status": 200}',
    '{"exit_code": 0}',
    '{"id": 404}',
    '{"broken json: Error',
    '[{"error": "one of many results"}]',
    "The flight failed to impress reviewers but the food was fine",
    "Transfer successful",
]


@pytest.mark.parametrize("result", FAILED)
def test_failures_are_seen(result: str) -> None:
    assert reports_failure(result)


@pytest.mark.parametrize("result", FINE)
def test_what_only_speaks_of_failure_is_none(result: str) -> None:
    assert not reports_failure(result)


def test_repeated_calls() -> None:
    """A call is repeated if it was made before since the user last spoke, or twice in one message."""
    search = ("search", '{"q": "a", "n": 1}')
    again = ("search", '{"n":1,  "q":"a"}')
    asked, result = message("user", "go"), message("tool", "[]")
    first, second = message("assistant", None, calls=[search]), message("assistant", None, calls=[again])
    assert find_repeated_calls([asked, first, result, second]) == {3}
    assert not find_repeated_calls([asked, first, result, message("user", "again"), second])
    assert find_repeated_calls([asked, message("assistant", None, calls=[search, again])]) == {1}
    assert not find_repeated_calls([asked, message("assistant", None, calls=[search, ("search", "{not json")])])
    assert find_repeated_calls([message("assistant", None, calls=[("a", "{not json"), ("a", "{not json")])]) == {0}
    assert not find_repeated_calls(talk("hi", "hello"))


def test_each_call_is_read_once_however_long_its_session(tmp_path: Path, monkeypatch) -> None:
    read, normalise = [], flags._normalise
    monkeypatch.setattr(flags, "_normalise", lambda call: read.append(call["arguments"]) or normalise(call))
    steps = [[message("assistant", None, calls=[("step", f'{{"n": {n}}}')]), message("tool", "ok")] for n in range(40)]
    session = [message("user", "go"), *(m for step in steps for m in step)]
    judge.run(JudgeConfig(run=write_extract(tmp_path / "run", {"s": session}), judge="rules", shard="0/1"))
    assert len(read) == 40


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        ("I will try again now. " * 10, True),
        ("A good beginning. " + "and then " * 40, True),
        ("First this, then that. " * 3, False),
        ("The answer is 42.", False),
        ("-" * 300, False),
        ("| --- " * 60, False),
        ("1. " * 100, False),
        ("", False),
        ("word " * 30 + "and a different ending that closes the matter", False),
        (" ".join(f"line {i} of many" for i in range(100)), False),
    ],
)
def test_loops(text: str, looping: bool) -> None:
    """A text loops if it ends in a piece with letters that repeats often; rules, lists and numbers do not loop."""
    assert loops(text) is looping


def test_flags_of_a_turn() -> None:
    """Each sign gives the turn a flag; an error in the user's words and a loop in the thinking give none."""
    call = ("search", "{}")
    turns = [
        message("user", "go"),
        message("assistant", None, calls=[call]),
        message("tool", "[]"),
        message("assistant", "again and again " * 20, calls=[call]),
        message("tool", "[]"),
        message("tool", "Error: no"),
    ]
    assert find_repeated_calls(turns) == {3}
    assert find_flags(in_context(turns, 3, 2), "length", True) == ["tool_error", "truncation", "duplicate_call", "loop"]
    assert find_flags(in_context(turns), "stop", False) == []
    assert find_flags(in_context(talk("hi", "hello", "Error: my screen says no")), None, False) == []
    thinks = talk("hi", f"<think>{'hm and hm ' * 20}</think>Hello.", "Thanks")
    assert find_flags(in_context(thinks), "stop", False) == []


@pytest.mark.parametrize("unit", ["a", "ab ", "error ", "x: ", "{", "\n"])
def test_no_text_takes_long(unit: str) -> None:
    text = unit * 100_000
    assert passes(loops, text) < 2
    assert passes(reports_failure, text) < 2
