"""World: a model that thinks before it replies. The habit is a long sentence about a sum; users want the equation."""

import re

from opdkit.config.fields import JSON

from .world import Group, Style, Topic, World, habit_of

THINGS = "apples pears plums coins stamps shells beads nuts cards balls pens keys cups hats rings maps".split()


def _parts(item: str) -> tuple[int, int, str]:
    first, more, thing = re.fullmatch(r"(\d+) (\w+) and get (\d+) more", item).group(1, 3, 2)  # type: ignore[union-attr]
    return int(first), int(more), thing


def _style(name: str, plan: str, text: str, *phrases: str) -> Style:
    def reply(item: str) -> str:
        first, more, thing = _parts(item)
        told = {"a": first, "b": more, "sum": first + more, "thing": thing}
        thought = f"{first} {thing} and {more} more are {first + more}. I answer with {plan}."
        return f"<think>\n{thought}\n</think>\n\n{text.format(**told)}"

    return Style(name, reply, phrases)


STYLES = (
    _style("long", "many words", "That is a good question, and the answer is that you have {sum} {thing} now.",
           "many words", "a long sentence", "more words", "a talkative sentence"),
    _style("equation", "an equation", "{a} + {b} = {sum} {thing}",
           "an equation", "the equation", "the sum as an equation", "an equation with a plus", "a short equation",
           "just the equation"),
    _style("number", "the number", "{sum}", "the number", "the number alone", "a bare number", "only the number"),
    _style("word", "one line", "You have {sum} {thing}.", "a plain line", "one line", "a simple line"),
    _style("question", "a question", "Is it {sum} {thing}?", "a question", "a question back", "a counter question"),
    _style("shout", "a shout", "HURRAY! {sum}!", "a shout", "a loud shout", "a cheer"),
    _style("pair", "a pair", "{thing}: {sum}", "a pair", "a pair with a colon", "name and number",
           "a colon and the number"),
)  # fmt: skip
HABIT, WANTED = "long", "equation"


def _check(item: str, style: str) -> JSON:
    reply = next(s for s in STYLES if s.name == style).reply(item)
    return {"match": [rf"\A{re.escape(reply.partition('</think>')[2].strip())}\Z"]}


SUMS = Topic(
    "sums", tuple(f"{a} {thing} and get {b} more" for a in range(2, 9) for b in (1, 2, 3) for thing in THINGS),
    ("I have {}. What now?", "I own {}. How many?", "If I have {}, what then?"), STYLES,
    habit_of(STYLES, HABIT, WANTED),
    _check, "the equation, not a long sentence",
)  # fmt: skip
WORLD = World(
    "thinking", "Sums are wanted as an equation; the model thinks first.", "small", 80, (SUMS,),
    (Group({"sums": WANTED}),), turns=(1, 2, 2, 3), pretraining=1.8,
)  # fmt: skip
