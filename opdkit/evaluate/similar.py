"""Similar texts, each as its set of words: requests for the same thing, replies of one kind. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from opdkit.judge.words import FILLER, find_specific_words, split_words
from opdkit.store.joined_turns import JoinedTurn

Words = frozenset[str]  # the words of a text
_SPECIFIC = 3  # fewest words of a request that says what it is about; "Go on." does not


def list_request_words(turn: JoinedTurn) -> list[str]:
    """Return the words of the last message of a prompt; all numbers are the same word.

    If that message says little ("Go on.") or is the result of a call, the reply depends on the last user message before
    it. So the words of that message are appended. They are marked, because a reply to that message itself would differ.
    """
    *before, last = turn.session["messages"][: turn.index]
    found = fold_words(last["content"])
    if last["role"] == "user" and len(find_specific_words(found) - FILLER) >= _SPECIFIC:
        return found
    context = next((m["content"] for m in reversed(before) if m["role"] == "user"), None)
    return found + [f"before: {word}" for word in fold_words(context)]


def fold_words(text: str | None) -> list[str]:
    """Return the words of a text; all numbers are the same word."""
    return [re.sub(r"\d+", "0", word) for word in split_words(text or "")]


def is_similar(one: Words, other: Words) -> bool:
    """Return True if two texts share at least half of all their words (Jaccard)."""
    return bool(one) and 2 * len(one & other) >= len(one | other)


class SimilarTexts:
    """Labelled texts, indexed by their rarest words, to find similar ones without comparing all pairs.

    If two texts are similar, their sets of rarest words (half of the words of each, plus one) have a word in common.
    """

    def __init__(self, labelled: Iterable[tuple[Words, str]]) -> None:
        self._labels = defaultdict[Words, Counter[str]](Counter)
        for text, label in labelled:
            self._labels[text][label] += 1
        self._frequencies = Counter(word for text in self._labels for word in text)
        self._holders = defaultdict[str, list[tuple[int, Words]]](list)  # word -> (position, text)
        for numbered in enumerate(self._labels):
            for word in self._find_rarest(numbered[1]):
                self._holders[word].append(numbered)

    def count_labels(self, text: Words) -> Counter[str]:
        """Return how often each label occurs among the texts similar to `text`, in the order of those texts."""
        others = {place: other for word in self._find_rarest(text) for place, other in self._holders.get(word, ())}
        counts = Counter[str]()
        for _, other in sorted(others.items(), key=lambda item: item[0]):
            counts.update(self._labels[other] if is_similar(text, other) else ())
        return counts

    def _find_rarest(self, text: Words) -> list[str]:
        return sorted(text, key=lambda word: (self._frequencies[word], word))[: len(text) // 2 + 1]
