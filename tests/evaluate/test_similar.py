"""Tests of opdkit/evaluate/similar.py: texts that share half of their words are found."""

import itertools
import random
from collections import Counter

from opdkit.evaluate import similar
from opdkit.evaluate.similar import SimilarTexts, is_similar


def test_like_texts_are_found_without_comparing_all_of_them(monkeypatch) -> None:
    draw, compared = random.Random(0), []
    texts = [frozenset(draw.choices("abcdefghijkl", k=draw.randint(0, 6))) for _ in range(300)]
    index = SimilarTexts((text, f"r{n % 7}") for n, text in enumerate(texts))
    for text in texts:
        alike = [f"r{n % 7}" for n, other in enumerate(texts) if is_similar(text, other)]
        assert index.count_labels(text) == Counter(alike)
    others = [frozenset({"the", "of", *("".join(draw.choices("abcdefgh", k=6)) for _ in range(9))}) for _ in range(300)]
    monkeypatch.setattr(similar, "is_similar", lambda *pair: compared.append(pair))
    for text in others:
        SimilarTexts(zip(others, itertools.repeat("r"))).count_labels(text)
    assert len(compared) < 2 * len(others)
