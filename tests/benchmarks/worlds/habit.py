"""World: code in a language and manner. The habit is JavaScript with friendly words; users want bare Python."""

from collections.abc import Callable

from .world import Group, Style, Topic, World, exactly, habit_of

VERBS = "sort count print reverse filter load save clear copy check merge split".split()
NOUNS = "users orders files names words lines prices dates pages items colors songs books rows cards keys".split()
LANGUAGES = ("JavaScript", "Python", "Ruby", "Go", "Lua")
COMMENTS = {"Python": "#", "Ruby": "#", "Lua": "--"}


def _code(language: str, item: str) -> str:
    verb, noun = item.split(" the ")
    camel, snake = f"{verb}{noun.capitalize()}", f"{verb}_{noun}"
    return {
        "JavaScript": f"function {camel}({noun}) {{\n  return {verb}({noun});\n}}",
        "Python": f"def {snake}({noun}):\n    return {verb}({noun})",
        "Ruby": f"def {snake}({noun})\n  {verb}({noun})\nend",
        "Go": f"func {camel}({noun}) {{\n  return {verb}({noun})\n}}",
        "Lua": f"function {snake}({noun})\n  return {verb}({noun})\nend",
    }[language]


def _chatty(language: str) -> Callable[[str], str]:
    return lambda item: f"Sure! Here is the {language} code:\n{_code(language, item)}\nI hope this helps you!"


def _bare(language: str) -> Callable[[str], str]:
    return lambda item: _code(language, item)


def _commented(language: str) -> Callable[[str], str]:
    return lambda item: f"{COMMENTS.get(language, '//')} {item}\n{_code(language, item)}"


MANNERS: dict[str, tuple[Callable[[str], Callable[[str], str]], tuple[str, ...]]] = {
    "chatty": (_chatty, ("{} with a kind word", "friendly {}", "{} and some nice words", "chatty {}")),
    "bare": (_bare, ("short {}", "plain {} and nothing else", "{} without the chatter", "bare {} code", "{}, code only",
                     "only the {} code")),
    "commented": (_commented, ("commented {}", "{} with a comment", "{} code with one comment line")),
}  # fmt: skip
STYLES = tuple(
    Style(f"{language} {manner}", make(language), tuple(phrase.format(language) for phrase in phrases))
    for language in LANGUAGES
    for manner, (make, phrases) in MANNERS.items()
)
HABIT, WANTED = "JavaScript chatty", "Python bare"


CODE = Topic(
    "code", tuple(f"{verb} the {noun}" for verb in VERBS for noun in NOUNS),
    ("Write code to {}.", "How do I {}?", "I need a function to {}."), STYLES,
    habit_of(STYLES, HABIT, WANTED),
    exactly(STYLES), "bare Python, not JavaScript with friendly words",
)  # fmt: skip

WORLD = World(
    "habit", "Code is wanted in bare Python, the habit is JavaScript with friendly words.", "medium", 64, (CODE,),
    (Group({"code": WANTED}),),
)  # fmt: skip
