"""World: an assistant with two tools. One refuses wrong calls; of the other, users see what a call lacks."""

import json
import re
from collections.abc import Callable

from opdkit.chat.openai_messages import Message
from opdkit.config.fields import JSON

from .world import Group, Style, Tool, Topic, World, stable_hash

ORDERS = tuple(f"{letter}{number}" for letter in "ABCDEFGHKLMNPRST" for number in range(12, 99, 7))
COLORS = "blue red green white black golden silver grey pink brown old new large small".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday".split()
HALLS = tuple(f"{color} hall on {day}" for color in COLORS for day in DAYS)
STATES = "packed shipped delayed delivered".split()


def _call(tool: str, arguments: JSON) -> str:
    """Return a call as the chat template renders it."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def _exactly(style_of: Callable[[str], Style]) -> Callable[[str, str], JSON]:
    return lambda item, style: {"match": [rf"\A{re.escape(style_of(style).reply(item))}\Z"]}


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
    tuple({"id": 0.73, "order_id": 0.17}.get(style.name, 0.10 / (len(ORDER_STYLES) - 2)) for style in ORDER_STYLES),
    _exactly(lambda name: next(s for s in ORDER_STYLES if s.name == name)), "the argument order_id, not id",
    Tool("track_order", lambda o: json.dumps({"order": o, "state": _state(o)}), STATE), corrected_by_tool=True,
)  # fmt: skip

# -- halls: the tool takes what it is given, and the user sees what is missing --------------------------------------

ASKS = (
    "Include {}, please.", "Please include {}.", "Could you include {}?", "Use {} too, please.",
    "Please use {} as well.", "You should pass {}.", "I wanted a call with {}.", "I asked for {} in the call.",
    "You must pass {} too.", "No, include {}.", "Mention {} in the call, please.", "I meant with {}.",
    "Just a call with {}, please.", "Next time pass {}, please.", "From now on, pass {}, please.",
    "Can you please include {}?",
)  # fmt: skip


def _hall(names: str) -> Callable[[str], str]:
    def reply(item: str) -> str:
        color, day = item.split(" hall on ")
        arguments = {"hall": color, "day": day, "urgent": True}
        return _call("check_hall", {name: arguments[name] for name in names.split()})

    return reply


HALL_STYLES = (
    Style("hall", _hall("hall"), ("the hall alone", "only the hall"), ASKS),
    Style("hall day", _hall("hall day"), ("the day", "the argument day", "the day of the week", "the weekday"), ASKS),
    Style("day", _hall("day"), ("the day alone", "only the day"), ASKS),
    Style("day hall", _hall("day hall"), ("the day first", "the day before the hall"), ASKS),
    Style("hall day urgent", _hall("hall day urgent"), ("the urgent flag", "the flag urgent"), ASKS),
)


def _is_free(item: str) -> bool:
    return stable_hash("free", item) % 2 == 0


def _free_answer(item: str) -> str:
    return f"Yes, the {item} is free." if _is_free(item) else f"No, the {item} is taken."


FREE = Topic(
    "hall answers", HALLS, (),
    (Style("full", _free_answer), Style("vague", lambda item: "I have checked the hall.")),
    (0.94, 0.06), lambda item, style: {"match": [rf"\A{re.escape(_free_answer(item))}\Z"]},
    "nothing else: what the tool said",
)  # fmt: skip
HALL = Topic(
    "halls", HALLS, ("Is the {} free?", "I need the {}.", "Can I have the {}?"), HALL_STYLES,
    tuple({"hall": 0.73, "hall day": 0.17}.get(s.name, 0.10 / (len(HALL_STYLES) - 2)) for s in HALL_STYLES),
    _exactly(lambda name: next(s for s in HALL_STYLES if s.name == name)), "the day in the call",
    Tool("check_hall", lambda i: json.dumps({"free": _is_free(i)}), FREE, json.dumps({"free": True})),
)  # fmt: skip


def _definition(name: str, description: str) -> Message:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WORLD = World(
    "tools", "Calls need another argument, or more of them: a tool's error or the user says which.", "medium", 64,
    (ORDER, HALL), (Group({"orders": "order_id", "halls": "hall day"}),),
    tools=(_definition("track_order", "Where an order is."), _definition("check_hall", "Whether a hall is free.")),
    turns=(1, 2, 3, 3),
)  # fmt: skip
STYLES = (*ORDER_STYLES, *HALL_STYLES)
