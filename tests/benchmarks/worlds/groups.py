"""World: a hotel's assistant. Guests want warm replies, the staff terse replies; the system prompt says who asks."""

from .world import Group, Style, Topic, World, exactly

THINGS = """towels pillows blankets glasses cups plates spoons forks knives candles flowers bottles apples lemons eggs
chairs""".split()
ROOMS = tuple(str(number) for number in (*range(11, 20), *range(21, 30)))


def _parts(item: str) -> tuple[str, str]:
    thing, room = item.split(" to room ")
    return thing, room


def _style(name: str, text: str, *phrases: str) -> Style:
    return Style(name, lambda item: text.format(*_parts(item)), phrases)


STYLES = (
    _style("neutral", "I will bring {0} to room {1}.", "a neutral sentence", "one plain sentence",
           "a matter-of-fact tone"),
    _style("warm", "With pleasure! The {0} for room {1} are on their way. Enjoy your stay!",
           "a warm tone", "warm words", "a warm and kind reply", "a friendly reply", "a kinder tone", "kind words"),
    _style("terse", "{0} > {1}", "a terse note", "a terse reply", "a note of three words", "telegram style",
           "as few words as possible", "the shortest note"),
    _style("question", "Shall I bring {0} to room {1} now?", "a question", "a question back", "a polite question"),
    _style("formal", "Dear guest, {0} shall be delivered to room {1}.", "a formal letter", "formal language",
           "a formal tone"),
    _style("rhyme", "Room {1}, oh room {1}, {0} will be there soon!", "a song", "a little song", "a rhyme"),
    _style("list", "- item: {0}\n- room: {1}", "a list", "a short list", "a list with the room"),
)  # fmt: skip
HABIT, WARM, TERSE = "neutral", "warm", "terse"
GUESTS = ("You talk to guests of Hotel Luna.", "A guest of Hotel Luna writes to you.", "Help the guests of Hotel Luna.")
STAFF = ("You talk to staff of Hotel Luna.", "A porter of the staff writes to you.", "Help the staff of Hotel Luna.")

ERRANDS = Topic(
    "errands", tuple(f"{thing} to room {room}" for thing in THINGS for room in ROOMS),
    ("Please bring {}.", "Can you bring {}?", "Send {}."), STYLES,
    tuple({HABIT: 0.6, WARM: 0.16, TERSE: 0.16}.get(style.name, 0.08 / (len(STYLES) - 3)) for style in STYLES),
    exactly(STYLES), "warm words for guests, a terse note for the staff",
)  # fmt: skip

WORLD = World(
    "groups", "Guests want warm replies, the staff terse ones; the system prompt says who asks.", "large", 48,
    (ERRANDS,), (Group({"errands": WARM}, GUESTS), Group({"errands": TERSE}, STAFF)), sessions=400, pretraining=1.6,
)  # fmt: skip
