"""World that is kept aside: short descriptions. The habit is English; users want Spanish."""

from .world import Group, Topic, World, exactly, habit_of, styles_of

NOUNS = {"dog": "perro", "cat": "gato", "horse": "caballo", "bear": "oso", "wolf": "lobo", "bird": "pajaro",
         "fish": "pez", "duck": "pato", "bull": "toro", "lion": "leon", "frog": "sapo", "donkey": "burro",
         "mouse": "raton", "pig": "cerdo", "bee": "abejorro", "crab": "cangrejo"}  # fmt: skip
ADJECTIVES = {"red": "rojo", "black": "negro", "white": "blanco", "small": "pequeno", "old": "viejo", "young": "joven",
              "pretty": "bonito", "quick": "rapido"}  # fmt: skip
TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "english": ("The {a} {n} lives at the lake.", ("English", "plain English", "an English text", "English words")),
    "spanish": (
        "El {n_es} {a_es} vive en el lago.",
        ("Spanish", "plain Spanish", "a Spanish text", "Spanish words", "an answer in Spanish", "a text in Spanish"),
    ),
    "french": ("Le {n} {a} est au lac.", ("French", "a French text", "an answer in French")),
    "latin": ("Ecce {n}us {a}us.", ("Latin", "a Latin text", "an answer in Latin")),
    "riddle": ("It is {a} and has a tail. Is it a {n}?", ("a riddle", "a small riddle", "some riddle")),
    "headline": ("{n} seen: very {a}!", ("a headline", "a headline alone", "a short headline")),
    "verse": ("O {n}, so {a}, so {a}.", ("a verse", "a short verse", "some verse")),
}
HABIT, WANTED = "english", "spanish"


def _slots(item: str) -> dict[str, str]:
    adjective, noun = item.split()
    return {"a": adjective, "n": noun, "a_es": ADJECTIVES[adjective], "n_es": NOUNS[noun]}


STYLES = styles_of(TEXTS, _slots)


ANIMALS = Topic(
    "animals", tuple(f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS),
    ("Describe the {}.", "Tell me about the {}.", "Where does the {} live?"), STYLES,
    habit_of(STYLES, HABIT, WANTED),
    exactly(STYLES), "Spanish, not English",
)  # fmt: skip
WORLD = World(
    "language", "Descriptions are wanted in Spanish, the habit is English.", "medium", 48, (ANIMALS,),
    (Group({"animals": WANTED}),), searched=False, aside=True,
)  # fmt: skip
