"""Words of a text that carry content, with case, emphasis and punctuation removed."""

import re

import regex

from opdkit.judge.words import NEGATION, find_specific_words

# Drops emphasis and quotation marks, and turns typographic apostrophes into plain ones.
_FOLDED = str.maketrans(dict.fromkeys('*`"“”„«»') | {"’": "'", "‘": "'"})
# Scripts without spaces between words: each character counts as a word.
UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
# Marks (vowel signs of Indic scripts, accents that are characters of their own) are in no other class of letters.
_LETTER = rf"[[\w\p{{M}}]--[{UNSPACED}]]"
_WORDS = regex.compile(rf"(?V1)[{UNSPACED}]|{_LETTER}+(?:['-]{_LETTER}+)*")

# Ends of clauses: a negation only denies its own clause.
_CLAUSE_END = re.compile(
    r"[.,;:!?\n()\u0964\u0965\u06d4\u1362\u2013\u2014\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]|而是|但是"
    r"|(?i:\b(?:but|and|that|because|sondern|und|dass|weil|mais|et|que|sino|porque|ma|che)\b)"
)


def key_words(text: str, *, affirmed: bool = False) -> set[str]:
    """Return the content words of a text: with a digit, of four or more letters, or in a script without spaces.

    With `affirmed`, return only words from clauses without a negation.
    """
    if affirmed:
        clauses = _CLAUSE_END.split(text.translate(_FOLDED))
        text = " ".join(clause for clause in clauses if not NEGATION.search(clause))
    found = (word for word in fold_text(text)[1] if len(word) > 3 or any(map(str.isdigit, word)) or word > "\u0e00")
    return find_specific_words(list(found))


def fold_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text without emphasis, quotation marks, case and differences in white space, and its words.

    The words have no punctuation around them, so a hint matches with any punctuation.
    """
    folded = " ".join(text.translate(_FOLDED).casefold().split())
    return folded, tuple(_WORDS.findall(folded))
