"""Tests of splitting a text into words, in any script."""

import pytest

from opdkit.judge.words import split_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("उत्तर हिन्दी में दीजिए।", ["उत्तर", "हिन्दी", "में", "दीजिए"]),
        ("தமிழில் பதிலளிக்கவும்", ["தமிழில்", "பதிலளிக்கவும்"]),
        ("ใช้ รายการ", ["ใช้", "รายการ"]),
        ("العَرَبِية", ["العَرَبِية"]),
        ("用Python写", ["用", "python", "写"]),
        ("Don’t a_b ｶﾞ", ["don't", "a", "b", "ガ"]),
    ],
)
def test_marks_are_part_of_a_word(text: str, expected: list[str]) -> None:
    assert split_words(text) == expected
