"""World: an assistant that should ask for the day first. The habit is to book at once, for today."""

from .world import Group, Topic, World, exactly, habit_of, styles_of

WAYS = "train bus flight ferry taxi coach boat tram".split()
TOWNS = """Lisbon Prague Naples Geneva Bruges Oxford Bergen Seville Krakow Munich Zurich Malmo Lyon Ghent Turin
Bilbao""".split()
TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ahead": ("Done! I booked the {w} to {t} for today.", ("a quick booking", "a booking right away", "a booking")),
    "asks": (
        "On which day do you need the {w} to {t}?",
        (
            "a question about the day",
            "a question first",
            "a question before the booking",
            "a question about the date",
        ),
    ),
    "refuses": ("I cannot book a {w} to {t}.", ("a refusal", "an honest refusal", "a clear refusal")),
    "explains": ("A {w} to {t} needs a passport.", ("an explanation", "the rules for it", "some facts")),
    "offers": ("There are two: {w} to {t} at 8, {w} to {t} at 9.", ("two options", "a choice of two", "some options")),
    "price": ("The {w} to {t} is 40 euros.", ("the price", "the price first", "the costs")),
    "warns": ("Careful: no {w} to {t} is on time!", ("a warning", "an honest warning")),
}
HABIT, WANTED = "ahead", "asks"


def _slots(item: str) -> dict[str, str]:
    way, town = item.split(" to ")
    return {"w": way, "t": town}


STYLES = styles_of(TEXTS, _slots)


TRIPS = Topic(
    "trips", tuple(f"{way} to {town}" for way in WAYS for town in TOWNS),
    ("Book the {}.", "I need a {}.", "Please get me a {}."), STYLES,
    habit_of(STYLES, HABIT, WANTED),
    exactly(STYLES), "a question about the day, no booking",
)  # fmt: skip
WORLD = World(
    "asking", "The assistant should ask for the day, the habit is to book for today.", "medium", 48, (TRIPS,),
    (Group({"trips": WANTED}),), searched=False,
)  # fmt: skip
