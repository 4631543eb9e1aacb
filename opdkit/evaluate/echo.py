"""Replies that speak of a hint nobody gave: what a model may learn from a teacher that had read one.

Three things in a reply echo a hint, each of them only where the prompt gives no reason for it:

- a marker: `[HINT_START]`, `[HINT_END]`, or the line that introduces a hint in the teacher's prompt, with or without
  its brackets. It does not count where the prompt has the same marker.
- a phrase that credits the user with a hint ("based on your hint", "as you hinted"). English, and narrow: the word
  alone is ordinary ("type hints", "a hint of lemon"), so a phrase needs somebody who gave it. It does not count where
  the prompt itself speaks of hints (of instructions, for the phrase about those): there may be one.
- a whole hint of the run, word for word, of at least five words. It does not count where the prompt has it too.

The share before training says how often an ordinary reply looks like an echo; what training added is the difference.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from opdkit.chat.openai_form import HINT_HEADER

MIN_WORDS = 5  # a shorter hint ("Use Celsius.") may well be an ordinary sentence
Hints = Mapping[tuple[str, ...], list[tuple[str, ...]]]  # first MIN_WORDS words -> the words of the hints

# Emphasis and quotation marks say nothing here; typographic apostrophes are apostrophes.
_FOLDED = str.maketrans(dict.fromkeys('*`"“”„«»') | {"’": "'", "‘": "'"})
# Scripts that put no space between words: a character is a word.
_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:['-][^\W{_UNSPACED}]+)*")

_YOURS = r"(?:your|(?:the )?user's)(?: (?:earlier|previous|last|helpful))?"
_BY = r"(?:based on|as per|per|according to|following|considering|given|in line with|in accordance with|thanks to)"
_YOU_GAVE = r"(?: that| which)? you(?:'ve| have)?(?: just| already)? (?:gave|given|provided|shared|mentioned)"
_MARKER = re.compile(
    # The header's words, as folded text has them.
    rf"{re.escape(HINT_HEADER.casefold().strip('[]'))}"
    r"|\[ ?/?hint_(?:start|end) ?\]"
)
_HINT_PHRASES = re.compile(
    rf"\b{_BY} {_YOURS} hints?\b"  # based on your hint, following the user's hints
    r"|\bas per the (?:(?:given|provided) )?hints?\b"
    rf"|\b{_BY} the hints?{_YOU_GAVE}\b"  # following the hint you gave
    # In the first words of a reply or of its thinking; further on it may be part of a story or a riddle.
    r"|(?:^|</?think> ?)(?:\w+[,.!] )?(?:based on|according to) the (?:(?:given|provided) )?hints?\b"
    r"|\b(?:as|like) (?:you|the user)(?:'ve| have)?(?: just| already)? hinted\b"
    r"|\bas hinted by (?:you|the user)\b"
    r"|\bthank(?:s| you)(?: so much| very much| a lot)? for (?:your|the) hints?\b"
    rf"|\b{_YOURS} hint (?:says|said|suggests|suggested|asks|asked|tells|told|indicates|states|mentions)\b"
)
_INSTRUCTION_PHRASES = re.compile(rf"\b{_BY} the instructions?{_YOU_GAVE}\b")
# phrase -> the word in a prompt that gives a reason for it
_PHRASES = {_HINT_PHRASES: re.compile(r"\bhint(?:s|ed|ing)?\b"), _INSTRUCTION_PHRASES: re.compile(r"\binstructions?\b")}


def index_hints(hints: Iterable[str]) -> Hints:
    """The hints that `echo_of` looks for, so that a reply is read once, however many there are."""
    index: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for words in sorted({_words(_fold(hint)) for hint in hints}):
        if len(words) >= MIN_WORDS:
            index.setdefault(words[:MIN_WORDS], []).append(words)
    return index


def echo_of(reply: str, prompt: str, hints: Hints) -> str | None:
    """The first thing in `reply` that echoes a hint, case and white space folded; None where nothing does.

    `reply` is the whole of it, thinking included; `prompt` is everything the model had read.
    """
    asked = None
    for echo, excused in _candidates(_fold(reply), hints):
        asked = _fold(prompt) if asked is None else asked  # only now: prompts are long, and candidates rare
        if not excused(asked):
            return echo
    return None


def _candidates(said: str, hints: Hints) -> Iterator[tuple[str, Callable[[str], object]]]:
    """What looks like an echo, and what tells whether a (folded) prompt gives a reason for it."""
    for marker in _MARKER.findall(said):
        yield marker, partial(_has_text, marker)
    for phrases, reason in _PHRASES.items():
        if phrase := phrases.search(said):
            yield phrase[0].strip(), reason.search
    words = _words(said)
    for start in range(len(words) - MIN_WORDS + 1):
        for hint in hints.get(words[start : start + MIN_WORDS], ()):
            if words[start : start + len(hint)] == hint:
                yield " ".join(hint), partial(_has_words, hint)


def _has_text(marker: str, asked: str) -> bool:
    return marker in asked


def _has_words(hint: tuple[str, ...], asked: str) -> bool:
    return f" {' '.join(hint)} " in f" {' '.join(_words(asked))} "


def _fold(text: str) -> str:
    return " ".join(text.translate(_FOLDED).casefold().split())


def _words(folded: str) -> tuple[str, ...]:
    """Words without the punctuation around them: a full stop that became a comma is still the same hint."""
    return tuple(_WORDS.findall(folded))
