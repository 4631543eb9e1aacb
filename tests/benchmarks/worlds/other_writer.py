"""World: a log that another model wrote, not in the student's words. The habit is pity; users want the remedy."""

import re

from opdkit.config.fields import JSON

from .world import Group, Style, Topic, World, habit_of

DEVICES = """printer phone tablet camera laptop router scanner monitor keyboard radio heater fridge kettle toaster
fan lamp""".split()
TROUBLES = "slow loud hot dark dirty wet stuck broken dead old dusty noisy".split()

# style -> (the student's words, the words of the log's writer); {d} is the device, {t} its trouble
WORDS = {
    "pity": ("I am sorry that your {d} is {t}. Please restart the {d}, that often helps.",
             "Oh no, a {t} {d}! It is best to turn your {d} off and on again."),
    "remedy": ("Restart the {d}.", "Turn the {d} off and on."),
    "reason": ("The {d} is {t} because of a bug.", "A bug makes the {d} {t}."),
    "refer": ("Call our team about the {d}.", "Our team can look at the {d}."),
    "ticket": ("[ticket] {d}: {t}", "Ticket opened ({d}, {t})"),
    "question": ("Since when is the {d} {t}?", "For how long has the {d} been {t}?"),
    "joke": ("A {t} {d}? Ha, mine is worse!", "Ha ha, what a {t} {d}!"),
}  # fmt: skip
PHRASES = {
    "pity": ("a kind answer", "some pity", "kind words", "more sympathy"),
    "remedy": ("the remedy", "just the remedy", "the fix alone", "a short remedy", "the remedy in one line",
               "one line with the fix"),
    "reason": ("the reason", "a reason", "the cause of it", "the cause"),
    "refer": ("the team", "somebody from the team", "help from the team"),
    "ticket": ("a ticket", "a new ticket", "the ticket line"),
    "question": ("a question", "a question back", "a counter question"),
    "joke": ("a joke", "a good joke", "some fun"),
}  # fmt: skip
HABIT, WANTED = "pity", "remedy"


def _fill(words: str, item: str) -> str:
    device, trouble = item.split(" is ")
    return words.format(d=device, t=trouble)


def _check(item: str, style: str) -> JSON:
    return {"match": [rf"\A(?:{'|'.join(re.escape(_fill(words, item)) for words in WORDS[style])})\Z"]}


def _topic(speaker: int) -> Topic:
    styles = tuple(
        Style(name, lambda item, words=words[speaker]: _fill(words, item), PHRASES[name])  # type: ignore[misc]
        for name, words in WORDS.items()
    )
    return Topic(
        "devices", tuple(f"{device} is {trouble}" for device in DEVICES for trouble in TROUBLES),
        ("My {}.", "Help, my {}!", "The {}. What now?"), styles,
        habit_of(styles, HABIT, WANTED),
        _check, "the bare remedy, no pity",
    )  # fmt: skip


def _world(name: str, speaker: int, writer: World | None = None) -> World:
    about = "The bare remedy is wanted; another model wrote the log, in other words than the student's."
    return World(name, about, "small", 48, (_topic(speaker),), (Group({"devices": WANTED}),), writer=writer)


WORLD = _world("other", 0, _world("other-writer", 1))
STYLES = WORLD.topics[0].styles
