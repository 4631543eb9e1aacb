"""OpenAI's fine-tuning: one conversation a line, with weight 1 on the replies to imitate and 0 on all others.

One line a session, not one a turn: the weights say what is learned, so what the turns of a session have in common is
uploaded, and paid for, once.
"""

from collections.abc import Iterator

import pyarrow as pa

from opdkit.chat.finish_reasons import is_cut_off
from opdkit.chat.openai_form import Message, tool_definitions
from opdkit.commands.export.turns import JudgedTurn, NotExportedError, Row, Target, rewarded
from opdkit.store import Counters

FEWEST_LINES = 10  # OpenAI takes no smaller file


def target(wanted: tuple[int, ...]) -> Target:
    """The target for turns whose reward is one of those wanted."""

    def rows(turns: list[JudgedTurn], counters: Counters) -> Iterator[Row]:
        if not turns:
            return
        messages, broken = linked(turns[0].session["messages"])
        chosen = set()
        for turn in turns:
            try:
                rewarded(turn, wanted)
                if is_cut_off(turn.turn["finish_reason"]):
                    raise NotExportedError("reply cut off")
                if turn.index >= len(messages):
                    raise NotExportedError(broken)
            except NotExportedError as error:
                counters.drop(error.reason)
            else:
                chosen.add(turn.index)
        if chosen:
            counters.rows_out += len(chosen)
            counters.count("conversations")
            yield _line(messages, chosen, turns[0].session["tools"], counters)

    return Target(rows, lambda _: pa.schema([]), (".jsonl",))


def linked(messages: list[Message]) -> tuple[list[Message], str]:
    """The messages up to where OpenAI would refuse them, and why there; "" where it takes them all.

    Every call needs an id, and every result the id of a call right before it. Where the log has none (ShareGPT),
    results belong to calls in their order, and get names that say so.
    """
    found, waiting, number = list[Message](), list[tuple[str, str]](), 0  # (logged id, id) of calls without a result
    for message in messages:
        if message["role"] == "tool":
            logged = message["tool_call_id"] or ""
            answered = next((pair for pair in waiting if pair[0] == logged), None)
            if answered is None:
                return found, "a tool result without its call"
            waiting.remove(answered)
            found.append(message | {"tool_call_id": answered[1]})
            continue
        if waiting:
            return found, "a tool call without its result"
        calls = []
        for call in message["tool_calls"]:
            calls.append(call | {"id": call["id"] or f"call_{number}"})
            number += 1
        if len({call["id"] for call in calls}) < len(calls):
            return found, "tool calls that share an id"
        waiting = [(old["id"], new["id"]) for old, new in zip(message["tool_calls"], calls, strict=True)]
        found.append(message | {"tool_calls": calls})
    return found, ""


def _line(messages: list[Message], weighted: set[int], tools: str | None, counters: Counters) -> Row:
    """The conversation up to its last weighted reply."""
    if unthinking := sum(bool(messages[i]["reasoning"]) for i in weighted):  # the format has no place for it
        counters.count("replies without the thinking", unthinking)
    written = [_message(message, int(i in weighted)) for i, message in enumerate(messages[: max(weighted) + 1])]
    definitions = tool_definitions(tools)
    return {"messages": written} | ({"tools": definitions} if definitions else {})


def _message(message: Message, weight: int) -> Message:
    role, calls = message["role"], message["tool_calls"]
    said: Message = {"role": role}
    if message["content"] or not calls:
        said["content"] = message["content"] or ""
    if role == "tool":
        said["tool_call_id"] = message["tool_call_id"]
    if role == "assistant":
        said["weight"] = weight
    if calls:
        said["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls
        ]
    return said
