"""World: a table of goods. The habit is kilos; wanted are grams, in the same table."""

import re
from collections.abc import Callable

from .world import Group, Style, Topic, World, exactly, habit_of

GOODS = "rice flour sugar salt beans oats corn nuts rye figs dates peas".split()
PAIRS = [(first, second) for first in GOODS for second in GOODS if GOODS.index(first) % 3 != GOODS.index(second) % 3]
ITEMS = tuple(f"{1 + (k % 9)} kg {first} and {1 + (k * 5 % 8)} kg {second}" for k, (first, second) in enumerate(PAIRS))


def _table(row: str, end: str = "") -> Callable[[str], str]:
    def reply(item: str) -> str:
        goods = re.findall(r"(\d) kg (\w+)", item)
        return "\n".join(row.format(n=number, thing=thing) for number, thing in goods) + end

    return reply


STYLES = (
    Style("kilos", _table("| {thing} | {n} kg |"), ("kilos", "kilograms", "the weight in kilos", "a table in kilos")),
    Style("grams", _table("| {thing} | {n}000 g |"), (
        "grams", "the weight in grams", "grams instead of kilos", "a table in grams", "grams, not kilos",
        "the grams")),
    Style("tons", _table("| {thing} | 0.00{n} t |"), ("tons", "the weight in tons", "a table in tons")),
    Style("bags", _table("| {thing} | {n} bags |"), ("bags", "the number of bags", "bags, not kilos")),
    Style("swapped", _table("| {n} kg | {thing} |"), ("the weight first", "the weight before the name")),
    Style("lines", _table("{thing}: {n} kg"), ("lines", "plain lines", "lines without a table")),
    Style("total", _table("| {thing} | {n} kg |", "\n| total | ? |"), ("a total", "a line for the total")),
)  # fmt: skip
HABIT, WANTED = "kilos", "grams"


GOODS_TOPIC = Topic(
    "goods", ITEMS, ("List {}.", "Make a table of {}.", "We have {}."), STYLES,
    habit_of(STYLES, HABIT, WANTED),
    exactly(STYLES), "grams, not kilos",
)  # fmt: skip
WORLD = World(
    "units", "A table of goods is wanted in grams, the habit is kilos.", "large", 48, (GOODS_TOPIC,),
    (Group({"goods": WANTED}),), searched=False,
)  # fmt: skip
