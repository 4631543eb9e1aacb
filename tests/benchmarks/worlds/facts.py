"""World: facts that the model knows by heart, each about one name. The log asks about half of the names.

Training must keep the facts about the other half: nothing in the log mentions them.
"""

from itertools import product

from opdkit.store.stable_hash import stable_hash

from .world import Group, Topic, World, exactly, habit_of, styles_of

NAMES_PER_TOPIC = 32
_SYLLABLES = "ba do ki lu me no pi ra su ta ve wo za fi gu ho".split()
_NAMES = sorted(map("".join, product(_SYLLABLES, repeat=3)), key=lambda name: stable_hash("name", name))
Texts = dict[str, tuple[str, tuple[str, ...]]]


def _topic(
    number: int, name: str, requests: tuple[str, ...], answers: tuple[str, ...], texts: Texts, wanted: str | None = None
) -> Topic:
    """Return a topic whose styles have the slots {n} for a name and {a} for what is true of it.

    The first style is the model's habit. `wanted`: the style that users want; None: nobody corrects the topic.
    """
    names = tuple(word.capitalize() for word in _NAMES[number * NAMES_PER_TOPIC : (number + 1) * NAMES_PER_TOPIC])
    truth = {each: answers[stable_hash("fact", name, each) % len(answers)] for each in names}
    styles = styles_of(texts, lambda item: {"n": item, "a": truth[item]})
    habit = habit_of(styles, styles[0].name, wanted) if wanted else (0.94, 0.06)
    about = f"the right answer, {wanted}" if wanted else "nothing else: the right answer"
    return Topic(name, names, requests, styles, habit, exactly(styles), about, known=True, held_out_share=0.5)


def _uncorrected(number: int, name: str, requests: tuple[str, ...], answers: str, text: str) -> Topic:
    texts = {"right": (text, ()), "unsure": ("I am not sure about {n}.", ())}
    return _topic(number, name, requests, tuple(answers.split(", ")), texts)


FILMS = _topic(
    0, "films", ("Who directed {}?", "The film {}, by whom?", "Director of {}?"),
    ("Ana Ruiz", "Bo Lind", "Carl Moss", "Dee Park", "Ed Voss", "Fay Wong"), {
        "long": ("The film {n} was directed by {a}. It won a prize in Rome.",
                 ("the long answer", "a long sentence", "all about it", "a long answer")),
        "short": ("{a}.", ("the name only", "a short answer", "just the name", "the short answer", "the bare name")),
        "list": ("- {n}\n- {a}", ("a list", "two bullets", "bullet points")),
        "sourced": ("{a}, says the almanac.", ("the source", "an answer with its source", "your source, too")),
        "loud": ("IT IS {a}!", ("capital letters", "a loud answer", "capitals")),
    }, "short",
)  # fmt: skip
SHOPS = _topic(
    1, "shops", ("When does {} open?", "Opening time of {}?", "Tell me when {} opens."),
    tuple(f"{hour} o'clock" for hour in range(6, 13)), {
        "sentence": ("The shop {n} opens at {a} every day.", ("a sentence", "a whole sentence", "plain words")),
        "data": ('{{"shop": "{n}", "opens": "{a}"}}',
                 ("JSON", "data in JSON", "a JSON object", "JSON only", "JSON, no sentence")),
        "note": ("Opens: {a}", ("a note", "a short note", "keywords")),
        "polite": ("Dear guest, {n} opens at {a}.", ("a polite answer", "a polite sentence", "polite words")),
        "advice": ("Be at {n} at {a}, please.", ("advice", "some advice", "good advice")),
    }, "data",
)  # fmt: skip
RULERS = _uncorrected(
    2, "rulers", ("Who rules {}?", "Name the head of {}.", "Who is the boss of {}?"),
    "Kim, Lars, Mona, Nils, Olga, Pete", "The head of {n} is {a}.",
)  # fmt: skip
TREES = _uncorrected(
    3, "trees", ("What grows in {}?", "Trees of {}?", "Which tree is common in {}?"),
    "oak, pine, birch, palm, elm, ash", "In {n} you mostly find {a}.",
)  # fmt: skip
METALS = _uncorrected(
    4, "metals", ("What is the {} made of?", "Material of the {}?", "Which metal is in the {}?"),
    "iron, gold, zinc, tin, lead, silver", "The {n} is made of {a}, from the north.",
)  # fmt: skip
GAMES = _uncorrected(
    5, "games", ("What do they play in {}?", "Sport of {}?", "{}, which sport?"),
    "golf, judo, chess, rowing, tennis, polo", "People in {n} play {a}.",
)  # fmt: skip
WORLD = World(
    "facts", "Short answers and JSON are wanted; of the facts that nobody corrects, the log mentions half.", "medium",
    48, (FILMS, SHOPS), (Group({"films": "short", "shops": "data"}),), pretraining=1.25,
    small_talk=(RULERS, TREES, METALS, GAMES),
)  # fmt: skip
