"""Words of a text, and the word lists of words.toml: whether a text is English, and which words say nothing.

Neither is exact. The language only decides whether English patterns are applied: one frequent word tells enough.
"""

import re
import tomllib
import unicodedata
from pathlib import Path

import regex

_LISTS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_FREQUENT = {language: frozenset(words.split()) for language, words in _LISTS["frequent"].items()}
_ENGLISH, _SHARED = _FREQUENT.pop("english"), _FREQUENT.pop("shared")
_OTHER = frozenset().union(*_FREQUENT.values())
_UNSPACED = re.compile("|".join(sorted(_LISTS["empty"].pop("unspaced").split(), key=len, reverse=True)))
_EMPTY = frozenset(word for words in _LISTS["empty"].values() for word in words.split())
# For hints as rules: beginnings, negations, fillers, and word -> (first word of its line, False if it is the opposite).
LEAD, NEGATION = re.compile(_LISTS["rules"]["lead"]), re.compile(_LISTS["rules"]["negation"])
FILLER = frozenset(_LISTS["rules"]["filler"].split())
OPPOSITES = {word: (yes.split()[0], wanted) for yes, no in _LISTS["rules"]["opposites"].items()
             for wanted, group in ((True, yes), (False, no)) for word in group.split()}  # fmt: skip
# Words of a reply that only confirms.
_DONE, _BESIDE = (
    frozenset(word for words in _LISTS["confirmations"][kind].values() for word in words.split())
    for kind in ("done", "beside")
)
_DONE_UNSPACED, _BESIDE_UNSPACED = (
    re.compile("|".join(sorted(words.split(), key=len, reverse=True)))
    for words in _LISTS["confirmations"]["unspaced"].values()
)
_LETTERS = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
_SAMPLE_WORDS = 200
_ENOUGH_WORDS = 8  # English prose of this length nearly always has a frequent word
_PROSE = 0.85  # share of letters and spaces; code and paths have less
# Each Han or Kana character counts as a word: these scripts have no spaces between words. In Thai and similar scripts,
# a run without a space counts as one: a single letter means nothing. Vowel signs and other marks belong to their word.
_HAN, _THAI = (regex.compile(rf"[{scripts}]") for scripts in (
    r"\p{Han}\p{Hiragana}\p{Katakana}ー", r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"))  # fmt: skip
_SPACED = rf"[[\p{{L}}\p{{N}}]--{_HAN.pattern}][[\p{{L}}\p{{N}}\p{{M}}]--{_HAN.pattern}]*"
_WORD = regex.compile(rf"(?V1){_HAN.pattern}\p{{M}}*|{_SPACED}(?:['’]{_SPACED})*")
# Words with the signs that change their meaning (C++, C#, -5, 20%), and signs that stand for a word (>=, €).
_TERM = regex.compile(
    rf"(?V1){_HAN.pattern}\p{{M}}*|(?:(?<![\p{{L}}\p{{N}}])[-−](?=\p{{N}}))?{_SPACED}(?:['’]{_SPACED})*"
    r"(?:\+\+|[#%°](?![\p{L}\p{N}]))?|[<>=≤≥≠±×÷]+|\p{Sc}"
)


def split_words(text: str) -> list[str]:
    """Return the words of a text, case folded, compatibility forms unified, without punctuation."""
    return [w.replace("’", "'") for w in _WORD.findall(unicodedata.normalize("NFKC", text).casefold())]


def split_terms(text: str) -> list[str]:
    """Return the words of a text with the signs that change their meaning, and signs that stand for a word.

    >>> split_terms("Use C++, not C#: x >= -5 costs 3 €.")
    ['use', 'c++', 'not', 'c#', 'x', '>=', '-5', 'costs', '3', '€']
    """
    found = _TERM.findall(unicodedata.normalize("NFKC", text).casefold())
    return [term.replace("’", "'").replace("−", "-") for term in found]


def weigh_word(word: str) -> float:
    """Return how many words a word counts as, compared with languages that put spaces between words."""
    return 0.5 if _HAN.match(word) else max(1.0, len(word) / 4) if _THAI.match(word) else 1.0


def is_english(text: str) -> bool:
    """Return whether the first 200 words of a text may be English.

    Evidence for English are its frequent words; against it, frequent words of other languages and words with letters
    beyond ASCII. The majority decides. Long prose without any frequent word is in an unknown language. Short text
    without one (names, numbers) may be English, and so may code.
    """
    words = _LETTERS.findall(text.casefold())[:_SAMPLE_WORDS]
    english = sum(word in _ENGLISH for word in words)
    other = sum(word in _OTHER or not word.isascii() for word in words)
    is_prose = len(words) >= _ENOUGH_WORDS and sum(c.isalpha() or c.isspace() for c in text) >= _PROSE * len(text)
    return other <= english and not (is_prose and english == 0 and _SHARED.isdisjoint(words))


def find_specific_words(words: list[str]) -> set[str]:
    """Return the case-folded `words` that are specific: neither judgements nor words that any hint could contain."""
    return {word for word in words if word not in _EMPTY}


def says_nothing(text: str, known: str = "", confirms: bool = False) -> bool:
    """Return whether a text contains only confirmations, words of `known`, and words that any text could contain.

    With `confirms`, it must contain a confirmation. A digit always says something.
    """
    text = text.casefold().replace("’", "'")
    rest = _DONE_UNSPACED.sub(" ", text)
    said = set(_LETTERS.findall(_UNSPACED.sub(" ", _BESIDE_UNSPACED.sub(" ", rest))))
    is_confirmed = rest != text or not said.isdisjoint(_DONE)
    others = said - _DONE - _BESIDE - _EMPTY - set(_LETTERS.findall(known.casefold()))
    return not others and not any(map(str.isdigit, text)) and (is_confirmed or not confirms)


def drop_judgements(text: str) -> str:
    """Return a text without the judgements that are written without spaces, such as Chinese ones."""
    return _UNSPACED.sub(" ", text)
