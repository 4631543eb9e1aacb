"""World: a table of goods. The habit is kilos; users want grams, in the same table."""

from collections.abc import Callable

from .world import Group, Style, Topic, World, exactly, habit_of

GOODS = "rice flour sugar salt beans oats corn nuts rye figs dates peas".split()
ITEMS = tuple(f"{number} kg {thing}" for thing in GOODS for number in range(1, 10))


def _row(row: str, end: str = "") -> Callable[[str], str]:
    def reply(item: str) -> str:
        number, _, thing = item.split()
        return row.format(n=number, thing=thing) + end

    return reply


STYLES = (
    Style("kilos", _row("| {thing} | {n} kg |"), ("kilos", "kilograms", "the weight in kilos", "a table in kilos")),
    Style("grams", _row("| {thing} | {n}000 g |"), (
        "grams", "the weight in grams", "grams instead of kilos", "a table in grams", "grams, not kilos",
        "the grams")),
    Style("tons", _row("| {thing} | 0.00{n} t |"), ("tons", "the weight in tons", "a table in tons")),
    Style("bags", _row("| {thing} | {n} bags |"), ("bags", "the number of bags", "bags, not kilos")),
    Style("swapped", _row("| {n} kg | {thing} |"), ("the weight first", "the weight before the name")),
    Style("lines", _row("{thing}: {n} kg"), ("lines", "plain lines", "lines without a table")),
    Style("total", _row("| {thing} | {n} kg |", "\n| total | ? |"), ("a total", "a line for the total")),
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
