"""A count and its noun, as messages say them: "1 turn", "2 turns", "1,024 replies"."""

import re

_CONSONANT_Y = re.compile(r"[^aeiou]y$")
# The nouns that the stages count under, in the plural, in their parts' footers.
_COUNTED = re.compile(r"\b(vote|hint|turn|step|reward|token|session|conversation|target|verdict|outcome|repl)(ies|s)\b")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`number` and `noun`, in the plural but for one; `plural` where it is neither -s nor, for -y, -ies."""
    return f"{number:,} {noun if number == 1 else plural or plural_of(noun)}"


def plural_of(noun: str) -> str:
    """The plural of a noun, or of a phrase that ends in one."""
    return noun[:-1] + "ies" if _CONSONANT_Y.search(noun) else noun + "s"


def verb(number: int, one: str, many: str) -> str:
    """The form of a verb that goes with `number` of something."""
    return one if number == 1 else many


def every(number: int, noun: str) -> str:
    """ "all 3 rewards are", "the one reward is"."""
    return f"all {counted(number, noun)} are" if number != 1 else f"the one {noun} is"


def singular(name: str) -> str:
    """A counter's name, as it is said of one: "failed votes" -> "failed vote"."""
    return _COUNTED.sub(lambda found: found[1] + ("y" if found[2] == "ies" else ""), name)
