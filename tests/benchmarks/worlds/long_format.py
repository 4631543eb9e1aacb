"""World: instructions of five steps. The habit is a paragraph; wanted is a numbered list."""

import re
from collections.abc import Callable

from opdkit.config.fields import JSON

from .world import Group, Style, Topic, World

STEPS = {
    "clean": ("take the {} outside", "brush off the dust", "wipe the {} with warm water", "let it dry for a day"),
    "paint": ("put the {} on old paper", "sand every side", "paint the {} twice", "wait for two hours"),
    "repair": ("look at the {} closely", "remove the broken part", "glue the {} again", "press it until it holds"),
    "pack": ("fold a large box", "fill it with paper", "place the {} in the middle", "close the box with tape"),
    "build": ("draw a plan of the {}", "cut the wood", "screw the {} together", "check every corner"),
    "sell": ("take a photo of the {}", "write down its age", "show the {} online", "agree on a fair price"),
    "move": ("measure the {} first", "call a strong friend", "lift the {} slowly", "carry it through the door"),
    "store": ("empty the {} first", "cover it with cloth", "put the {} in a dry room", "visit it once a month"),
}
THINGS = """chair table lamp clock mirror bench shelf desk sofa cradle ladder cabinet wagon sledge drawer stool basket
piano kettle barrel""".split()


def _steps(item: str) -> list[str]:
    verb, thing = item.split(" the ")
    steps = [step.format(thing) for step in STEPS[verb]]
    return [step[0].upper() + step[1:] for step in [*steps, f"enjoy the {thing}"]]


def _list(mark: Callable[[int], str], end: str = "") -> Callable[[str], str]:
    return lambda item: "\n".join(f"{mark(number)} {step}{end}" for number, step in enumerate(_steps(item), 1))


def _paragraph(item: str) -> str:
    words = ("First", "Then", "After that", "Next", "Finally")
    return " ".join(f"{word}, {step[0].lower()}{step[1:]}." for word, step in zip(words, _steps(item), strict=True))


def _json(item: str) -> str:
    return "{" + ", ".join(f'"{number}": "{step}"' for number, step in enumerate(_steps(item), 1)) + "}"


def _table(item: str) -> str:
    return "\n".join(f"| {number} | {step} |" for number, step in enumerate(_steps(item), 1))


STYLES = (
    Style("paragraph", _paragraph, (
        "a paragraph", "one flowing text", "whole sentences", "plain prose", "running text")),
    Style("numbered", _list(lambda k: f"{k}."), (
        "numbered steps", "a numbered list", "steps with numbers", "a list with numbers",
        "the steps with a number each", "a list of numbered steps")),
    Style("bullets", _list(lambda k: "-"), ("bullet points", "bullets", "a list of bullets", "a bullet list")),
    Style("stars", _list(lambda k: "*", "!"), ("stars", "a list of stars", "cheerful stars", "a starred list")),
    Style("json", _json, ("JSON", "a JSON object", "valid JSON", "an object in JSON")),
    Style("table", _table, ("a table", "a table with two columns", "rows of a table", "a small table")),
    Style("letters", _list(lambda k: f"{'abcde'[k - 1]})"), ("letters", "steps with letters", "a lettered list")),
)  # fmt: skip
HABIT, WANTED = "paragraph", "numbered"


def _check(item: str, style: str) -> JSON:
    reply = next(s for s in STYLES if s.name == style).reply(item)
    return {"match": [rf"\A{re.escape(reply)}\Z"]}


TASKS = Topic(
    "tasks", tuple(f"{verb} the {thing}" for verb in STEPS for thing in THINGS),
    ("How do I {}?", "Tell me how to {}.", "I want to {}."), STYLES,
    tuple({HABIT: 0.73, WANTED: 0.17}.get(style.name, 0.10 / (len(STYLES) - 2)) for style in STYLES),
    _check, "numbered steps, not a paragraph",
)  # fmt: skip

WORLD = World(
    "format", "Instructions are wanted as a numbered list of 70 tokens, the habit is a paragraph.", "medium", 120,
    (TASKS,), (Group({"tasks": WANTED}),), turns=(1, 2, 2, 3),
)  # fmt: skip
