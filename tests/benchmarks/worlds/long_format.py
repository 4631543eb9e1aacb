"""World: instructions of seven steps. The habit is a paragraph; users want a numbered list."""

from collections.abc import Callable

from .world import Group, Style, Topic, World, exactly, habit_of

STEPS = {
    "clean": (
        "take the {} outside on a dry day",
        "brush the dust off every side",
        "wipe the {} with a cloth and warm water",
        "rub a little soap on the dark spots",
        "let it dry for a whole day",
        "bring the {} back to its old place",
    ),
    "paint": (
        "put the {} on some old paper",
        "rub every side with fine sand paper",
        "choose a paint that dries fast",
        "paint the {} twice from top to bottom",
        "wait for two hours in between",
        "wash the brush with warm water",
    ),
    "repair": (
        "look at the {} from every side",
        "remove the part that is broken",
        "clean both sides with a dry cloth",
        "glue the {} together again",
        "press it until the glue holds",
        "test the {} with some care",
    ),
    "pack": (
        "fold a large box of strong paper",
        "fill it with old paper",
        "place the {} in the middle of the box",
        "close the box with some tape",
        "write your name on top of it",
        "carry the {} with both hands",
    ),
    "build": (
        "draw a plan of the {} on paper",
        "cut the wood with a sharp saw",
        "rub the wood until it is smooth",
        "put the {} together with long screws",
        "check every corner with care",
        "paint the {} from top to bottom",
    ),
    "sell": (
        "take a photo of the {} on a dry day",
        "write down its age and size",
        "choose a fair price for it",
        "show the {} to people in your street",
        "wait until some of them call",
        "wrap the {} in old paper",
    ),
    "move": (
        "measure the {} from side to side",
        "call two friends with strong hands",
        "take every loose part off",
        "wrap the {} in an old cloth",
        "lift it from both sides",
        "carry the {} to its new place",
    ),
    "store": (
        "empty the {} and clean it",
        "wrap it in an old cloth",
        "choose a place that is dry and dark",
        "put the {} on two pieces of wood",
        "write down the place and the day",
        "look at the {} once a month",
    ),
}
THINGS = """chair table lamp clock mirror bench shelf desk sofa cradle ladder cabinet wagon sledge drawer stool basket
piano kettle barrel""".split()


def _steps(item: str) -> list[str]:
    verb, thing = item.split(" the ")
    steps = [step.format(thing) for step in STEPS[verb]]
    return [step[0].upper() + step[1:] for step in [*steps, f"enjoy your {thing} with your friends"]]


def _list(mark: Callable[[int], str], end: str = "") -> Callable[[str], str]:
    return lambda item: "\n".join(f"{mark(number)} {step}{end}" for number, step in enumerate(_steps(item), 1))


def _paragraph(item: str) -> str:
    words = ("First", "Then", "After that", "Next", "Now", "Later", "Finally")
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
    Style("letters", _list(lambda k: f"{'abcdefg'[k - 1]})"), ("letters", "steps with letters", "a lettered list")),
)  # fmt: skip
HABIT, WANTED = "paragraph", "numbered"


TASKS = Topic(
    "tasks", tuple(f"{verb} the {thing}" for verb in STEPS for thing in THINGS),
    ("How do I {}?", "Tell me how to {}.", "I want to {}."), STYLES,
    habit_of(STYLES, HABIT, WANTED),
    exactly(STYLES), "numbered steps, not a paragraph",
)  # fmt: skip

WORLD = World(
    "format", "Instructions are wanted as a numbered list of 67 tokens, the habit is a paragraph.", "medium", 120,
    (TASKS,), (Group({"tasks": WANTED}),), turns=(1, 2, 2, 3), pretraining=1.1,
)  # fmt: skip
