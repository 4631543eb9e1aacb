"""SWE-agent trajectories, one per line: `history` as the model saw it, or the steps of `trajectory` alone.

Fields are named as in SWE-agent's own types (`HistoryItem`, `TrajectoryStep`, `AgentInfo` in sweagent/types.py). The
environment's user messages are marked as written by a program: the same error twice is not a user who repeats a
request. `trajectory`, which repeats the history, and the replay configuration are left out, except for the model's
name.
"""

from collections.abc import Sequence
from typing import Any

from opdkit.chat.conversation import JSON, Conversation, Note, Unreadable
from opdkit.chat.messages import as_list, check_message_count, first_text, read_messages, read_tools
from opdkit.extract.formats.items import openai_messages
from opdkit.extract.formats.reader import Line
from opdkit.extract.formats.sessions import line_reader, read_pieces
from opdkit.extract.formats.spans import parse_text
from opdkit.extract.mapping import value_at

DEMONSTRATION = "demonstration"
_OF_HISTORY = frozenset(("agent", "is_demo", "message_type", "thought", "action", "thinking_blocks"))
_NO_MODELS = ("replay", "human", "human_thought", "instant_empty_submit")  # SWE-agent's stand-ins for a model
_LEFT_OUT = frozenset(("history", "messages", "trajectory", "replay_config", "tools", "model"))


def recognises(record: JSON) -> bool:
    """Return whether the record has SWE-agent's history or steps, or messages in mini-swe-agent's format."""
    history, steps = record.get("history"), record.get("trajectory")
    if str(record.get("trajectory_format")).startswith("mini-swe-agent"):
        return "messages" in record
    for item in as_list(history)[:3]:
        if isinstance(item, dict) and "role" in item and not _OF_HISTORY.isdisjoint(item):
            return True
    return any(isinstance(step, dict) and "action" in step and "observation" in step for step in as_list(steps)[:3])


def read_record(line: Line, record: JSON) -> list[Conversation]:
    """Read one trajectory. Raises Unreadable."""
    items = record.get("history", record.get("messages"))
    if items is None and isinstance(record.get("trajectory"), list):
        items = _make_history(record["trajectory"])
    items = [item for item in as_list(items) if value_at(item, ("role",)) != "exit"]  # mini-swe-agent: for no model
    if not items:
        raise Unreadable("no messages", "neither a history nor a trajectory with steps")
    check_message_count(items)
    conversation = Conversation(line.source, line.number, [])
    begun = False  # the agent has replied; before that it gets the task and demonstrations
    for position, item in enumerate(items):
        output = value_at(item, ("output",))  # of a tool call, or of a model called through the Responses API
        if output is None or "role" in item:
            messages, notes = read_messages([item], position)
        else:
            messages, notes = read_pieces(openai_messages(output if isinstance(output, list) else [item]))
        is_demo = item.get("is_demo") is True
        finish_reason = first_text(value_at(item, ("extra", "response", "choices", 0, "finish_reason")))
        for index, message in enumerate(messages):
            place = len(conversation.messages) + index
            if message["role"] == "user" and begun and not is_demo:
                conversation.machine.add(place)
            if message["role"] == "assistant":
                begun = begun or not is_demo
                note = conversation.notes[place] = notes.get(index) or Note()
                note.skip_reason = DEMONSTRATION if is_demo else note.skip_reason
                note.finish_reason = note.finish_reason or finish_reason
        conversation.messages.extend(messages)
    model: Any = record.get("model", value_at(record, ("info", "config", "model", "model_name")))
    if model is None:  # then it is in the replay configuration: JSON, often as text
        config = record.get("replay_config")
        model = value_at(parse_text(config.lstrip() if isinstance(config, str) else config), ("agent", "model", "name"))
    conversation.model = None if model in _NO_MODELS else first_text(model)
    conversation.tools = read_tools(record.get("tools"))
    conversation.metadata = {k: v for k, v in record.items() if k not in _LEFT_OUT}
    return [conversation]


def _make_history(steps: Sequence[Any]) -> list[JSON]:
    """Return a history built from steps: the first one's prompt if logged, then replies and observations."""
    check_message_count(steps)
    items: list[JSON] = []
    for number, step in enumerate(steps):
        if not isinstance(step, dict):
            raise Unreadable("step is not an object", f"step {number} is a {type(step).__name__}")
        prompt = step.get("query") or step.get("messages")
        if number == 0 and isinstance(prompt, list):
            items += prompt
        reply, observation = first_text(step.get("response")), first_text(step.get("observation"))
        if reply:
            items.append({"role": "assistant", "content": reply, "tool_calls": step.get("tool_calls")})
        if observation:
            calls = step.get("tool_call_ids")
            items.append({"role": "tool" if calls else "user", "content": observation, "tool_call_ids": calls})
    return items


READER = line_reader("sweagent", recognises, read_record, closer_than=("openai",))
