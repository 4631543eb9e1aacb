"""Regular expressions that tell praised replies from corrected ones, found in the replies of a log. Pure.

The candidates are patterns that a person would write: a list, the format of a number, a number with its unit, a word, a
length. The first candidate that accepts the praised replies and rejects the corrected ones wins; there may be none.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import regex

from opdkit.config.fields import JSON
from opdkit.evaluate.checks import read_patterns
from opdkit.judge.words import FILLER, find_specific_words, says_nothing

# Fewest requests on each side (praised, corrected): FEW for a form or a word of the hints, MANY for any other word. Two
# small sets of replies differ in something by chance, and in a word more easily than in a form. Requests are counted,
# not replies: several replies to one request have its topic in common.
FEW, MANY = 5, 10
ERRORS = 0.1  # share of the replies on each side that may contradict an expression, since judges err
_MARGIN = 1.5  # least ratio: shortest reply of the longer side / longest reply of the shorter side

# A numbered list, bullets, headings, a table, code, bold, JSON, a link, a question at the end, emoji, ...
_SHAPES = (r"(?m)^\s*\d+[.)] ", r"(?m)^\s*[-*•] ", r"(?m)^#+ ", r"(?m)^\|", r"```", r"\*\*", r"^\s*[\[{]", r"https?://",
           r"\?\s*$", r"[\u2600-\u27bf\U0001f300-\U0001faff]", r"\n", r"\d", r"!")  # fmt: skip
_NUMBER = regex.compile(r"(?<![\w.,:/-])([$€£]?)([0-9]+(?:[.,:/-][0-9]+)*)(?: ?(%|[^\W\d_][^\W\d_\p{M}]*))?")
_AMOUNT = re.compile(r"([0-9]+)((?:,[0-9]{3})+|(?:\.[0-9]{3})+)?([.,][0-9]+)?")  # not a date, time or version
_WORD = regex.compile(r"[^\W\d_][\w\p{M}]*")
# A first clause that has only words. Words around an apology, besides those that any reply could hold.
_OPENING = re.compile(r"\s*((?:[^\W\d_]|[ '’])+)(?:[.,;:!?—]+(?!\S)|[。，、；：！？\n]+)\s*")
_REPAIR = "about confusion oversight inconvenience thank thanks pointing out catch got fix fixed corrected version"
_ABOUT_LENGTH = re.compile(r"\b(short|brief|concis|terse|long|length|verbos|wordy|word|sentence|detail|elaborat)")


def find_check(
    praised: Sequence[str], corrected: Sequence[str], hints: Sequence[str], is_own: bool = True
) -> JSON | None:
    """Return a check, as in a file of prompts, that tells praised replies from corrected ones; None without one.

    Each side has one reply per request; `hints` say what the corrected replies missed. Praised replies must pass with
    and without an apology at their start. `is_own`: the model to be checked wrote the replies. Another model may be
    wrong in other forms and right in other words, so fewer kinds of checks are tried.
    """
    bodies = [*map(_drop_opening, praised)]
    for check in _propose(bodies, corrected, hints, is_own) if min(len(praised), len(corrected)) >= FEW else ():
        patterns = read_patterns(check)
        whole, right, wrong = (sum(map(patterns.passes, texts)) for texts in (praised, bodies, corrected))
        if min(whole, right) >= (1 - ERRORS) * len(praised) and wrong <= ERRORS * len(corrected):
            return check
    return None


def _drop_opening(reply: str) -> str:
    """Return a reply without the opening clauses that say nothing, such as an apology."""
    while (opening := _OPENING.match(reply)) and opening.end() < len(reply) and says_nothing(opening[1], _REPAIR):
        reply = reply[opening.end() :]
    return reply


def _propose(praised: Sequence[str], corrected: Sequence[str], hints: Sequence[str], is_own: bool) -> Iterator[JSON]:
    """Yield candidate checks, the preferred ones first."""
    if 2 * sum(bool(_ABOUT_LENGTH.search(hint.casefold())) for hint in hints) > len(hints):
        yield from _propose_lengths(praised, corrected)
    named = find_specific_words([word.casefold() for hint in hints for word in _WORD.findall(hint)]) - FILLER
    sides = (("match", praised, corrected), ("absent", corrected, praised))
    for name, texts, others in sides:
        if is_own or name == "match":
            forms = (*_SHAPES, *_choose_common(_find_numbers, texts, others))
            yield from ({name: [pattern]} for pattern in forms)
        found = _choose_common(_find_words, texts, others)
        yield from ({name: [p], "ignore_case": True} for p in found if p[2:-2].casefold() in named)
    for name, texts, others in sides if is_own and min(len(praised), len(corrected)) >= MANY else ():
        yield from ({name: [p], "ignore_case": True} for p in _choose_common(_find_words, texts, others))


def _propose_lengths(praised: Sequence[str], corrected: Sequence[str]) -> Iterator[JSON]:
    """Yield a check of the number of words, with a limit between the lengths of the two sides if they are far apart."""
    lengths = [sorted(len(text.split()) for text in texts) for texts in (praised, corrected)]
    for name, (short, long) in (("absent", lengths), ("match", lengths[::-1])):
        longest, shortest = short[-1 - int(ERRORS * len(short))], long[int(ERRORS * len(long))]
        if shortest >= _MARGIN * longest:
            yield {name: [rf"^\s*(?:\S+\s+){{{math.isqrt(longest * shortest)}}}\S"]}  # more words than that


def _find_numbers(text: str) -> Iterator[str]:
    """Yield patterns for the numbers in a text: their formats, currencies and units."""
    for match in _NUMBER.finditer(text):
        currency, number, unit = match.groups()
        if not number.isdecimal():
            begin, thousands, rest = amount.groups("") if (amount := _AMOUNT.fullmatch(number)) else ("", "", number)
            digits = re.sub("[0-9]", r"\\d", rest.replace(".", r"\."))
            groups = rf"(?:{re.escape(thousands[0])}\d{{3}})+" if thousands else ""
            yield r"\b" + (r"\d+" if begin else "") + groups + digits + r"\b"
        if currency:
            yield rf"{re.escape(currency)}\d"
        if unit:
            yield rf"\d ?{unit}\b" if unit != "%" else r"\d ?%"


def _find_words(text: str) -> Iterator[str]:
    """Yield a pattern for each word of a text."""
    return (rf"\b{word}\b" for word in _WORD.findall(text.lower()))


def _choose_common(
    patterns_of: Callable[[str], Iterator[str]], texts: Sequence[str], others: Sequence[str]
) -> list[str]:
    """Return the patterns that nearly all `texts` have, sorted by how few of `others` have them, then by length."""
    own, other = (Counter(p for text in side for p in set(patterns_of(text))) for side in (texts, others))
    common = [pattern for pattern, number in own.items() if number >= (1 - ERRORS) * len(texts)]
    return sorted(common, key=lambda pattern: (other[pattern] - own[pattern], len(pattern), pattern))
