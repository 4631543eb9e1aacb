"""Echoes in replies: mentions of a hint that nobody gave.

A model may learn them from a teacher that has read a hint. There are three kinds. Each counts only if the prompt gives
no reason for it:

- a marker: `[HINT_START]`, `[HINT_END]`, or the line that introduces a hint in the teacher's prompt, with or without
  its brackets; not counted if the prompt has the same marker.
- a phrase that credits the user with a hint ("based on your hint", "as you hinted"); not counted if the prompt itself
  mentions hints (or instructions, for the phrase about those). English only. The word alone is ordinary ("type hints",
  "a hint of lemon"), so most phrases name who gave the hint.
- a whole hint of the run, word for word, of at least five words, or ten characters in a script without spaces; not
  counted if the prompt has it too.

The share before training shows how often ordinary replies look like echoes; training added what exceeds it.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from opdkit.config.wording import DEFAULTS
from opdkit.evaluate.key_words import UNSPACED, fold_text

MIN_WORDS = 5  # a shorter hint ("Use Celsius.") may be an ordinary sentence
Hints = Mapping[tuple[str, ...], list[tuple[str, ...]]]  # first MIN_WORDS words -> the words of the hints

_YOURS = r"(?:your|(?:the )?user's)(?: (?:earlier|previous|last|helpful))?"
_BY = r"(?:based on|as per|per|according to|following|considering|given|in line with|in accordance with|thanks to)"
_YOU_GAVE = r"(?: that| which)? you(?:'ve| have)?(?: just| already)? (?:gave|given|provided|shared|mentioned)"
_HINT_PHRASES = re.compile(
    rf"\b{_BY} {_YOURS} hints?\b"  # based on your hint, following the user's hints
    r"|\bas per the (?:(?:given|provided) )?hints?\b"
    rf"|\b{_BY} the hints?{_YOU_GAVE}\b"  # following the hint you gave
    # Only at the start of a reply or after a thinking tag: further on it may belong to a story or a riddle.
    r"|(?:^|</?think> ?)(?:\w+[,.!] )?(?:based on|according to) the (?:(?:given|provided) )?hints?\b"
    r"|\b(?:as|like) (?:you|the user)(?:'ve| have)?(?: just| already)? hinted\b"
    r"|\bas hinted by (?:you|the user)\b"
    r"|\bthank(?:s| you)(?: so much| very much| a lot)? for (?:your|the) hints?\b"
    rf"|\b{_YOURS} hint (?:says|said|suggests|suggested|asks|asked|tells|told|indicates|states|mentions)\b"
)
_INSTRUCTION_PHRASES = re.compile(rf"\b{_BY} the instructions?{_YOU_GAVE}\b")
# phrase -> words in a prompt that give a reason for it
_PHRASES = {_HINT_PHRASES: re.compile(r"\bhint(?:s|ed|ing)?\b"), _INSTRUCTION_PHRASES: re.compile(r"\binstructions?\b")}


def index_hints(hints: Iterable[str]) -> Hints:
    """Return the hints, indexed by their first words so that `echo_of` can search for all of them in one pass."""
    index: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for words in sorted({fold_text(hint)[1] for hint in hints}):
        spaced = sum(not re.match(f"[{UNSPACED}]", word) for word in words)
        if len(words) + spaced >= 2 * MIN_WORDS:  # in an unspaced script, a word takes about two characters
            index.setdefault(words[:MIN_WORDS], []).append(words)
    return index


@lru_cache
def make_marker_pattern(hint_text: str) -> re.Pattern[str]:
    """Return the pattern, for folded text, of the words around a hint in a prompt (if two or more) or in a vote."""
    around = [fold_text(part) for part in hint_text.split("{hint}")]
    markers = [re.escape(re.sub(r"^\W+|\W+$", "", text)) for text, words in around if len(words) > 1]
    return re.compile("|".join([*markers, r"\[ ?/?hint_(?:start|end) ?\]"]))


def echo_of(reply: str, prompt: str, hints: Hints, hint_text: str = DEFAULTS["teacher"]["hint"]) -> str | None:
    """Return the first echo of a hint in `reply`, with case and white space folded; None without one.

    `reply` includes the thinking. `prompt` is all that the model read. `hint_text` is the teacher's wording of a hint.
    """
    folded, words = fold_text(reply)
    markers = make_marker_pattern(hint_text).findall(folded)
    phrases = [(match[0].strip(), reason) for phrase, reason in _PHRASES.items() if (match := phrase.search(folded))]
    starts = range(len(words) - MIN_WORDS + 1)
    repeated = [hint for start in starts for hint in hints.get(words[start : start + MIN_WORDS], ())
                if words[start : start + len(hint)] == hint]  # fmt: skip
    if not (markers or phrases or repeated):  # the usual case, and prompts are long
        return None
    prompt, words_of_prompt = fold_text(prompt)
    prompt_words = f" {' '.join(words_of_prompt)} "
    echoes = [
        *(marker for marker in markers if marker not in prompt),
        *(phrase for phrase, reason in phrases if not reason.search(prompt)),
        *(" ".join(hint) for hint in repeated if f" {' '.join(hint)} " not in prompt_words),
    ]
    return echoes[0] if echoes else None
