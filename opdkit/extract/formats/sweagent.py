"""SWE-agent trajectories, one a line: `history` as the model was told it, or the steps of `trajectory` alone.

Fields as SWE-agent's own types name them (`HistoryItem`, `TrajectoryStep`, `AgentInfo` in sweagent/types.py). What the
environment prints comes back as a message of role `tool` where the agent calls functions, and of role `user` where it
writes its commands into the text. The role stays as it is logged: that is the prompt which the model answered, and a
chat template renders the two differently. A user message of the environment is known for one, though: the same error
twice is no user who sends a request again.

Demonstrations (`is_demo`) are part of the prompt, but nobody's replies. `trajectory` says the history once more, and
the replay configuration how to run it again: both are left out, but for the model's name.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import read_messages, read_tools, refuse_too_many
from opdkit.extract.formats.json_lines import one_by_one
from opdkit.extract.formats.reader import Line, Reader, Rejected

DEMONSTRATION = "demonstration"
_OF_HISTORY = frozenset(("agent", "is_demo", "message_type", "thought", "action", "thinking_blocks"))
_NO_MODELS = ("replay", "human", "human_thought", "instant_empty_submit")  # SWE-agent's stand-ins for one
_LEFT_OUT = frozenset(("history", "trajectory", "replay_config", "tools", "model"))


def recognises(record: JSON) -> bool:
    """A history whose messages say which agent they are of, or steps of action and observation."""
    history, steps = record.get("history"), record.get("trajectory")
    return any(_is_item(item) for item in _head(history)) or any(_is_step(step) for step in _head(steps))


def _head(value: Any) -> list[Any]:
    return value[:3] if isinstance(value, list) else []


def _is_item(item: Any) -> bool:
    return isinstance(item, dict) and "role" in item and not _OF_HISTORY.isdisjoint(item)


def _is_step(step: Any) -> bool:
    return isinstance(step, dict) and "action" in step and "observation" in step


def read(unit: Sequence[Line]) -> Iterator[Conversation | Rejected]:
    """One line, one conversation."""
    return one_by_one(unit, _conversation)


def _conversation(line: Line, record: JSON) -> Conversation:
    items = record.get("history")
    if items is None and isinstance(record.get("trajectory"), list):
        items = _from_steps(record["trajectory"])
    if not isinstance(items, list) or not items:
        raise Unreadable("no messages", "neither a history nor a trajectory with steps")
    messages: list[JSON] = []
    told = Conversation(line.source, line.number, messages)
    refuse_too_many(items)
    begun = False  # before its first reply the agent is given the task, and demonstrations
    for position, item in enumerate(items):
        found, notes = read_messages([item], position)
        for index, said in enumerate(found, len(messages)):
            if said["role"] == "user" and begun and item.get("is_demo") is not True:
                told.machine.add(index)
            if said["role"] == "assistant":
                begun = begun or item.get("is_demo") is not True
                note = notes.get(index - len(messages)) or Note()
                note.skip_reason = DEMONSTRATION if item.get("is_demo") is True else None
                told.notes[index] = note
        messages.extend(found)
    told.model = _model(record)
    told.tools = read_tools(record.get("tools"))
    told.metadata = {k: v for k, v in record.items() if k not in _LEFT_OUT}
    return told


def _from_steps(steps: Sequence[Any]) -> list[JSON]:
    """A history of the steps alone: the prompt of the first, if it was kept, then replies and observations."""
    refuse_too_many(steps)
    items: list[JSON] = []
    for number, step in enumerate(steps):
        if not isinstance(step, dict):
            raise Unreadable("step is no object", f"step {number} is a {type(step).__name__}")
        prompt = step.get("query") or step.get("messages")
        if number == 0 and isinstance(prompt, list):
            items += prompt
        reply, seen = step.get("response"), step.get("observation")
        if isinstance(reply, str) and reply:
            items.append({"role": "assistant", "content": reply, "tool_calls": step.get("tool_calls")})
        if isinstance(seen, str) and seen:
            calls = step.get("tool_call_ids")
            items.append({"role": "tool" if calls else "user", "content": seen, "tool_call_ids": calls})
    return items


def _model(record: JSON) -> str | None:
    """From the record itself, or from the configuration to replay it: JSON, often as text."""
    found: Any = record.get("model")
    if found is None:
        config: Any = record.get("replay_config")
        if isinstance(config, str):
            try:
                config = orjson.loads(config)
            except orjson.JSONDecodeError:
                return None
        for key in ("agent", "model", "name"):
            config = config.get(key) if isinstance(config, dict) else None
        found = config
    return found if isinstance(found, str) and found and found not in _NO_MODELS else None


READER = Reader("sweagent", "line", recognises, read, closer_than="openai")
