"""Words of a text that say something, with case, emphasis and punctuation removed."""

import re

from opdkit.judge.words import NEGATION, find_specific_words

# Emphasis and quotation marks are dropped; typographic apostrophes are apostrophes.
_FOLDED = str.maketrans(dict.fromkeys('*`"“”„«»') | {"’": "'", "‘": "'"})
# Scripts that put no space between words: a character is a word.
UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
_WORDS = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+(?:['-][^\W{UNSPACED}]+)*")

# Ends of clauses: a negation denies no more than its clause.
_CLAUSE_END = re.compile(
    r"[.,;:!?\n()\u2013\u2014\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]|而是|但是"
    r"|(?i:\b(?:but|and|that|because|sondern|und|dass|weil|mais|et|que|sino|porque|ma|che)\b)"
)


def key_words(text: str, *, affirmed: bool = False) -> set[str]:
    """Return the words of a text that say something: with a digit, of four letters, or in a script without spaces.

    With `affirmed`, return only those that stand in a clause without a negation.
    """
    if affirmed:
        clauses = _CLAUSE_END.split(text.translate(_FOLDED))
        text = " ".join(clause for clause in clauses if not NEGATION.search(clause))
    found = (word for word in fold_text(text)[1] if len(word) > 3 or any(map(str.isdigit, word)) or word > "\u0e00")
    return find_specific_words(list(found))


def fold_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text without emphasis, quotation marks, case, and differences in white space; and its words.

    The words have no punctuation around them, so a hint matches with any punctuation.
    """
    folded = " ".join(text.translate(_FOLDED).casefold().split())
    return folded, tuple(_WORDS.findall(folded))
