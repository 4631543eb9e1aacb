"""World: an assistant with two tools. One refuses wrong calls; the other runs them, and users see what went wrong."""

import json
import re
from collections.abc import Callable

from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON

from .world import Group, Style, Tool, Topic, World, exactly, habit_of, stable_hash

ORDERS = tuple(f"{letter}{number}" for letter in "ABCDEFGHKLMNPRST" for number in range(12, 99, 7))
COLORS = "blue red green white black golden silver grey pink brown old new large small".split()
ROOMS = tuple(f"{color} {kind}" for color in COLORS for kind in "hall tent suite cabin studio attic".split())
STATES = "packed shipped delayed delivered".split()


def _call(tool: str, arguments: JSON) -> str:
    """Return a call as the chat template renders it."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


# -- orders: the error says which argument is missing ---------------------------------------------------------------

ERRORS = (
    "error: missing required argument {}", "error: '{}' is required", "error: missing parameter {}",
    "TypeError: missing 1 required positional argument: '{}'", "error: unknown argument, '{}' is required",
    "error: bad request, missing field {}", "error: call refused, missing argument: {}", "error 400: '{}' is required",
)  # fmt: skip
ORDER_STYLES = tuple(
    Style(name, lambda item, name=name: _call("track_order", {name: item}), (name,), ERRORS)  # type: ignore[misc]
    for name in ("id", "order_id", "code", "order_number", "reference", "key", "order_ref", "ticket")
)


def _state(order: str) -> str:
    return STATES[stable_hash("state", order) % len(STATES)]


STATE = Topic(
    "order answers", ORDERS, (),
    (Style("state", lambda o: f"Order {o} is {_state(o)}."), Style("vague", lambda o: f"Order {o} is fine.")),
    (0.94, 0.06), lambda order, style: {"match": [rf"\AOrder {order} is {_state(order)}\."]},
    "nothing else: what the tool said",
)  # fmt: skip
ORDER = Topic(
    "orders", ORDERS, ("Where is order {}?", "Can you check order {}?", "What about order {}?"), ORDER_STYLES,
    habit_of(ORDER_STYLES, "id", "order_id"),
    exactly(ORDER_STYLES), "the argument order_id, not id",
    Tool("track_order", lambda o: json.dumps({"order": o, "state": _state(o)}), STATE), corrected_by_tool=True,
)  # fmt: skip

# -- rooms: the tool accepts any range, and the user sees that it was the wrong range -------------------------------

ASKS = (
    "I wanted {}.", "I asked for {}.", "No, I wanted {}.", "Use {}, please.", "Please use {}.", "I'd prefer {}.",
    "I was hoping for {}.", "I meant {}.", "No, I meant {}.", "Just {}, please.", "Stick to {}, please.",
    "That is not what I asked for. I wanted {}.", "I said {}.", "Next time {}, please.", "Pass {} instead.",
    "You should pass {}.", "Try {} instead.", "Can you use {} instead?", "Actually, I wanted {}.",
    "Include {}, please.",
)  # fmt: skip


def _range(value: str) -> Callable[[str], str]:
    return lambda item: _call("check_room", {"room": item, "range": value})


ROOM_STYLES = tuple(
    Style(value, _range(value), phrases, ASKS)
    for value, phrases in {
        "day": ("one day", "a single day", "the day"),
        "week": ("the whole week", "all week", "a week", "seven days", "the range of a week"),
        "hour": ("one hour", "a single hour", "the hour"),
        "month": ("the whole month", "a month", "all month"),
        "year": ("the whole year", "a year", "twelve months"),
    }.items()
)


def _is_free(item: str) -> bool:
    return stable_hash("free", item) % 2 == 0


def _free_answer(item: str) -> str:
    return f"Yes, the {item} is free." if _is_free(item) else f"No, the {item} is taken."


FREE = Topic(
    "room answers", ROOMS, (),
    (Style("full", _free_answer), Style("vague", lambda item: "I have checked the room.")),
    (0.94, 0.06), lambda item, style: {"match": [rf"\A{re.escape(_free_answer(item))}\Z"]},
    "nothing else: what the tool said",
)  # fmt: skip
ROOM = Topic(
    "rooms", ROOMS, ("Is the {} free?", "I need the {}.", "Can I have the {}?"), ROOM_STYLES,
    habit_of(ROOM_STYLES, "day", "week"),
    exactly(ROOM_STYLES), "the range of a week, not of a day",
    Tool("check_room", lambda i: json.dumps({"free": _is_free(i)}), FREE, json.dumps({"free": True})),
)  # fmt: skip


def _definition(name: str, description: str) -> Message:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WORLD = World(
    "tools", "Calls need another argument or value: a tool's error or the user says which.", "medium", 64,
    (ORDER, ROOM), (Group({"orders": "order_id", "rooms": "week"}),),
    tools=(_definition("track_order", "Where an order is."), _definition("check_room", "Whether a room is free.")),
    turns=(1, 2, 3, 3), pretraining=1.5,
)  # fmt: skip
STYLES = (*ORDER_STYLES, *ROOM_STYLES)
