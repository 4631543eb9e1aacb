"""World of the nights: five kinds of requests, whose users change their minds now and then."""

from collections.abc import Mapping

from ..worlds.aside_privacy import DATA
from ..worlds.asking import TRIPS
from ..worlds.world import Group, Topic, World, exactly, habit_of, styles_of

ROOMS = "kitchen office cellar garden hall attic studio lobby garage balcony".split()
THINGS = "lamp heater fan door window camera radio alarm".split()
DISHES = "soup salad cake bread curry stew pasta pie rice risotto".split()
GUESTS = "two three four five six seven eight nine".split()
TEAMS = "sales legal design support finance press export repair".split()
PAPERS = "report letter memo invoice offer plan budget protocol contract survey".split()


def _topic(
    name: str, kinds: list[str], word: str, places: list[str], requests: tuple[str, ...],
    texts: Mapping[str, tuple[str, tuple[str, ...]]],
) -> Topic:  # fmt: skip
    """Return a topic of items "KIND `word` PLACE". The first style of `texts` is the habit, the second is wanted."""

    def slots(item: str) -> dict[str, str]:
        kind, place = item.split(f" {word} ")
        return {"a": kind, "b": place}

    styles = styles_of(texts, slots)
    habit, wanted, *_ = texts
    items = tuple(f"{kind} {word} {place}" for kind in kinds for place in places)
    return Topic(name, items, requests, styles, habit_of(styles, habit, wanted), exactly(styles))


HOME = _topic(
    "home", THINGS, "in the", ROOMS, ("Turn on the {}.", "Can you check the {}?", "Please look at the {}."),
    {
        "does": ("OK, the {a} in the {b} is on.", ("an action", "action right away", "the deed")),
        "reports": ("Report: {a}, {b}, ready.", ("a report", "a short report", "reports")),
        "confirms": ("Shall I do it, {a} in the {b}?", ("a confirmation", "a check back", "a yes or no question")),
        "guides": ("Press the switch of the {a} near the {b} exit.", ("instructions", "the steps", "a guide")),
        "declines": ("The {a} of the {b} is locked.", ("a lock", "a locked answer", "safety")),
    },
)  # fmt: skip
FOOD = _topic(
    "food", DISHES, "for", GUESTS, ("I cook {}.", "Plan {}.", "How do I make {}?"),
    {
        "recipe": ("Boil the {a}, then serve it to {b}.", ("a recipe", "the recipe", "cooking steps")),
        "shopping": ("Buy {a} things times {b}.", ("a shopping list", "the shopping", "what to buy")),
        "wine": ("A {a} for {b} goes well with wine.", ("a drink", "the wine", "a wine tip")),
        "time": ("The {a} takes an hour for {b}.", ("the time", "the duration", "a time plan")),
        "praise": ("What a nice idea, {a} with {b}!", ("a compliment", "kind words", "encouragement")),
    },
)  # fmt: skip
TEXTS = _topic(
    "texts", PAPERS, "to", TEAMS, ("Send a {}.", "Draft a {}.", "I owe a {}."),
    {
        "formal": ("Dear {b} team, find the {a} enclosed.", ("a formal text", "formal language", "polite words")),
        "casual": ("Hey {b}, here is the {a}!", ("a casual text", "relaxed words", "casual language")),
        "brief": ("{a} for {b}: see file.", ("a brief text", "brevity", "fewer words")),
        "subject": ("Subject: {a} ({b})", ("a subject line", "the subject line", "only the subject")),
        "later": ("I will remind you of the {a} for {b}.", ("a reminder", "a note for later", "a later date")),
    },
)  # fmt: skip
TOPICS = (TRIPS, DATA, HOME, FOOD, TEXTS)
FIRST = {"trips": "asks", "data": "keeps", "home": "reports", "food": "shopping", "texts": "casual"}
TURNED = {9: ("home", "confirms"), 14: ("food", "time"), 21: ("texts", "later")}  # night -> topic, what users want now
QUIET = range(16, 19)  # nights without news
WORLD = World(
    "nights", "Five kinds of requests, three of whose wishes change.", "medium", 40, TOPICS, (Group(FIRST),),
    searched=False, pretraining=1.5,
)  # fmt: skip


def wishes_of(night: int) -> dict[str, str]:
    """Return topic -> style that users want in the log of a night."""
    turned = {topic: style for first, (topic, style) in TURNED.items() if night >= first}
    return FIRST | turned
