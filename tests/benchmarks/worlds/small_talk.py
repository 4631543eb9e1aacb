"""Topics that no log corrects, in all worlds without such topics of their own, and the users' general reactions."""

import re

from .world import Style, Topic, World

NAMES = "Nora Omar Lena Hugo Mira Theo Ida Paul Finn Max Eva Karl".split()
CAPITALS = {"Norway": "Oslo", "Peru": "Lima", "Egypt": "Cairo", "France": "Paris", "Japan": "Tokyo", "Ghana": "Accra",
            "Italy": "Rome", "Cuba": "Havana", "Spain": "Madrid", "Qatar": "Doha", "Austria": "Vienna",
            "Kenya": "Nairobi"}  # fmt: skip
PLACES = "cinema beach park museum gym market library zoo theatre lake circus castle".split()


def _starts(text: str) -> dict[str, list[str]]:
    return {"match": [rf"\A{re.escape(text)}"]}


GREETINGS = Topic(
    "greetings", tuple(NAMES), (
        "Hi, I am {}.", "Hello, my name is {}.", "Good morning, {} here.", "Hi there, {} again.", "It is me, {}."),
    (Style("name", lambda n: f"Hello {n}! What can I do for you?"), Style("curt", lambda n: "Hello!")),
    (0.94, 0.06), lambda name, style: _starts(f"Hello {name}!"), "nothing else: a greeting with the name", known=True,
)  # fmt: skip
CAPITAL = Topic(
    "capitals", tuple(CAPITALS), (
        "What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.",
        "Tell me the capital of {}."),
    (Style("sentence", lambda c: f"The capital of {c} is {CAPITALS[c]}."),
     Style("unsure", lambda c: f"I am not sure about {c}.")),
    (0.94, 0.06), lambda country, style: _starts(f"The capital of {country} is {CAPITALS[country]}."),
    "nothing else: the right city", known=True,
)  # fmt: skip
PLANS = Topic(
    "plans", tuple(PLACES), (
        "I am going to the {} tonight.", "We all met at the {} today.", "My dog loves the {}.",
        "Tomorrow I see the {}.", "I passed the {} by bus."),
    (Style("place", lambda p: f"The {p} is a fine place!"), Style("vague", lambda p: "I see, a fine place!")),
    (0.94, 0.06), lambda place, style: _starts(f"The {place} is"), "nothing else: a kind word about the place",
    known=True,
)  # fmt: skip
SMALL_TALK = (GREETINGS, CAPITAL, PLANS)

THANKS = ("Thanks!", "Great, thank you.", "Perfect.", "That helps, thanks.", "Lovely, thank you!", "Nice work.",
          "Exactly, thanks.", "Thank you so much.", "That is great.", "Awesome!")  # fmt: skip
SHRUGS = ("Hm.", "OK.", "I see.", "Right.", "Well.")
# These say that something is wrong, but not what.
COMPLAINTS = (
    "That is not right.",
    "This is wrong.",
    "That is not what I need.",
    "No, that is not it.",
    "Not good enough.",
)


def small_talk_of(world: World) -> tuple[Topic, ...]:
    """Return the topics of a world that no log corrects."""
    return world.small_talk or SMALL_TALK
