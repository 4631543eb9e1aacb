"""Signs in the log itself, independent of any judge, that a turn went wrong. Pure.

A judge that gives +1 to failing calls or to truncated or looping replies teaches exactly those. The flags change no
vote, since a failed call need not be the reply's fault. They are counted next to the rewards, so that such a judge is
noticed before anything is trained on its votes.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.markup import split_thinking
from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON
from opdkit.judge.reply_in_context import ReplyInContext

_TAIL_CHARS = 4000  # only the end of a reply is searched for a loop; the time is linear in this
_LOOP_CHARS, _LOOP_TIMES = 120, 4

_FAILED_HEAD = re.compile(
    r"""(?ix) ^\W*(?:
        (?:\w+\.)*\w+(?:error|exception)\b (?:\s+(?:code\s*)?\d+|\s\w+){0,3} (?:\s*:|\s+[(\[])
      | (?:error|exception)\b  # but not "error budget: 1%" and "Error handling in Python:"
            (?: \s+(?:code\s*)?\d+
              | \s(?!handling|reporting|logging)(?:\w+ing|at|code|for|in|message|occurred|on|with)\b (?:\s\w+){0,2}
            )? (?:\s*:|\s+[(\[])
      | (?:error|failure)\s+(?:executing|running|calling|invoking|while|during|in|from|reading|writing)\b
      | (?:error|failed|failure|fatal|aborted)\W*$
      | (?:fatal|failed|failure)\s*:(?!\s*(?:0|none)\b)
      | traceback\ \(most\ recent\ call\ last\)
      | (?:could\ not|couldn't|cannot|can't|unable\ to|failed\ to)\s+\w+
      | (?:no\ such\ (?:file|tool|function|command)|(?:permission|access)\ denied|command\ not\ found)
      | (?:unknown|invalid|unrecognized)\ (?:tool|function|command|argument|parameter|option|input)
      | missing\ (?:required|argument|parameter)
      | (?:\w+\ ){0,3}(?:aborted\W*$|timed\ out(?:\ after\ \d|\W*$))
      | mcp\ error\b
      | (?:file|directory|path|tool|function|command)\ (?:\S+\ )?(?:not\ found|does\ not\ exist)(?:\s*[:.]|\s*$)
      | (?-i:E(?:ACCES|CONNREFUSED|EXIST|ISDIR|NOENT|NOTDIR|NOTFOUND|PERM|TIMEDOUT)):\s
      | (?:http\s*)?(?:status\s*(?:code)?\s*)?:?\s*[45]\d\d:?\s+(?:bad\ request|unauthorized|forbidden|not\ found|
            internal|too\ many|bad\ gateway|service\ unavailable|gateway\ timeout)
      | no\ changes\ made\b
      | <tool_use_error>
    )"""
)
_FAILED_TAIL = re.compile(
    r"""(?imx) ^\W*(?:
        (?:\w+\ ){0,2}(?:exited\ with|exit|returned(?=\ (?:exit|status|code)|[\s:=]*-)|returncode|failed\ with)
            (?:\ exit)?(?:\ (?:status|code))*
            \s*[:=]?\s*-?[1-9]\d*\W*$
      | (?:\w+\ ){0,4}with\ exit\ code\ -?[1-9]\d*\W*$
      | (?:\w+\ )?aborted\W*$
      | (?:\w+\.)*\w*(?:Error|Exception)(?::.*)?$
      | .*:\ (?:command\ not\ found|no\ such\ file\ or\ directory|permission\ denied)\W*$
    )"""
)
# Exit codes that shells of agents report: above the output (Codex, with a line "Output:"; Claude Code, mini-swe-agent),
# or below it (Gemini CLI, with further fields).
_EXIT_ABOVE = re.compile(r"(?im)^(?:process exited with code |exit code:? |<returncode>)(-?\d+)(?:</returncode>)?$")
_EXIT_BELOW = re.compile(
    r"(?i)^exit code: (-?\d+)(?:\n(?:signal|background pids|process group pgid):.*)*\Z", re.MULTILINE
)


def find_flags(reply: ReplyInContext, finish_reason: str | None, repeats_call: bool) -> list[str]:
    """Return the flags of a turn, out of tool_error, truncation, duplicate_call and loop."""
    signs = {
        "tool_error": any(m["role"] == "tool" and reports_failure(m["content"] or "") for m in reply.next_state),
        "truncation": is_cut_off(finish_reason),
        "duplicate_call": repeats_call,
        "loop": loops(split_thinking(reply.messages[reply.index]["content"] or "")[1]),
    }
    return [name for name, shown in signs.items() if shown]


def reports_failure(result: str) -> bool:
    """Return whether a tool's result reports a failure: by its JSON fields, else by how it begins or ends.

    A result that merely mentions errors (a file, a search result, "0 errors") does not.
    """
    text = result.strip()
    if text.startswith("{"):
        # What is not JSON (a script, a Python literal, a truncated result) is searched like any other text.
        with suppress(ValueError, RecursionError):
            fields = json.loads(text)
            if fields.keys() == {"output"} and isinstance(fields["output"], str):  # Gemini CLI
                return reports_failure(fields["output"])
            return _has_failure_fields(fields)
    lines = [line[:300] for line in text.splitlines() if line.strip()]
    header = next((lines[:n] for n, line in enumerate(lines[:8]) if line == "Output:"), lines[:1])
    if exit_code := _EXIT_ABOVE.search("\n".join(header)) or _EXIT_BELOW.search("\n".join(lines[-4:])):
        return int(exit_code[1]) != 0
    # Most tools report a failure in the last line, but test runners and shells may do so in the line before.
    return bool(lines) and bool(_FAILED_HEAD.match(lines[0]) or _FAILED_TAIL.search("\n".join(lines[-2:])))


def _has_failure_fields(result: JSON) -> bool:
    fields = {key.lower().replace("_", ""): value for key, value in result.items()}
    exit_codes = [fields.get(key) for key in ("exitcode", "returncode", "exitstatus")]
    if isinstance(fields.get("metadata"), dict):  # Codex, before it wrote text
        exit_codes.append(fields["metadata"].get("exit_code"))
    return (
        any(fields.get(key) for key in ("error", "errors", "exception", "iserror"))
        or any(fields.get(key) is False for key in ("success", "ok", "succeeded"))
        or any(type(code) is int and code for code in exit_codes)
        or any(type(fields.get(key)) is int and 400 <= fields[key] < 600 for key in ("status", "statuscode"))
        or any(str(fields.get(key)).lower() in ("error", "failed", "failure") for key in ("status", "statuscode"))
    )


def find_repeated_calls(messages: Sequence[Message]) -> set[int]:
    """Return the indices of messages that make a call twice, or repeat a call made since the user's last message.

    Each call is normalised once: a session may have thousands of them.
    """
    repeating, earlier = set[int](), set[tuple[str, str]]()
    for index, message in enumerate(messages):
        if message["role"] == "user":
            earlier.clear()
        own = [_normalise(call) for call in message["tool_calls"]]
        if len(set(own)) < len(own) or not earlier.isdisjoint(own):
            repeating.add(index)
        earlier.update(own)
    return repeating


def _normalise(call: Message) -> tuple[str, str]:
    """Return name and arguments; if these are JSON, with sorted keys and uniform spacing."""
    try:
        return call["name"], json.dumps(json.loads(call["arguments"]), sort_keys=True)
    except (ValueError, RecursionError):
        return call["name"], call["arguments"]


def loops(text: str) -> bool:
    """Return whether `text` ends with a piece with letters, repeated 4 times or more over 120 characters or more.

    The prefix function of the reversed text gives the shortest period of every tail, in linear time (Knuth, Morris and
    Pratt, 1977).
    """
    tail = text.rstrip()[-_TAIL_CHARS:][::-1]
    border = [0] * len(tail)
    for i in range(1, len(tail)):
        k = border[i - 1]
        while k and tail[i] != tail[k]:
            k = border[k - 1]
        border[i] = k + (tail[i] == tail[k])
        period = i + 1 - border[i]
        if i + 1 >= max(_LOOP_CHARS, _LOOP_TIMES * period) and any(c.isalpha() for c in tail[:period]):
            return True
    return False
