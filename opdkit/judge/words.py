"""Words of a text, and those that words.toml lists: which language a text is in, what is empty.

Neither is exact. The language decides only whether English patterns are applied, and one frequent word tells enough.
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
# What hints say, as rules: beginnings, negations, fillers, word -> (the word for its subject, whether it wants that).
LEAD, NEGATION = re.compile(_LISTS["rules"]["lead"]), re.compile(_LISTS["rules"]["negation"])
FILLER = frozenset(_LISTS["rules"]["filler"].split())
OPPOSITES = {word: (yes.split()[0], wanted) for yes, no in _LISTS["rules"]["opposites"].items()
             for wanted, group in ((True, yes), (False, no)) for word in group.split()}  # fmt: skip
# What a reply says that is nothing but a confirmation.
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
_ENOUGH_WORDS = 8  # of English prose this long, hardly any has no frequent word
_PROSE = 0.85  # share of letters and spaces, which code and paths do not reach
# Each Han or Kana character counts as a word, since there are no spaces between words. In Thai and the like, a phrase
# without a space does: a letter alone means nothing. Vowel signs and other marks are part of their word.
_HAN, _THAI = (regex.compile(rf"[{scripts}]") for scripts in (
    r"\p{Han}\p{Hiragana}\p{Katakana}ー", r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"))  # fmt: skip
_SPACED = rf"[[\p{{L}}\p{{N}}]--{_HAN.pattern}][[\p{{L}}\p{{N}}\p{{M}}]--{_HAN.pattern}]*"
_WORD = regex.compile(rf"(?V1){_HAN.pattern}\p{{M}}*|{_SPACED}(?:['’]{_SPACED})*")
# Words with the signs that change what they say (C++, C#, -5, 20%), and signs that stand for a word (>=, €).
_TERM = regex.compile(
    rf"(?V1){_HAN.pattern}\p{{M}}*|(?:(?<![\p{{L}}\p{{N}}])[-−](?=\p{{N}}))?{_SPACED}(?:['’]{_SPACED})*"
    r"(?:\+\+|[#%°](?![\p{L}\p{N}]))?|[<>=≤≥≠±×÷]+|\p{Sc}"
)


def split_words(text: str) -> list[str]:
    """Return the words of a text, case folded, compatibility forms unified, without punctuation."""
    return [w.replace("’", "'") for w in _WORD.findall(unicodedata.normalize("NFKC", text).casefold())]


def split_terms(text: str) -> list[str]:
    """Return the words of a text with the signs that change what they say, and signs that stand for a word.

    >>> terms("Use C++, not C#: x >= -5 costs 3 €.")
    ['use', 'c++', 'not', 'c#', 'x', '>=', '-5', 'costs', '3', '€']
    """
    found = _TERM.findall(unicodedata.normalize("NFKC", text).casefold())
    return [term.replace("’", "'").replace("−", "-") for term in found]


def weigh_word(word: str) -> float:
    """Return how many words of a language with spaces a word stands for."""
    return 0.5 if _HAN.match(word) else max(1.0, len(word) / 4) if _THAI.match(word) else 1.0


def is_english(text: str) -> bool:
    """Return whether the first 200 words of a text may be English.

    A frequent word of another language, or one with a letter beyond ASCII, speaks against it, a frequent English word
    for it; the majority decides. Long prose without any frequent word is in a language that is not known here. A short
    text without (names, numbers) may be English, and so may code.
    """
    words = _LETTERS.findall(text.casefold())[:_SAMPLE_WORDS]
    english = sum(word in _ENGLISH for word in words)
    other = sum(word in _OTHER or not word.isascii() for word in words)
    is_prose = len(words) >= _ENOUGH_WORDS and sum(c.isalpha() or c.isspace() for c in text) >= _PROSE * len(text)
    return other <= english and not (is_prose and english == 0 and _SHARED.isdisjoint(words))


def find_specific_words(words: list[str]) -> set[str]:
    """Return the case-folded `words` that say something: neither judgements nor words that any hint could hold."""
    return {word for word in words if word not in _EMPTY}


def says_nothing(text: str, known: str = "", confirms: bool = False) -> bool:
    """Return whether a text holds nothing but confirmations, words of `known`, and words that any text could hold.

    With `confirms`, it must hold a confirmation.
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
