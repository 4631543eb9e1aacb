"""The small world of the sample data: topics, styles of answering, and a user with preferences.

A topic has items with facts and a few styles of answering. The first style is the assistant's habit. In the corrected
topics the user of the logs prefers another style, and says so; in the other topics the user accepts any style.
"""

import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
TRACK_TOOL = {
    "type": "function",
    "function": {
        "name": "track_order",
        "description": "Where an order is.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    },
}


@dataclass(frozen=True)
class Style:
    """Style of answering: what a reply looks like, how a judge words the hint for it, how a user asks for it."""

    name: str
    reply: Callable[[str], str]
    pattern: str  # matches replies in this style and no other of the topic
    hints: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topic:
    name: str
    items: tuple[str, ...]
    requests: tuple[str, ...]
    styles: tuple[Style, ...]
    preferred: str | None  # None: the user is content with any style
    about: str  # what the user wanted, in words
    uses_tool: bool = False
    slips: tuple[Style, ...] = ()  # wanted if a call has the right style, but is wrong for another reason
    held_out: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_out", self.items[: len(self.items) // 4])

    def style(self, name: str) -> Style:
        return next(s for s in (*self.styles, *self.slips) if s.name == name)

    def style_of(self, reply: str) -> Style | None:
        return next((s for s in self.styles if re.search(s.pattern, reply)), None)


def _fact(item: str, kind: str, low: int, high: int) -> int:
    """Return a number from `low` to `high` - 1 that never changes for an item."""
    return low + zlib.crc32(f"{kind}:{item}".encode()) % (high - low)


def _pick(item: str, kind: str, options: str) -> str:
    words = options.split()
    return words[_fact(item, kind, 0, len(words))]


# -- weather --------------------------------------------------------------------------------------------------------

CITIES = tuple("Perth Turin Porto Lagos Boston Dallas Basel Lyon Graz Brno Malmo Turku Leeds Gent Cork Pisa".split())


def _celsius(city: str) -> int:
    return int(_pick(city, "celsius", "5 15 20 30"))


def _sky(city: str) -> str:
    return _pick(city, "sky", "sunny rainy")


def _feel(city: str) -> str:
    return "cold" if _celsius(city) < 10 else "mild" if _celsius(city) < 25 else "hot"


WEATHER = Topic(
    "weather",
    CITIES,
    ("What is the weather in {}?", "How warm is it in {}?", "Tell me the weather for {}, please."),
    (
        Style("fahrenheit", lambda c: f"It is {round(_celsius(c) * 9 / 5 + 32)} F and {_sky(c)} in {c} today.",
              r"\d F\b",
              ("Give the temperature in Fahrenheit.", "Report the temperature in degrees Fahrenheit."),
              ("I need that in Fahrenheit.", "In Fahrenheit, please.", "No, I wanted Fahrenheit.")),
        Style("celsius", lambda c: f"It is {_celsius(c)} C and {_sky(c)} in {c} today.", r"\d C\b",
              ("Give the temperature in Celsius.", "Report the temperature in degrees Celsius."),
              ("I need that in Celsius.", "In Celsius, please.", "No, I wanted Celsius.")),
        Style("words", lambda c: f"It is {_feel(c)} and {_sky(c)} in {c} today.", r"It is (cold|mild|hot)\b",
              ("Describe the weather in words, without numbers.", "Say how warm it feels, without any number."),
              ("Just words, no numbers.", "No numbers, please.", "Can you say it without numbers?")),
    ),
    preferred="celsius",
    about="degrees Celsius, not Fahrenheit",
)  # fmt: skip

# -- cooking --------------------------------------------------------------------------------------------------------

FOODS = tuple("rice pasta eggs lentils beans quinoa carrots peas corn beets fish tofu oats kale yams okra".split())


def _minutes(food: str) -> int:
    return int(_pick(food, "minutes", "5 10 20 30"))


def _heat(food: str) -> str:
    return _pick(food, "heat", "boil bake steam fry")


COOKING = Topic(
    "cooking",
    FOODS,
    ("How do I cook {}?", "What is the best way to make {}?", "Can you tell me how to prepare {}?"),
    (
        Style("story", lambda f: f"Great question! Cooking {f} is a joy. You {_heat(f)} the {f} for {_minutes(f)} "
              "minutes and then you enjoy it with friends.", r"^Great question",
              ("Tell it as a friendly little story.", "Write a warm paragraph about it."),
              ("Make it a nice story.", "Can you tell it as a story?", "I would like a friendly story.")),
        Style("steps", lambda f: f"1. Wash the {f}.\n2. {_heat(f).capitalize()} it for {_minutes(f)} minutes.\n"
              "3. Serve.", r"^1\. .*\n2\. ",
              ("Give the recipe as numbered steps.", "List the steps as a numbered list."),
              ("I want numbered steps.", "As numbered steps, please.", "Can you number the steps?")),
        Style("short", lambda f: f"{_heat(f).capitalize()} the {f} for {_minutes(f)} minutes.",
              r"^(Boil|Bake|Steam|Fry) the [^\n]*$",
              ("Answer in one short sentence.", "Keep the recipe to a single short sentence."),
              ("Too long, one sentence please.", "Shorter, please.", "Just one sentence.")),
    ),
    preferred="steps",
    about="numbered steps, not a story",
)  # fmt: skip

# -- trains ---------------------------------------------------------------------------------------------------------

TOWNS = tuple(
    "Bergen Essen Ulm Nantes Siena Cadiz Vigo Aarhus Lund Split Gdansk Kassel Dijon Verona Derby Faro".split()
)


def _leaves(town: str) -> tuple[int, int]:
    """Return hour (from 13 to 23) and minute."""
    hour, minute = _pick(town, "time", "13:20 15:40 18:10 21:30").split(":")
    return int(hour), int(minute)


TRAINS = Topic(
    "trains",
    TOWNS,
    ("When does the train to {} leave?", "What time is the next train to {}?", "I need the train to {}. When is it?"),
    (
        Style("ampm", lambda t: f"The next train to {t} leaves at {_leaves(t)[0] - 12}:{_leaves(t)[1]} pm.",
              r"\d pm\b",
              ("Write the time with am or pm.", "Use the 12-hour clock with am or pm."),
              ("With am or pm, please.", "I prefer am and pm.", "No, use am or pm.")),
        Style("clock24", lambda t: f"The next train to {t} leaves at {_leaves(t)[0]}:{_leaves(t)[1]}.",
              r"\d\d:\d\d(?! pm)",
              ("Write the time on the 24-hour clock.", "Use the 24-hour clock for times."),
              ("On the 24-hour clock, please.", "I use the 24-hour clock.", "No, I meant the 24-hour clock.")),
        Style("platform", lambda t: f"The next train to {t} leaves from platform {_fact(t, 'platform', 1, 5)}.",
              r"platform \d",
              ("Name the platform, not the time.", "Say which platform it leaves from."),
              ("I asked for the platform.", "Which platform is what I meant.", "No, the platform please.")),
    ),
    preferred="clock24",
    about="the 24-hour clock, not am and pm",
)  # fmt: skip

# -- orders (a tool) ------------------------------------------------------------------------------------------------

# An order has the same tokens after "#" in a text as after a quotation mark in a call: it is as easy to copy as a word.
ORDERS = tuple(f"{letter}{_fact(letter, 'order', 1, 10)}" for letter in "ABCDEFGHKLMNPRST")


def call_text(argument: str, order: str) -> str:
    """Return a call as the chat template renders it."""
    return f'<tool_call>\n{{"name": "track_order", "arguments": {{"{argument}": "{order}"}}}}\n</tool_call>'


ORDER = Topic(
    "orders",
    ORDERS,
    ("Where is my order #{}?", "Can you check order #{}?", "Has order #{} been shipped?"),
    (
        Style("id", lambda o: call_text("id", o), r'\{"id":'),
        Style("order_id", lambda o: call_text("order_id", o), r'\{"order_id":',
              ("Call track_order with the argument order_id.", "Pass the order as order_id to track_order."),
              ("error: unknown argument, order_id is required", "error: missing required argument order_id")),
        Style("code", lambda o: call_text("code", o), r'\{"code":'),
    ),
    preferred="order_id",
    about="the tool called with order_id, not id",
    uses_tool=True,
    slips=(
        Style("asked_order", lambda o: call_text("order_id", o), r'\{"order_id":',
              ("Look up the order that the user asked for.", "Track the very order that the user named."),
              ("error: unknown order #{}", "error: there is no order #{}")),
    ),
)  # fmt: skip


def track_order(order: str) -> str:
    """Return what the tool answers to a call with order_id and the order that the user asked for."""
    state = _pick(order, "state", "packed shipped delayed delivered")
    return f'{{"order": "{order}", "status": "{state}", "day": "{_day(order)}"}}'


def _day(order: str) -> str:
    return _pick(order, "day", "Monday Tuesday Wednesday Thursday Friday")


def order_answer(order: str) -> str:
    """Return what the assistant tells the user once the tool has answered."""
    return f"Your order #{order} is {_pick(order, 'state', 'packed shipped delayed delivered')}, due on {_day(order)}."


# -- topics that nobody corrects ------------------------------------------------------------------------------------

SUBJECTS = tuple("rain love summer rivers home night stars roads dreams birds fire gold ships snow wind trees".split())


def _song(subject: str) -> str:
    singer = _pick(subject, "singer", "Nina.Vale Omar.Stone Lena.Reed Hugo.Marsh").replace(".", " ")
    return f"{_pick(subject, 'adjective', 'Blue Lost Silver Quiet')} {subject.capitalize()} by {singer}"


MUSIC = Topic(
    "music",
    SUBJECTS,
    ("Suggest a song about {}.", "Do you know a song about {}?", "I am looking for a song about {}."),
    (
        Style("plain", lambda s: f"Try {_song(s)}.", r"^Try [^,]*\.$"),
        Style("year", lambda s: f"Try {_song(s)}, from {_pick(s, 'year', '1964 1971 1978 1985')}.",
              r"^Try .*, from \d{4}",
              ("Add the year of the song.", "Mention the year in which the song came out."),
              ("And the year?", "I also need the year.", "Please add the year.")),
    ),
    preferred=None,
    about="nothing else: the right song",
)  # fmt: skip

CAPITALS = dict(zip(
    "Norway Peru Egypt France Japan India Ghana Vietnam Italy Korea Cuba Spain Ireland Austria Greece Kenya".split(),
    "Oslo Lima Cairo Paris Tokyo Delhi Accra Hanoi Rome Seoul Havana Madrid Dublin Vienna Athens Nairobi".split(),
    strict=True))  # fmt: skip
CAPITAL = Topic(
    "capitals",
    tuple(CAPITALS),
    ("What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?"),
    (
        Style("sentence", lambda c: f"The capital of {c} is {CAPITALS[c]}.", r"^The capital of"),
        Style(
            "word",
            lambda c: f"{CAPITALS[c]}.",
            r"^\w+\.$",
            ("Answer with the name alone.", "Give only the name of the city."),
            ("Just the name.", "Only the name, please.", "One word is enough."),
        ),
    ),
    preferred=None,
    about="nothing else: the right city",
)

TOPICS = (WEATHER, COOKING, TRAINS, ORDER, MUSIC, CAPITAL)

# -- the user -------------------------------------------------------------------------------------------------------

THANKS = ("Thanks!", "Great, thank you.", "Perfect.", "That helps, thanks.", "Lovely, thank you!")
SHRUGS = ("Hm.", "OK.", "I see.", "Right.")
# Share of the reactions, of dissatisfied and of content users, that say nothing useful.
SHRUG_RATE = 0.06


@dataclass(frozen=True)
class Reaction:
    """What a user says to a reply, and what a perfect judge makes of it."""

    text: str
    reward: int
    wanted: Style | None = None


def react(topic: Topic, reply: str, preferred: str | None, rng: random.Random) -> Reaction:
    """Return the reaction of a user who prefers the style `preferred` (None: any will do)."""
    if rng.random() < SHRUG_RATE:
        return Reaction(rng.choice(SHRUGS), 0)
    given = topic.style_of(reply)
    if preferred is None or (given is not None and given.name == preferred):
        return Reaction(rng.choice(THANKS), 1)
    wanted = topic.style(preferred)
    return Reaction(rng.choice(wanted.corrections), -1, wanted)


def request(topic: Topic, item: str, rng: random.Random) -> str:
    return rng.choice(topic.requests).format(item)
